"""Lines that say how long a step has been running."""

import time
from collections.abc import Callable
from pathlib import Path

Report = Callable[[str], None]
"""Is given one line of progress at a time."""

INTERVAL_SECONDS = 10.0


class Steps:
    """Reports the beginning, every ten seconds and the end of a step of a build."""

    def __init__(self, report: Report, what: str) -> None:
        self._report = report
        self._what = what
        self._began = self._said = time.monotonic()
        report(what)

    def tick(self, detail: Callable[[], str] = lambda: "") -> None:
        """Reports the time that has passed when ten seconds have gone by since the last line."""
        now = time.monotonic()
        if now - self._said >= INTERVAL_SECONDS:
            self._said = now
            self._report(f"{self._what}: {clock(now - self._began)}{detail()}")

    def done(self, outcome: str) -> None:
        """Reports the end with the time that it took."""
        self._report(f"{outcome} in {clock(time.monotonic() - self._began)}")


def clock(seconds: float) -> str:
    """Minutes and seconds: `3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def compiled(log: Path) -> str:
    """How many packages a `go build -v` has compiled so far, from its log."""
    with log.open() as lines:
        count = sum(not line.startswith(("$", "go: ")) for line in lines)
    return f", {count} packages compiled" if count else ""
