"""Checks for running processes, and termination of all processes of a session."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

import psutil


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_session(leader: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill all processes in the session of this leader (SIGKILL) and wait until they have ended."""
    while members := list(_running(leader.pid)):
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        leader.poll()
        time.sleep(0.05)


def _running(session: int) -> Iterator[psutil.Process]:
    # psutil.process_iter would return cached processes, whose IDs may have been reused since.
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(pid) == session and is_running(pid):
                yield psutil.Process(pid)
