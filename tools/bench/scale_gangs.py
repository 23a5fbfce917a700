"""Pod bindings of each gang, and the watch that records them."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kube.names import RUN_LABEL


@dataclass
class Gangs:
    """Pod bindings of each gang, in the order of their events. A complete gang has `size` pods.

    Each pod is bound by a separate request, so the bindings of a gang arrive one after another,
    interleaved with those of other gangs. A gang is partial if only some of its pods are
    scheduled while no pod is being bound.
    """

    size: int
    bound: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    events: int = 0
    """Number of recorded events."""

    def record(self, gang: str, pod: str, node: str | None, moment: float) -> None:
        """Record a pod event. `moment` is a time in seconds."""
        self.events += 1
        if node is not None:
            self.bound[gang].setdefault(pod, moment)

    @property
    def count(self) -> int:
        """Number of scheduled pods."""
        return sum(len(pods) for pods in list(self.bound.values()))

    def partial(self, rest: float) -> set[str]:
        """Return the gangs that were partial during a pause of more than `rest` s, or at the end.

        In a pause, no pod is bound. Gangs that are being bound do not count, because their bindings
        follow each other without such a pause.
        """
        moments = sorted((moment, g) for g, pods in self.bound.items() for moment in pods.values())
        found: set[str] = set()
        counts: Counter[str] = Counter()
        for (moment, gang), (following, _) in zip(
            moments, [*moments[1:], (math.inf, "")], strict=True
        ):
            counts[gang] += 1
            if following - moment > rest:
                found |= {name for name, count in counts.items() if count < self.size}
        return found

    def spreads(self) -> list[float]:
        """Return the seconds from the first to the last bound pod of each gang."""
        return [max(pods.values()) - min(pods.values()) for pods in self.bound.values()]

    def summary(self, began: float, submitted: float, rest: float) -> dict[str, Any]:
        """Return the rates and partial gangs of a round, given its start and submission times."""
        moments = sorted(moment for pods in self.bound.values() for moment in pods.values())
        last = moments[-1]
        spreads = self.spreads()
        return {
            "pods": len(moments),
            "secondsToSubmit": round(submitted - began, 3),
            "secondsToFirstBinding": round(moments[0] - began, 3),
            "secondsToLastBinding": round(last - began, 3),
            "podsPerSecond": round(len(moments) / (last - began), 1),
            "podsPerSecondFromFirstBinding": round(len(moments) / max(last - moments[0], 1e-3), 1),
            "momentsObserved": self.events,
            "partialGangs": len(self.partial(rest)),
            "secondsFromFirstToLastPodOfAGang": {
                "median": round(statistics.median(spreads), 3),
                "maximum": round(max(spreads), 3),
            },
        }


class PodWatch:
    """Watch of the pods under an API path. It reports new and changed pods to `gangs`.

    The API server may end a stream at any time. The next stream starts at the last resource
    version, so no event is missed.
    """

    def __init__(self, kubectl: Sequence[str], path: str, gangs: Gangs) -> None:
        self._get = [*kubectl, "get", "--raw"]
        self._path = path
        self._gangs = gangs
        self._stopped = False
        self._process: subprocess.Popen[str] | None = None
        self.streams = 0
        self.problem: str | None = None
        first = subprocess.run(
            [*self._get, f"{self._path}?limit=1"], capture_output=True, text=True, check=True
        )
        self._version = str(json.loads(first.stdout)["metadata"]["resourceVersion"])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Stop the watch."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
        self._reader.join()

    def _read(self) -> None:
        while not self._stopped and self.problem is None:
            self.streams += 1
            query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
            with subprocess.Popen(
                [*self._get, f"{self._path}?{query}"], stdout=subprocess.PIPE, text=True
            ) as process:
                self._process = process
                assert process.stdout is not None  # noqa: S101  it is a pipe
                for line in process.stdout:
                    self._process_event(json.loads(line))

    def _process_event(self, event: dict[str, Any]) -> None:
        pod = event["object"]
        if event["type"] == "ERROR":
            self.problem = f"the pod watch cannot continue: {pod.get('message', pod)}"
            return
        self._version = pod["metadata"]["resourceVersion"]
        if event["type"] in ("ADDED", "MODIFIED"):
            metadata = pod["metadata"]
            gang = metadata.get("labels", {}).get(RUN_LABEL, "")
            node = pod["spec"].get("nodeName")
            self._gangs.record(gang, metadata["name"], node, time.monotonic())
