"""What a run says: JSON objects, one a line, or lines and a bar for somebody at a terminal.

The last line also goes where Kubernetes looks for it, always as JSON.
"""

import contextlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, SupportsFloat

if TYPE_CHECKING:
    from workload.progress import Event
    from workload.terminal import Terminal

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Becomes the pod's terminated.message. Kubernetes makes the file; elsewhere it is not there."""

LONGEST_MESSAGE: Final = 4096
"""Bytes of a termination message that Kubernetes keeps."""

LOOKS: Final = 0.25
"""Seconds between two numbers at the bar: to fetch the loss makes a GPU wait."""

_terminals: list["Terminal"] = []


def emit(event: "str | Event", **fields: object) -> str:
    """Write one line of progress to standard output, and return its JSON text."""
    content = {"event": event, **fields} if isinstance(event, str) else event.line()
    line = json.dumps(content, default=str)
    terminal = _terminal()
    if terminal is not None:
        name = str(content.pop("event"))
        terminal.say(name, content)
    else:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return line


def conclude(event: "str | Event", **fields: object) -> None:
    """Write the last line of a run, also as the pod's termination message.

    Of several processes in a pod the first is heard: the others often fail because of it.
    """
    terminal = _terminal()
    if terminal is not None:
        # The process may end at once, and must not leave the terminal without its cursor.
        terminal.close()
    line = emit(event, **fields)
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.stat().st_size == 0:
            TERMINATION_LOG.write_bytes(line.encode()[:LONGEST_MESSAGE])


class Bar:
    """Shows, while it is entered, how far a run is: on a terminal, and nothing anywhere else.

    Counts samples: `total` of the whole run, `done` before this process began.
    """

    def __init__(self, total: int, done: int, shown: bool = True) -> None:
        self._total, self._done = total, done
        self._terminal = _terminal() if shown else None
        self._looked = -LOOKS

    def advance(self, done: int, step: int, loss: SupportsFloat) -> None:
        """`done` samples are done after `step` steps; `loss` is looked at now and then only."""
        if self._terminal is None:
            return
        now = time.monotonic()
        if now - self._looked >= LOOKS:
            self._looked = now
            self._terminal.show(done, step, float(loss))

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self._terminal.open(self._total, self._done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._terminal is not None:
            self._terminal.close()


def _terminal() -> "Terminal | None":
    """Return the terminal at standard output; None in a pod, in a pipe, or without rich."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        return None
    if not _terminals:
        from workload.terminal import Terminal

        _terminals.append(Terminal())
    return _terminals[0]
