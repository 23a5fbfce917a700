"""Progress of data operations that take longer than two seconds."""

import sys
import time
from collections.abc import Callable
from typing import Final

from workload.progress import Message
from workload.report import emit

INTERVAL: Final = 2.0
"""Minimum time (s) between two lines."""

Report = Callable[[str], object]
"""Function that reports a progress line."""


def report_event(line: str) -> None:
    """Report a line as an event of a training run."""
    emit(Message(event="data", message=line))


def report_stderr(line: str) -> None:
    """Write a line to standard error, so that standard output contains only results."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Progress:
    """Counter up to `total` that reports its value at most once every two seconds."""

    def __init__(self, name: str, total: int, report: Report) -> None:
        self._name, self._total, self._report = name, total, report
        self._done, self._reported = 0, time.monotonic()

    def advance(self, count: int, note: str = "") -> None:
        """Add to the count; `note` is appended to the line."""
        self._done += count
        if time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            percent = 100 * self._done // max(self._total, 1)
            self._report(f"{self._name}: {self._done:,} of {self._total:,} ({percent}%){note}")
