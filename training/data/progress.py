"""Says how far something is that takes longer than two seconds."""

import sys
import time
from collections.abc import Callable
from typing import Final

from workload.progress import Message
from workload.report import emit

INTERVAL: Final = 2.0
"""Seconds between two lines."""

Tell = Callable[[str], object]
"""Is given one line."""


def tell_run(line: str) -> None:
    """As one event among those of a training run."""
    emit(Message(event="data", message=line))


def tell_user(line: str) -> None:
    """On standard error, where results are not."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Progress:
    """Counts up to `total`, and tells it now and then: nothing, where all is done at once."""

    def __init__(self, what: str, total: int, tell: Tell) -> None:
        self._what, self._total, self._tell = what, total, tell
        self._done, self._told = 0, time.monotonic()

    def advance(self, count: int, note: str = "") -> None:
        """Count on; `note` is told as well."""
        self._done += count
        if time.monotonic() - self._told >= INTERVAL:
            self._told = time.monotonic()
            percent = 100 * self._done // max(self._total, 1)
            self._tell(f"{self._what}: {self._done:,} of {self._total:,} ({percent} %){note}")
