"""State of Volcano's scheduler in a simulated cluster, read from its log."""

import re
from pathlib import Path
from typing import Final, Self

_EVENT: Final = re.compile(
    rb"preempt\.go:\d+\] No preemptors in Queue <([^>]+)>"
    rb"|\] Added pod <[^/>]+/(marker-[^>]+)> into cache"
    rb"|\] (Open|Close) Session "
)
"""Log lines that the scheduler writes after preemption in a queue, when it learns of a marker pod,
when it has read the state of the cluster for a session, and at the end of the session."""
_SESSION_SIZE: Final = re.compile(
    rb'\] "SnapShot for scheduling" jobNum=(\d+) .*NodeNum=(\d+)'
    rb"|\] There are <(\d+)> Jobs, .* <(\d+)> Nodes in total"
)
"""Log line with the numbers of gangs and nodes in a session (formats of Volcano 1.14 and 1.10)."""
_CONFIGURED: Final = re.compile(
    rb"\] (?:Finished loading scheduler config|Successfully loaded Scheduler conf).*"
    rb" actions[=:] ?\[([^]]*)\]"
)
"""Log line with the actions of a configuration that the scheduler has just loaded."""


class SchedulerLog:
    """State of the scheduler according to its log, as of the last call to `read`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.opened = self.sessions = 0
        """Numbers of started and completed sessions."""
        self.queues: list[str] = []
        """Queues that the last session considered for preemption, in order of consideration."""
        self.last_session_as_first: dict[str, int] = {}
        """Maps each queue to the last session that considered this queue first for preemption."""
        self._unfinished: list[str] = []
        self.gangs = self.nodes = 0
        """Numbers of gangs and nodes in the last session."""
        self.markers: dict[str, int] = {}
        """Maps each known marker pod to the number of sessions that ended before it was added."""
        self.configuration_reads = 0
        """Number of times that the configuration was read."""
        self.actions = ""
        """Names of the configured actions, separated by spaces."""

    def read(self) -> Self:
        """Read the new lines. An incomplete last line is read again next time."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            new = log.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._position += len(complete)
        for event in _EVENT.finditer(complete):
            queue, marker, session = event.groups()
            if queue is not None:
                self._unfinished.append(queue.decode())
                continue
            if marker is not None:
                self.markers[marker.decode()] = self.sessions
                continue
            if session == b"Open":
                self.opened += 1
                continue
            self.sessions += 1
            self.queues, self._unfinished = self._unfinished, []
            for first in self.queues[:1]:
                self.last_session_as_first[first] = self.sessions
        for numbers in _SESSION_SIZE.findall(complete)[-1:]:
            self.gangs, self.nodes = (int(number) for number in numbers if number)
        configured = _CONFIGURED.findall(complete)
        self.configuration_reads += len(configured)
        for actions in configured[-1:]:
            self.actions = actions.decode()
        return self
