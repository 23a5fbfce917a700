"""Output of a run, read from files on its nodes, which works without an API server."""

import contextlib
import json
import threading
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from tests.cluster.load import Background


@dataclass(frozen=True)
class Event:
    """Event of the training program; `at` is the container runtime's timestamp in seconds."""

    at: float
    body: dict[str, Any]


class Timeline(Background):
    """Log lines of a pod, read from one file per container, even after the pod was deleted.

    Format of the lines: `TIME STREAM TAG TEXT` (Kubernetes' CRI logging format).
    """

    def __init__(self, state: Path, pod: str) -> None:
        super().__init__()
        self._nodes, self._pod = state / "nodes", pod
        self._files: dict[Path, BufferedReader] = {}
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def events(self, kind: str = "") -> list[Event]:
        """Return all events so far in order, or only the events of one kind."""
        with self._lock:
            found = sorted(self._events, key=lambda event: event.at)
        return [event for event in found if not kind or event.body["event"] == kind]

    def highest_step(self) -> int:
        """Return the highest step."""
        return max((event.body["step"] for event in self.events("step")), default=0)

    def _work(self) -> None:
        with contextlib.ExitStack() as opened:
            while not self._ending.wait(0.2):
                self._read(opened)

    def _read(self, opened: contextlib.ExitStack) -> None:
        pattern = f"*/var/upper/log/pods/*_{self._pod}_*/*/*.log"
        for path in self._nodes.glob(pattern):
            if path not in self._files:
                with contextlib.suppress(FileNotFoundError):
                    # An open file can still be read after the pod's directory was deleted.
                    self._files[path] = opened.enter_context(path.open("rb"))
        for file in self._files.values():
            while (line := file.readline()).endswith(b"\n"):
                self._take(line.decode())
            file.seek(-len(line), 1)

    def _take(self, line: str) -> None:
        time, _, _, text = line.rstrip("\n").split(" ", 3)
        if text.startswith('{"event"'):
            with self._lock:
                self._events.append(Event(_seconds(time), json.loads(text)))


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
