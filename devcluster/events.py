"""Steps of the cluster's start: written by the processes inside, followed from outside."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One step that a node has reached. `time` is seconds since the epoch."""

    time: float
    node: str
    step: str
    ready: bool = False
    error: str = ""


@dataclass(frozen=True)
class EventLog:
    """An append-only file of events; short lines are written whole, so writers need no lock."""

    path: Path

    def add(self, node: str, step: str, *, ready: bool = False, error: str = "") -> None:
        """Appends one event, stamped with the present time."""
        event = {"time": time.time(), "node": node, "step": step, "ready": ready, "error": error}
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def read(self) -> Iterator[Event]:
        """The complete lines so far."""
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield Event(**json.loads(line))
