"""PID 1 of a PID namespace: it starts services, restarts them, and reaps other processes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

RESTART_DELAY = 1.0


@dataclass(frozen=True)
class Service:
    """A process that runs as long as its PID namespace exists."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_fds: tuple[int, ...] = ()
    before: Callable[[], None] | None = None
    """Called in the child process before the program starts."""


class Supervisor:
    """Process that starts services, restarts them, and writes a log file for each.

    SIGTERM terminates the supervisor and, because it is PID 1, all services.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.running: dict[int, Service] = {}
        self.on_orphan: Callable[[int], None] | None = None
        self._exited: list[Service] = []

    def start(self, service: Service) -> int:
        """Start a service and return its process ID."""
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
        # Keep Popen from reaping the process: the supervisor does that.
        process.returncode = 0
        self.running[process.pid] = service
        # An error, such as a full disk, must not make the caller start the service a second time.
        with suppress(OSError):
            (self.logs / f"{service.name}.pid").write_text(str(process.pid))
        return process.pid

    def run_forever(self) -> NoReturn:
        """Restart services that exit, and pass other exited processes to `on_orphan`."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while True:
            self._handle(*self._wait())
            if self._exited:
                time.sleep(RESTART_DELAY)
                self._restart()

    def restart_exited(self) -> None:
        """Restart services that have exited, for callers that cannot call `run_forever` yet.

        Call this method only while no other child process is running. Otherwise, the exit status of
        that process could be lost.
        """
        with suppress(ChildProcessError):
            while (exited := os.waitpid(-1, os.WNOHANG))[0]:
                self._handle(*exited)
        self._restart()

    def _handle(self, pid: int, status: int) -> None:
        service = self.running.pop(pid, None)
        if service is not None:
            code = os.waitstatus_to_exitcode(status)
            self._note(service, f"exited with {code}; restarting")
            self._exited.append(service)
        elif pid and self.on_orphan is not None:
            self.on_orphan(pid)

    def _wait(self) -> tuple[int, int]:
        """Return the ID and status of an exited process, or zeros if there is none yet."""
        try:
            return os.waitpid(-1, os.WNOHANG if self._exited else 0)
        except ChildProcessError:
            time.sleep(RESTART_DELAY)
            return 0, 0

    def _restart(self) -> None:
        """Start services that exited. A service that fails to start is retried later."""
        exited, self._exited = self._exited, []
        for service in exited:
            try:
                self.start(service)
            except (OSError, subprocess.SubprocessError) as error:
                # The failure of one service must not terminate PID 1 and thus all other services.
                self._note(service, f"could not be restarted: {error}")
                self._exited.append(service)

    def _note(self, service: Service, text: str) -> None:
        # A full disk must not terminate PID 1 and thus all services.
        with suppress(OSError), (self.logs / f"{service.name}.log").open("a") as log:
            log.write(f"--- {service.name} {text}\n")


API_READY: Final = "API server is ready"
"""Step after which kubectl can be used."""


@dataclass(frozen=True)
class Event:
    """A startup step that a node has reached."""

    time: float
    """Seconds since the epoch."""
    node: str
    step: str
    ready: bool = False
    error: str = ""


@dataclass(frozen=True)
class EventLog:
    """Append-only file of events. Short lines are written atomically, so writers need no lock."""

    path: Path

    def add(self, node: str, step: str, *, ready: bool = False, error: str = "") -> None:
        """Append an event with the current time."""
        event = {"time": time.time(), "node": node, "step": step, "ready": ready, "error": error}
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def read(self) -> Iterator[Event]:
        """Yield the events of all complete lines."""
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield Event(**json.loads(line))
