"""Test processes of pytest-xdist, forked from a server that has imported PyTorch.

pytest-xdist would start each process with `python -c`, and each would import PyTorch again.
Tests that need processes with PyTorch fork them from the same server.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from types import ModuleType

from execnet import gateway_io
from execnet.gateway_base import ExecModel, Popen2IO

SERVER = multiprocessing.get_context("forkserver")


def preload() -> None:
    """Set the modules that the server imports; a later call replaces the modules of earlier calls.

    `inference.engine.preloaded` must be last: importing it freezes the objects that forks share.
    """
    SERVER.set_forkserver_preload(["tests.training.preloaded", "inference.engine.preloaded"])


def fork_test_processes() -> None:
    """Start the server and let pytest-xdist fork its processes from it."""
    preload()
    # The standard output of processes that tests fork is not that of pytest.
    stdout = os.dup(1)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    _forkserver.ensure_running()
    os.dup2(stdout, 1)
    os.close(stdout)
    gateway_io.Popen2IOMaster = _Forked  # type: ignore[assignment, misc]


class _Forked(Popen2IO):
    """Connection to a forked process that behaves like `python -c COMMAND`."""

    def __init__(self, args: list[str], execmodel: ExecModel) -> None:
        command = args[-1]
        stdin, to_process = SERVER.Pipe(duplex=False)
        from_process, stdout = SERVER.Pipe(duplex=False)
        self._process = SERVER.Process(target=_run, args=(command, stdin, stdout))
        self._process.start()
        stdin.close()
        stdout.close()
        super().__init__(
            os.fdopen(os.dup(to_process.fileno()), "wb"),
            os.fdopen(os.dup(from_process.fileno()), "rb"),
            execmodel,
        )

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run(command: str, stdin: Connection, stdout: Connection) -> None:
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdin.close()
    stdout.close()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    share()
    # Without this, processes that tests start would import pytest's main module.
    sys.modules["__main__"] = ModuleType("__main__")
    exec(command, {"__name__": "__main__"})  # noqa: S102 - a constant of execnet


def share() -> None:
    """Let this forked process fork more processes from its own server.

    CPython 3.11 would start another server, in contrast to the documentation of `ensure_running`.
    """
    _forkserver.ensure_running = lambda: None
