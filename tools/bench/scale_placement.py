"""Rate of pod bindings in a large cluster, for gangs with Volcano and for plain pods."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from devcluster.lifecycle import Cluster
from infra.manifests import Manifest
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
from tools.bench.scale_gangs import Gangs, PodWatch

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

    They limit the rate of the slowest round, and the number of partially bound gangs in all rounds.
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
