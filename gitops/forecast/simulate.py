"""Simulation of a snapshot, with or without changes, in a temporary cluster."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final

from gitops.forecast.answer import Answer, GangAnswer, QueueAnswer, Victim, combine
from gitops.forecast.capacity import fragmented, free, free_devices
from gitops.forecast.replay import Replay, SimulatedGang
from gitops.forecast.sandbox import PERIOD, Sandbox, sandbox
from gitops.forecast.state import State
from gitops.runs.snapshot import accelerators

HORIZON: Final = 20
"""Default number of finished gangs after which a simulation ends."""
REPETITIONS: Final = 3
"""Default number of simulations if the scheduler may evict pods. Otherwise, the default is 1."""
_STALE_SECONDS: Final = 3600


@dataclass(frozen=True)
class _ReplayResult:
    """A completed replay, with the cluster's usage after the scheduler's first decisions."""

    replay: Replay
    used: Counter[str]
    free: int
    fragmented: int


def simulate(
    state: State,
    now: datetime,
    horizon: int = HORIZON,
    *,
    base: State | None = None,
    repeat: int | None = None,
) -> Answer:
    """Simulate `state` in a temporary cluster.

    The simulation ends when no gang is waiting, when `horizon` gangs have finished, or when no
    running gang has a known end.

    `base`, the snapshot without the change, is simulated once for comparison. `state` is simulated
    `repeat` times (default: see `REPETITIONS`): first with gangs of the same age in alphabetical
    order, then in random orders.

    Raises:
        GitopsError: If the simulated cluster does not start or rejects the snapshot.
    """
    with sandbox(state.scheduler_configuration, state.volcano) as cluster:
        baseline = None
        if base is not None:
            baseline = _replay(Replay(cluster, base), horizon).replay
        answers = []
        for shuffle in orders(state, repeat):
            cluster.clear()
            replayed = _replay(Replay(cluster, state, shuffle), horizon)
            answers.append(_answer(replayed, baseline, base or state, now))
    return combine(answers)


def orders(state: State, repeat: int | None = None) -> Iterator[Random | None]:
    """Yield, for each simulation, the generator that shuffles gangs of the same age.

    The first value is None, which stands for alphabetical order. The generators are seeded, so
    their results are reproducible.
    """
    default = REPETITIONS if state.evicts else 1
    yield None
    for seed in range(1, default if repeat is None else repeat):
        yield Random(seed)  # noqa: S311  no secrets


def simulate_in(
    cluster: Sandbox, state: State, horizon: int = HORIZON, shuffle: Random | None = None
) -> Answer:
    """Simulate `state` in an empty cluster.

    `shuffle` determines the order of gangs of the same age.
    """
    replay = Replay(cluster, state, shuffle)
    return _answer(_replay(replay, horizon), None, state, state.taken)


def _answer(replayed: _ReplayResult, baseline: Replay | None, base: State, now: datetime) -> Answer:
    replay, last = replayed.replay, replayed.replay.used_by_queue()
    state = replay.state
    before: Counter[str] = Counter()
    for gang in base.gangs:
        for shape in gang.pods:
            before[gang.queue] += len(shape.nodes) * accelerators(shape.requests).total()
    names = dict.fromkeys([*(queue.name for queue in state.queues), *before, *replayed.used])
    return Answer(
        taken=state.taken,
        age_seconds=state.age(now).total_seconds(),
        ends=replay.ends,
        horizon_seconds=replay.now,
        gpus=sum(accelerators(node.allocatable).total() for node in state.nodes),
        free=replayed.free,
        fragmented=replayed.fragmented,
        gangs=[*_verdicts(replay, baseline), *_suspended_answers(state)],
        victims=_victims(replay, baseline),
        queues=[
            QueueAnswer(
                queue=name, before=before[name], after=replayed.used[name], at_horizon=last[name]
            )
            for name in names
            if name != "root"
        ],
        compared=baseline is not None,
        assumptions=list(_assumptions(replay, now)),
    )


def _replay(replay: Replay, horizon: int) -> _ReplayResult:
    replay.start()
    left = free(replay.state.nodes, (pod for run in replay.runs for pod in run.pods))
    waiting = [shape for run in replay.runs if run.start is None for shape in run.gang.pods]
    counts = free_devices(left), fragmented(left, waiting)
    replayed = _ReplayResult(replay, replay.used_by_queue(), *counts)
    while replay.ends < horizon and any(run.start is None for run in replay.runs):
        if not replay.advance():
            break
    return replayed


def _verdicts(replay: Replay, baseline: Replay | None) -> Iterator[GangAnswer]:
    baseline_runs = {run.gang.key: run for run in baseline.runs} if baseline is not None else {}
    for run in replay.runs:
        unchanged = baseline_runs.get(run.gang.key)
        yield GangAnswer.model_validate(
            {
                "namespace": run.gang.namespace,
                "name": run.gang.name,
                "queue": run.gang.queue,
                "gpus": run.gpus,
                "verdict": _verdict(run),
                "verdicts": {_verdict(run): 1},
                "start_seconds": run.start,
                "end_seconds": run.end_or_estimate,
                "start_without_seconds": unchanged and unchanged.start,
                "end_without_seconds": unchanged and unchanged.end_or_estimate,
                "added": baseline is not None and unchanged is None,
                "reason": run.reason,
            }
        )


def _verdict(run: SimulatedGang) -> str:
    if run.start is None:
        return "waits"
    if run.started_before_snapshot:
        return "runs"
    return "starts later" if run.start > 0 else "starts at once"


def _victims(replay: Replay, baseline: Replay | None) -> list[Victim]:
    evicted_without_change = (
        {(v.namespace, v.name) for v in baseline.victims} if baseline is not None else set()
    )
    return [
        victim.model_copy(
            update={"without_change": (victim.namespace, victim.name) in evicted_without_change}
        )
        for victim in replay.victims
    ]


def _suspended_answers(state: State) -> list[GangAnswer]:
    return [
        GangAnswer(
            namespace=gang.namespace,
            name=gang.name,
            queue=gang.queue,
            gpus=sum(accelerators(s.requests).total() * s.count for s in gang.pods),
            verdict="suspended",
            verdicts={"suspended": 1},
        )
        for gang in state.gangs
        if gang.state == "suspended"
    ]


def _assumptions(replay: Replay, now: datetime) -> list[str]:
    state = replay.state
    notes = list(state.notes)
    if (age := state.age(now).total_seconds()) > _STALE_SECONDS:
        notes.append(f"the snapshot is {age / 3600:.1f} h old: gangs may have finished since then")
    if not state.nodes:
        notes.append("the snapshot has no nodes, so nothing can start")
    if state.scheduler_configuration is None:
        notes.append("the scheduler's configuration is unknown: Volcano's default is used")
    if replay.rejects_configuration:
        notes.append("Volcano rejects the scheduler's configuration: Volcano's default is used")
    if state.volcano == replay.volcano:
        notes.append(f"the target cluster and the simulation both run Volcano {replay.volcano}")
    else:
        version = "an unknown version of Volcano" if state.volcano is None else state.volcano
        notes.append(
            f"the target cluster runs {version}, but the simulation runs Volcano {replay.volcano}"
        )
    notes.append(f"the scheduler considers all gangs every {PERIOD} s instead of every second")
    endless = sum(run.remaining is None for run in replay.runs)
    if endless:
        notes.append(f"gangs that run beyond the horizon because their end is unknown: {endless}")
    notes.append(
        "gangs with a known end finish at the time estimated from their logs, or at their deadline"
    )
    lost = {(victim.namespace, victim.name) for victim in replay.victims}
    if any(run.gang.saved is None and run.gang.key in lost for run in replay.runs):
        notes.append(
            "the checkpoints of some evicted gangs are unknown, so the lost GPU-hours of these "
            "gangs are counted from the start of each gang"
        )
    notes.append(
        "quotas, volumes, network topologies, and new pods outside gangs are not simulated"
    )
    if replay.evicts:
        notes.append(
            "the scheduler chooses among equal gangs at random, so it may evict different "
            "gangs in the target cluster"
        )
    if replay.unsettled:
        notes.append(
            "the scheduler reached no stable placement: results may differ in the target cluster"
        )
    return notes
