"""Output and exit of commands: closed pipes (`| head`), closed streams, full disks, signals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_CLOSED_PIPE = 128 + signal.SIGPIPE
"""Status that a shell reports for a program that writes to a closed pipe."""


def run(command: Callable[[], int], failed: int = 1) -> int:
    """Run a command, write its output, and return its exit status.

    If the reader closes the pipe, the command exits without an error message. If the output cannot
    be written for another reason, the status is `failed`.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, for example with `>&-`
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  open until the exit
    try:
        try:
            status = command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        return _CLOSED_PIPE
    except OSError as error:
        _discard()
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        return failed
    return status


def exit_on_termination() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, so that `with` and `finally` clean up.

    A signal that the caller (such as nohup) ignores remains ignored.
    """

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    for handled in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(handled) is not signal.SIG_IGN:
            signal.signal(handled, leave)


def _discard() -> None:
    """Redirect stdout to /dev/null, because the interpreter flushes it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
