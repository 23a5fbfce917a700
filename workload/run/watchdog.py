"""Watchdog that ends a hanging process after dumping its stacks. Imports no torch."""

import faulthandler
import os
import threading
import time
from typing import Final, Self

from workload import exit_codes
from workload.report import conclude

STANDARD_ERROR: Final = 2
"""The file descriptor, which is valid even if sys.stderr was replaced."""


class Watchdog:
    """While entered, requires a call of `beat` at least every `timeout` seconds; 0 disables it.

    Otherwise it writes the stacks of all threads to standard error and exits with HUNG. If Python
    itself is blocked because a library holds the GIL, only the stacks are written, and the process
    exits with FAILED after at most twice the timeout.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._last_beat = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self) -> None:
        """Record progress."""
        self._last_beat = time.monotonic()

    def __enter__(self) -> Self:
        self.beat()
        if self._timeout:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._timeout:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            # A timer outside of Python, which fires if this loop is blocked.
            faulthandler.dump_traceback_later(self._timeout, exit=True, file=STANDARD_ERROR)
            if self._stopped.wait(min(self._timeout / 4, 1)):
                break
            if time.monotonic() - self._last_beat > self._timeout:
                faulthandler.dump_traceback(STANDARD_ERROR, all_threads=True)
                message = (
                    f"no step for {self._timeout:g} seconds (hang_timeout): "
                    "the stacks of all threads are on standard error"
                )
                rank = os.environ.get("RANK", "0")
                conclude("error", message=message, rank=rank, exit_code=exit_codes.HUNG)
                os._exit(exit_codes.HUNG)
        faulthandler.cancel_dump_traceback_later()
