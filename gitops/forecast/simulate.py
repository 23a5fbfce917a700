"""Simulation of a changed snapshot, from the sandbox to the answer."""

from collections import Counter
from datetime import datetime
from typing import Final

from gitops.forecast.answer import Answer, GangAnswer, QueueAnswer
from gitops.forecast.objects import amounts
from gitops.forecast.replay import Replay, Run
from gitops.forecast.sandbox import PERIOD, sandbox
from gitops.forecast.shapes import add
from gitops.forecast.state import State
from gitops.runs.snapshot import devices

HORIZON: Final = 20
_OLD: Final = 3600


def simulate(state: State, now: datetime, horizon: int = HORIZON) -> Answer:
    """Simulate until nothing waits, or for `horizon` ends of gangs.

    Raises:
        GitopsError: If the simulated cluster does not start or refuses the snapshot.
    """
    before: Counter[str] = Counter()
    for gang in state.gangs:
        for shape in gang.pods:
            before[gang.queue] += len(shape.nodes) * devices(shape.requests).total()
    with sandbox(state.scheduler_configuration) as cluster:
        replay = Replay(cluster, state)
        replay.start()
        after, free = replay.used_by_queue(), _free(state, replay.runs)
        fragmented = _fragmented(state, replay.runs)
        while replay.ends < horizon and any(r.start is None for r in replay.runs):
            if not replay.advance():
                break
        last = replay.used_by_queue()
    names = dict.fromkeys([*(queue.name for queue in state.queues), *before, *after])
    return Answer(
        taken=state.taken,
        age_seconds=state.age(now).total_seconds(),
        ends=replay.ends,
        horizon_seconds=replay.now,
        gpus=sum(devices(node.allocatable).total() for node in state.nodes),
        free=free,
        fragmented=fragmented,
        gangs=[*map(_verdict, replay.runs), *_suspended(state)],
        victims=replay.victims,
        queues=[
            QueueAnswer(queue=name, before=before[name], after=after[name], at_horizon=last[name])
            for name in names
            if name != "root"
        ],
        assumptions=list(_assumptions(state, replay, now)),
    )


def _verdict(run: Run) -> GangAnswer:
    if run.start is None:
        verdict = "waits"
    elif run.before:
        verdict = "runs"
    else:
        verdict = "starts later" if run.start > 0 else "starts at once"
    return GangAnswer.model_validate(
        {
            "namespace": run.gang.namespace,
            "name": run.gang.name,
            "queue": run.gang.queue,
            "gpus": run.gpus,
            "verdict": verdict,
            "start_seconds": run.start,
            "end_seconds": run.end if run.end is not None else run.expected_end,
            "reason": run.reason,
        }
    )


def _suspended(state: State) -> list[GangAnswer]:
    return [
        GangAnswer(
            namespace=gang.namespace,
            name=gang.name,
            queue=gang.queue,
            gpus=sum(devices(s.requests).total() * s.count for s in gang.pods),
            verdict="suspended",
        )
        for gang in state.gangs
        if gang.state == "suspended"
    ]


def _left_on_nodes(state: State, runs: list[Run]) -> dict[str, dict[str, object]]:
    left = {n.name: add(amounts(n.allocatable), amounts(n.reserved), sign=-1) for n in state.nodes}
    for pod in (pod for run in runs for pod in run.pods):
        node = pod["spec"]["nodeName"]
        for container in pod["spec"]["containers"]:
            used = amounts(container["resources"].get("requests", {}))
            left[node] = add(left.get(node, {}), used, sign=-1)
    # Nothing can start on a cordoned node.
    return {node.name: dict(left[node.name]) for node in state.nodes if not node.unschedulable}


def _free(state: State, runs: list[Run]) -> int:
    free = _left_on_nodes(state, runs)
    return sum(_gpus(each) for each in free.values())


def _gpus(amounts_left: dict[str, object]) -> int:
    texts = {name: str(value) for name, value in amounts_left.items()}
    return devices(texts).total()


def _fragmented(state: State, runs: list[Run]) -> int:
    """Return the free GPUs on nodes whose free resources no waiting pod fits."""
    shapes = [amounts(s.requests) for run in runs if run.start is None for s in run.gang.pods]
    if not shapes:
        return 0
    total = 0
    for free in _left_on_nodes(state, runs).values():
        left = amounts(free)
        if not any(all(left.get(n, 0) >= a for n, a in shape.items()) for shape in shapes):
            total += _gpus(free)
    return total


def _assumptions(state: State, replay: Replay, now: datetime) -> list[str]:
    found = list(state.notes)
    if (age := state.age(now).total_seconds()) > _OLD:
        found.append(f"the snapshot is {age / 3600:.1f} h old: gangs may have ended since")
    if not state.nodes:
        found.append("the snapshot has no nodes, so nothing can start")
    if state.scheduler_configuration is None:
        found.append("the scheduler's configuration is unknown: Volcano's default is used")
    version = "an unknown version" if state.volcano is None else f"Volcano {state.volcano}"
    found.append(f"the target has {version}; the simulation uses the embedded cluster's version")
    found.append(f"the scheduler considers all gangs every {PERIOD} s, not every second")
    endless = sum(run.left is None for run in replay.runs)
    if endless:
        found.append(f"{endless} gangs have no known end and run on beyond the horizon")
    found.append("other ends are the estimate of the program's log, or the deadline")
    found.append("no checkpoint times are known: lost GPU-hours count from the start of the gang")
    found.append("quotas, volumes and pods of no gang that would start are not simulated")
    if replay.unsettled:
        found.append("the scheduler did not come to rest: results may differ in the cluster")
    return found
