"""The last lines of something that never ends."""

from collections import deque
from collections.abc import Iterable


class Tail:
    """Keeps at most so many lines, and at most so many bytes of them."""

    def __init__(self, lines: int, size: int, begin: Iterable[str] = ()) -> None:
        self._most, self._size = lines, size
        self._lines: deque[str] = deque()
        self._bytes = 0
        for line in begin:
            self.add(line)

    def add(self, line: str) -> None:
        """Appends a line, of which the end is kept where it is longer than all that is kept."""
        line = line.encode(errors="replace")[-self._size :].decode(errors="ignore")
        self._lines.append(line)
        self._bytes += _size(line)
        while len(self._lines) > self._most or self._bytes > self._size:
            self._bytes -= _size(self._lines.popleft())

    @property
    def lines(self) -> list[str]:
        """What is kept, oldest first."""
        return list(self._lines)


def _size(line: str) -> int:
    return len(line.encode(errors="replace"))
