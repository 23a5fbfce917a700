"""Assertions for scheduling tests: which pods have nodes, and whether gangs stay complete."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.platform import await_
from tests.cluster.scheduling import Scheduling

GANGS = {"preempt": "gangs", "reclaim": "gangs"}
VOLCANO: dict[str, Any] = {
    "scheduler": GANGS,
    "queues": {
        "vision": {"weight": 2, "capability": {"nvidia.com/gpu": 24}},
        "language": {"weight": 1, "capability": {"nvidia.com/gpu": 24}},
        "small": {"capability": {"nvidia.com/gpu": 8}},
    },
    "priority_classes": {"batch": {"value": 1000}, "urgent": {"value": 2000}},
}
"""Queues for the scheduling tests' cluster of three nodes with eight GPUs each."""
RACK = "topology.example.com/rack"


def placed(volcano: Scheduling, **pods: int) -> None:
    """Wait until exactly these numbers of pods per job have nodes, and check that they stay."""
    wanted = {name.replace("_", "-"): count for name, count in pods.items()}
    await_(lambda: volcano.placed() == wanted, f"{wanted} placed")
    for _ in range(3):
        time.sleep(0.5)
        assert volcano.placed() == wanted


def poll_placements(
    volcano: Scheduling, until: Callable[[], bool], what: str
) -> list[dict[str, int]]:
    """Return the number of pods with nodes by job, for every poll until a condition holds."""
    seen = []

    def poll() -> bool:
        seen.append(dict(volcano.placed()))
        return until()

    await_(poll, what)
    return seen


def never_partial(seen: list[dict[str, int]], job: str, size: int) -> bool:
    """Return whether the gang was never partial for longer than it takes to bind its pods."""
    partial = [pods.get(job, 0) not in (0, size) for pods in seen]
    return not any(first and then for first, then in itertools.pairwise(partial))


MALFORMED_QUEUE = {
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "kind": "Queue",
    "metadata": {"name": "malformed"},
    "spec": {"weight": 1, "guarantee": {"resource": {"nvidia.com/gpu": 8}}},
}
"""Queue whose guarantee exceeds its `deserved` resources."""
WEBHOOK = 'admission webhook "validatequeue.volcano.sh" denied the request'
