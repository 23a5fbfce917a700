"""Random snapshots of clusters and random plans, for `make bench-simulation`."""

from datetime import UTC, datetime, timedelta
from random import Random
from statistics import mean
from typing import Final

from gitops.forecast.state import Gang, Node, PodShape, PriorityClass, Queue, State
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration

_GPU: Final = "nvidia.com/gpu"
_GPUS_PER_NODE: Final = 8
_ALLOCATABLE: Final = {"cpu": "96", "memory": "1Ti", "pods": "110", _GPU: str(_GPUS_PER_NODE)}
_SNAPSHOT_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PRIORITIES: Final = {"low": 100, "middle": 1000, "high": 2000}
_POD_COUNTS: Final = [1, 1, 2, 4, 8]
_GPUS_PER_POD: Final = [1, 2, 4, 8, 8]
_MEAN_GPUS_PER_GANG: Final = mean(_POD_COUNTS) * mean(_GPUS_PER_POD)
_ELASTIC_SHARE: Final = 0.3


def _scheduler(**settings: str) -> str:
    return scheduler_configuration(SchedulerSettings.model_validate(settings), hierarchical=False)


DEFAULT: Final = _scheduler()
"""Default Volcano configuration of a stack."""
SCHEDULERS: Final = [
    _scheduler(preempt=preempt, reclaim=reclaim)
    for preempt in ("gangs", "none")
    for reclaim in ("gangs", "none")
]
"""Configurations for all combinations of preemption and reclaim, each enabled or disabled."""


def random_state(random: Random, nodes: int, gangs: int, scheduler: str) -> State:
    """Return a cluster snapshot in which gangs that fit are running and other gangs are waiting.

    On average, the gangs request 1.5 times as many GPUs as the nodes have.
    """
    scale = 1.5 * nodes * _GPUS_PER_NODE / (gangs * _MEAN_GPUS_PER_GANG)
    pool = random.randrange(10**6)
    free = {f"node-{pool}-{n}": _GPUS_PER_NODE for n in range(nodes)}
    queues = [f"queue-{n}" for n in range(random.randint(1, 4))]
    state_gangs = []
    for number in range(gangs):
        gang = _gang(random, f"run-{number}", queues, gangs - number, scale)
        state_gangs.append(_placed(random, gang, free))
    return State(
        taken=_SNAPSHOT_TIME,
        scheduler_configuration=scheduler,
        nodes=[Node(name=name, allocatable=_ALLOCATABLE) for name in free],
        queues=[Queue(name=name, spec={"weight": random.randint(1, 4)}) for name in queues],
        priority_classes=[PriorityClass(name=n, value=v) for n, v in _PRIORITIES.items()],
        gangs=state_gangs,
    )


def random_plan(random: Random, state: State) -> State:
    """Return the snapshot after a plan that adds new gangs and removes some existing ones."""
    kept = [gang for gang in state.gangs if random.random() > 0.1]
    queues = [queue.name for queue in state.queues]
    number = random.randint(1, 5)
    added = [_gang(random, f"new-{n}", queues) for n in range(number)]
    return state.model_copy(update={"gangs": [*kept, *added]})


def _gang(random: Random, name: str, queues: list[str], minutes: int = 0, scale: float = 1) -> Gang:
    count, gpus = random.choice(_POD_COUNTS), random.choice(_GPUS_PER_POD)
    count = max(round(count * scale), 1)
    priority = random.choice(list(_PRIORITIES))
    elastic = count > 1 and random.random() < _ELASTIC_SHARE
    return Gang(
        namespace="ml",
        name=name,
        state="pending",
        queue=random.choice(queues),
        priority_class=priority,
        priority=_PRIORITIES[priority],
        minimum=count // 2 if elastic else count,
        created=_SNAPSHOT_TIME - timedelta(minutes=minutes),
        deadline_seconds=random.randint(10, 1440) * 60.0 + minutes,
        pods=[PodShape(count=count, requests={_GPU: str(gpus), "cpu": str(gpus)})],
    )


def _placed(random: Random, gang: Gang, free: dict[str, int]) -> Gang:
    """Return the gang placed on nodes with free GPUs, or unchanged if it does not fit."""
    (shape,) = gang.pods
    gpus = int(shape.requests[_GPU])
    nodes: list[str] = []
    left = dict(free)
    for name in random.sample(list(left), len(left)):
        while left[name] >= gpus and len(nodes) < shape.count:
            left[name] -= gpus
            nodes.append(name)
    if len(nodes) < shape.count:
        return gang
    free.update(left)
    age = random.randint(0, int(gang.deadline_seconds or 0) // 2)
    return gang.model_copy(
        update={
            "state": "running",
            "started": _SNAPSHOT_TIME - timedelta(seconds=age),
            "pods": [shape.model_copy(update={"nodes": nodes})],
        }
    )
