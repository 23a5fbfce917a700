"""Rate of pod bindings in a large cluster, for gangs with Volcano and for plain pods."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from devcluster.lifecycle import Cluster
from infra.manifests import Manifest
from kube.names import RUN_LABEL
from tools.bench.outcome import Goal, print_line
from tools.bench.scale_cluster import (
    NAMESPACE,
    PODS,
    VOLCANO_JOBS,
    create,
    delete_all,
    gangs,
    plain_pods,
    prerequisites,
    settings_of,
    simulated_cluster,
)

VOLCANO, PLAIN = "Volcano, gangs", "kube-scheduler, plain pods"
MIN_RATE = 60.0
MIN_PAUSE = 1.0
"""Pause (s) in binding after which an incomplete gang counts as partially bound.

It equals one scheduling cycle of Volcano, in which all pods of a gang are bound.
"""
_TIMEOUT = 600.0


def placement(nodes: int, jobs: int, pods: int, repetitions: int) -> dict[str, Any]:
    """Measure gangs and plain pods alternately.

    Each round creates `jobs` jobs with `pods` pods of eight GPUs each.
    """
    samples: dict[str, list[dict[str, Any]]] = {VOLCANO: [], PLAIN: []}
    settings = settings_of(jobs, pods)
    volcano_jobs = gangs(settings)
    with simulated_cluster(nodes) as cluster:
        create(cluster, prerequisites(settings))
        _await_claim(cluster)
        for turn in range(repetitions):
            for name, rounds in samples.items():
                objects = volcano_jobs
                if name == PLAIN:
                    objects = [pod for job in volcano_jobs for pod in plain_pods(job)]
                print_line(
                    f"{turn + 1}/{repetitions} {name}: {jobs} jobs of {pods} pods, {nodes} nodes"
                )
                rounds.append(_round(cluster, name, objects, jobs * pods, pods))
                _print(rounds[-1])
    return {"nodes": nodes, "jobs": jobs, "podsPerJob": pods, "rounds": samples}


def placement_goals(result: dict[str, Any]) -> list[Goal]:
    """Return the goals for Volcano.

    They apply to the rate of the slowest round, and to the number of partially bound gangs in all
    rounds.
    """
    rounds = result["rounds"][VOLCANO]
    rate = min(found["podsPerSecond"] for found in rounds)
    partial = sum(found["partialGangs"] for found in rounds)
    return [
        Goal("Volcano, pods bound per second", rate, MIN_RATE),
        Goal("gangs left partially bound during a pause", partial, 0, at_most=True),
    ]


def _round(
    cluster: Cluster, name: str, objects: list[Manifest], total: int, size: int
) -> dict[str, Any]:
    observed = Gangs(size)
    watch = PodWatch(cluster.kubectl, PODS, observed)
    began = time.monotonic()
    try:
        create(cluster, objects)
        submitted = time.monotonic()
        while observed.count < total:
            if watch.problem or time.monotonic() - began > _TIMEOUT:
                problem = (
                    watch.problem
                    or f"only {observed.count} of {total} pods are scheduled after {_TIMEOUT:.0f} s"
                )
                sys.exit(f"{name}: {problem}")
            print_line(f"  {observed.count} of {total} pods are scheduled")
            time.sleep(2)
    finally:
        watch.stop()
    delete_all(cluster, VOLCANO_JOBS, PODS)
    return {**observed.summary(began, submitted, MIN_PAUSE), "watchStreams": watch.streams}


def _await_claim(cluster: Cluster) -> None:
    # An unbound claim would delay the first gangs.
    bound = ["--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "--timeout=60s"]
    command = [*cluster.kubectl, "wait", "-n", NAMESPACE, *bound]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _print(found: dict[str, Any]) -> None:
    binding = found["gangBindingSeconds"]
    print_line(
        f"  {found['podsPerSecond']} pods/s "
        f"({found['podsPerSecondFromFirstBinding']} after the first binding); first to last pod "
        f"of a gang: median {binding['median']} s, maximum {binding['maximum']} s; "
        f"{found['partialGangs']} gangs were left partially bound during a pause"
    )


@dataclass
class Gangs:
    """Pod bindings of each gang, in the order of their events. A complete gang has `size` pods.

    Each pod is bound by a separate request, so the bindings of a gang arrive one after another,
    interleaved with those of other gangs. A gang is partial if only some of its pods are
    scheduled while no pod is being bound.
    """

    size: int
    bindings: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    events: int = 0
    """Number of recorded events."""

    def record(self, gang: str, pod: str, node: str | None, timestamp: float) -> None:
        """Record a pod event. `timestamp` is a time in seconds."""
        self.events += 1
        if node is not None:
            self.bindings[gang].setdefault(pod, timestamp)

    @property
    def count(self) -> int:
        """Number of scheduled pods."""
        return sum(len(pods) for pods in list(self.bindings.values()))

    def partial_gangs(self, min_pause: float) -> set[str]:
        """Return the gangs that were only partly scheduled when binding stalled or ended.

        Binding stalls if no pod is bound for more than `min_pause` seconds. A gang that is still
        being bound does not count.
        """
        bindings = sorted(
            (timestamp, gang) for gang, pods in self.bindings.items() for timestamp in pods.values()
        )
        found: set[str] = set()
        counts: Counter[str] = Counter()
        for (timestamp, gang), (following, _) in zip(
            bindings, [*bindings[1:], (math.inf, "")], strict=True
        ):
            counts[gang] += 1
            if following - timestamp > min_pause:
                found |= {name for name, count in counts.items() if count < self.size}
        return found

    def binding_seconds(self) -> list[float]:
        """Return, for each gang, the seconds between its first and last binding."""
        return [max(pods.values()) - min(pods.values()) for pods in self.bindings.values()]

    def summary(self, began: float, submitted: float, min_pause: float) -> dict[str, Any]:
        """Return the rates and partial gangs of a round, given its start and submission times."""
        timestamps = sorted(each for pods in self.bindings.values() for each in pods.values())
        first, last = timestamps[0], timestamps[-1]
        seconds = self.binding_seconds()
        return {
            "pods": len(timestamps),
            "secondsToSubmit": round(submitted - began, 3),
            "secondsToFirstBinding": round(first - began, 3),
            "secondsToLastBinding": round(last - began, 3),
            "podsPerSecond": round(len(timestamps) / (last - began), 1),
            "podsPerSecondFromFirstBinding": round(len(timestamps) / max(last - first, 1e-3), 1),
            "eventsObserved": self.events,
            "partialGangs": len(self.partial_gangs(min_pause)),
            "gangBindingSeconds": {
                "median": round(statistics.median(seconds), 3),
                "maximum": round(max(seconds), 3),
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
