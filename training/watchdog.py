"""Ends a process that stands still, after it has shown where. Imports no torch."""

import faulthandler
import os
import threading
import time
from types import TracebackType
from typing import Final, Self

from workload import exit_codes
from workload.progress import Failed
from workload.report import conclude

STANDARD_ERROR: Final = 2
"""The descriptor itself, which is there whatever sys.stderr was replaced by."""

LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks."""


class Watchdog:
    """While it is entered, `beat` must be called at least every `timeout` seconds; 0 is for ever.

    Otherwise the stacks of all threads go to standard error, and the process ends as HUNG. Where
    even Python stands still, because some library keeps its lock, nothing but the stacks can be
    had: then, after twice the time at most, the process ends as FAILED.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._beaten = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self) -> None:
        """Say that the run goes on."""
        self._beaten = time.monotonic()

    def __enter__(self) -> Self:
        self.beat()
        if self._timeout:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._timeout:
            self._thread.join()

    def _watch(self) -> None:
        pause = min(self._timeout / 4, LONGEST_PAUSE)
        while True:
            # A timer outside of Python, which goes off when this loop does not get on.
            faulthandler.dump_traceback_later(self._timeout, exit=True, file=STANDARD_ERROR)
            if self._ended.wait(pause):
                break
            if time.monotonic() - self._beaten > self._timeout:
                self._give_up()
        faulthandler.cancel_dump_traceback_later()

    def _give_up(self) -> None:
        faulthandler.dump_traceback(STANDARD_ERROR, all_threads=True)
        message = (
            f"no step for {self._timeout:g} seconds (hang_timeout): "
            "the stacks of all threads are on standard error"
        )
        rank = os.environ.get("RANK", "0")
        conclude(Failed(message=message, rank=rank, exit_code=exit_codes.HUNG))
        os._exit(exit_codes.HUNG)
