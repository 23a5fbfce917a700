"""Gangs into which faults are injected, and changes to their pods."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.platform import await_
from tests.faults.timeline import Timeline

Change = Callable[[dict[str, Any]], None]
"""Function that changes a gang's pod before the gang is submitted."""


def slow_steps(delay: float) -> Change:
    """Set the seconds per step, so that training outlasts a slow fault."""

    def change(pod: dict[str, Any]) -> None:
        container = pod["containers"][0]
        container["command"] = [
            f"--step-delay={delay}" if part.startswith("--step-delay=") else part
            for part in container["command"]
        ]

    return change


# Like torchrun, both pods of a new gang resolve the first pod's name in the cluster's DNS. Then
# they exit.
_LOOK_UP: Final = """
import os, socket, time
for _ in range(300):
    try:
        socket.getaddrinfo(os.environ["MASTER_ADDR"], 23456)
        break
    except socket.gaierror as error:
        failure = error
        time.sleep(0.2)
else:
    raise failure
"""


def resolve_rank_0(pod: dict[str, Any]) -> None:
    """Make the pod resolve the name of rank 0 and exit, instead of training."""
    container = pod["containers"][0]
    container["command"] = ["python3", "-c", _LOOK_UP]
    container.pop("args", None)


@dataclass(frozen=True)
class Gang:
    """Training run into which a fault is injected."""

    name: str
    timeline: Timeline
    pods: tuple[str, str]
    """Names of the pods of rank 0 and 1, used to find log files and objects."""

    def await_step(self, step: int) -> None:
        await_(lambda: self.timeline.highest_step() >= step, f"{self.name}: step {step}")

    def await_end(self) -> None:
        finished = self.timeline.events
        await_(lambda: bool(finished("finished")), f"{self.name} has finished")
