"""One fork server for all processes of a test run, so that PyTorch is imported only once.

The first process that needs the server starts it and records its address in a file.
"""

import contextlib
import json
import multiprocessing
import os
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from filelock import FileLock

_forkserver: Any = forkserver._forkserver


def share(directory: Path) -> None:
    """Share one fork server among all processes that pass the same directory.

    A fork server runs until no process has the writing end of its pipe open. Every process opens
    that end, so the server outlives the process that started it.
    """
    start = _forkserver.ensure_running
    known = directory / "fork-server.json"

    def ensure_running() -> None:
        if _forkserver._forkserver_address is not None:
            return
        with FileLock(directory / "fork-server.lock"):
            with contextlib.suppress(
                FileNotFoundError
            ):  # No server is running, or the process that started it has ended.
                pid, pipe, address = json.loads(known.read_text())
                _forkserver._forkserver_alive_fd = os.open(f"/proc/{pid}/fd/{pipe}", os.O_WRONLY)
                _forkserver._forkserver_address = address
                resource_tracker.ensure_running()
                return
            # The server's socket must outlive this process and its temporary directory.
            process: Any = multiprocessing.current_process()
            process._config["tempdir"] = str(directory)
            start()
            pipe, address = _forkserver._forkserver_alive_fd, _forkserver._forkserver_address
            known.write_text(json.dumps([os.getpid(), pipe, address]))

    _forkserver.ensure_running = ensure_running
