"""Process 1 of a namespace: starts services, restarts those that end, reaps everything else."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

RESTART_DELAY = 1.0


@dataclass(frozen=True)
class Service:
    """A process that is to run as long as its namespace does."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()
    before: Callable[[], None] | None = None
    """Called in the child before the program is started."""


class Supervisor:
    """Runs services, each with a log file of its own; stops at SIGTERM, and all end with it."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.running: dict[int, Service] = {}
        self.on_orphan: Callable[[int], None] | None = None
        self._down: list[Service] = []

    def start(self, service: Service) -> int:
        """Starts a service and returns its process id."""
        with (self.logs / f"{service.name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(service.command),
                env={**os.environ, **service.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=service.pass_fds,
                preexec_fn=service.before,
            )
        # Popen would collect the exit status itself; here only run_forever does.
        process.returncode = 0
        self.running[process.pid] = service
        (self.logs / f"{service.name}.pid").write_text(str(process.pid))
        return process.pid

    def run_forever(self) -> NoReturn:
        """Waits for processes to end: restarts services, tells of others by `on_orphan`."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while True:
            self._take(*self._wait())
            if self._down:
                time.sleep(RESTART_DELAY)
                self._restart()

    def mend(self) -> None:
        """Starts again what has ended by now, for who has other things to do before `run_forever`.

        No other child may be at work meanwhile: its exit status would be taken.
        """
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._take(*ended)
        self._restart()

    def _take(self, pid: int, status: int) -> None:
        service = self.running.pop(pid, None)
        if service is not None:
            code = os.waitstatus_to_exitcode(status)
            self._note(service, f"ended with {code} and is started again")
            self._down.append(service)
        elif pid and self.on_orphan is not None:
            self.on_orphan(pid)

    def _wait(self) -> tuple[int, int]:
        """A process that has ended, or 0 where services are to be started meanwhile."""
        try:
            return os.waitpid(-1, os.WNOHANG if self._down else 0)
        except ChildProcessError:
            time.sleep(RESTART_DELAY)
            return 0, 0

    def _restart(self) -> None:
        """Starts what is down. What cannot be started stays down, and is tried again."""
        down, self._down = self._down, []
        for service in down:
            try:
                self.start(service)
            except (OSError, subprocess.SubprocessError) as error:
                # Whatever one service lacks, the others must not end with process 1.
                self._note(service, f"could not be started again: {error}")
                self._down.append(service)

    def _note(self, service: Service, text: str) -> None:
        with (self.logs / f"{service.name}.log").open("a") as log:
            log.write(f"--- {service.name} {text}\n")
