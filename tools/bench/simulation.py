"""Accuracy and speed of simulations: `make bench-simulation`.

Accuracy: random states of a cluster with random plans are simulated three times, as
`python -m gitops simulate` does. A second simulated cluster applies the same plans with different
timing: its scheduler runs once per second, as a real one does, and gangs of the same age are
submitted in another random order. A prediction is therefore compared with a simulation, not with a
cluster that runs programs. The benchmark answers two questions:

- How often do two single simulations agree? A simulation is compared with a repetition (only the
  scheduler's random choices differ), with a simulation that uses another submission order, with one
  that uses the second cluster's scheduling period, and with the second cluster (which differs in
  both order and period).
- How often does the second cluster do what the three simulations jointly predict?

Speed: 100 nodes with 50 gangs, and 1,000 nodes with 300 gangs, until 20 gangs have finished. The
measured time includes starting and stopping the simulated cluster. The command prints every
difference and writes .bench/simulation.json.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any, Final

from devcluster.paths import cache_root
from devcluster.toolchain import ensure
from gitops.forecast.answer import Answer, combine, durations
from gitops.forecast.sandbox import PERIOD, Sandbox, sandbox
from gitops.forecast.simulate import HORIZON, REPETITIONS, orders, simulate_in
from gitops.forecast.state import Gang, Node, PodShape, PriorityClass, Queue, State
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration
from tools.bench.outcome import Goal, conclude, print_line

_REAL_PERIOD: Final = 1.0
_MIN_AGREEMENT: Final = 0.95
_TOLERANCE: Final = 0.2
_MAX_NODES: Final = 200
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
_SIZES: Final = [
    (100, 50, DEFAULT, 20.0),
    (100, 50, SCHEDULERS[0], 20.0),
    (1000, 300, DEFAULT, 90.0),
]
"""Numbers of nodes and gangs, scheduler configuration, and goal in seconds."""


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


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=50, help="number of states; default: 50")
    parser.add_argument(
        "--horizon",
        type=int,
        default=HORIZON,
        help="stop each simulation after this many gangs have ended; default: 20",
    )
    parser.add_argument("--seed", type=int, default=24, help="seed of the states; default: 24")
    parser.add_argument("--no-speed", action="store_true", help="measure only the accuracy")
    options = parser.parse_args()
    # Handle SIGTERM like Ctrl-C, so that simulated clusters are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ensure("simulated", cache_root(), print_line)
    goals: list[Goal] = []
    result: dict[str, Any] = {}
    if options.states:
        result["accuracy"] = _accuracy(options.states, options.horizon, options.seed)
        goals += result["accuracy"].pop("goals")
    if not options.no_speed:
        for nodes, gangs, scheduler, goal in _SIZES:
            kind = "default scheduler" if scheduler == DEFAULT else "with preemption"
            name = f"{nodes} nodes, {gangs} gangs, {kind}"
            result[name] = _speed(name, nodes, gangs, scheduler)
            goals.append(Goal(f"{name}, seconds", result[name]["total"], goal, at_most=True))
    conclude("simulation", result, goals)


@dataclass
class Comparison:
    """Single predictions, compared with other simulations of the same states."""

    title: str
    verdicts: int = 0
    same_verdicts: int = 0
    preempting: int = 0
    """Number of states in which at least one of the two simulations evicts a gang."""
    same_victims: int = 0
    """Number of states in `preempting` in which both simulations evict the same gangs."""
    starts: int = 0
    """Number of gangs with the `starts later` verdict in both simulations."""
    near_starts: int = 0
    """Number of gangs in `starts` whose start times differ by at most 20%."""

    def add(self, predicted: Answer, other: Answer) -> None:
        """Compare the results for one state."""
        others = {gang.title: gang for gang in other.gangs}
        for gang in predicted.gangs:
            real = others[gang.title]
            self.verdicts += 1
            self.same_verdicts += gang.verdict == real.verdict
            if gang.verdict == real.verdict == "starts later":
                at, real_start = gang.start_seconds or 0.0, real.start_seconds or 0.0
                self.starts += 1
                self.near_starts += abs(at - real_start) <= _TOLERANCE * real_start
        victims, real_victims = _victims(predicted), _victims(other)
        if victims or real_victims:
            self.preempting += 1
            self.same_victims += victims == real_victims


@dataclass
class Predictions:
    """Results of several simulations, compared with the results in another cluster."""

    gangs: int = 0
    frequent: int = 0
    """Number of gangs whose most frequent verdict equals the verdict in the other cluster."""
    possible: int = 0
    """Number of gangs whose verdict in the other cluster occurs in at least one simulation."""
    certain: int = 0
    """Number of gangs with the same verdict in all simulations."""
    certain_same: int = 0
    """Number of gangs in `certain` whose verdict in the other cluster is the same."""
    victims: int = 0
    """Number of gangs that the other cluster evicts."""
    possible_victims: int = 0
    """Number of gangs that the other cluster and at least one simulation evict."""
    certain_victims: int = 0
    """Number of gangs that all simulations evict."""
    certain_victims_same: int = 0
    """Number of gangs that all simulations and the other cluster evict."""
    starts: int = 0
    """Number of gangs that start in a simulation, and whose verdict in the other cluster is
    `starts later`."""
    near_starts: int = 0
    """Number of gangs in `starts` that start in the predicted range, widened by 20%."""
    misses: dict[str, int] = field(default_factory=dict)
    """Number of gangs by the reason why no simulation predicted their verdict."""
    differences: list[str] = field(default_factory=list)

    def add(self, state: int, predicted: Answer, applied: Answer) -> None:
        """Compare the results for one state."""
        others = {gang.title: gang for gang in applied.gangs}
        victims, certain = _victims(predicted), _victims(predicted, certain=True)
        evicted = _victims(applied)
        self.victims += len(evicted)
        self.possible_victims += len(evicted & victims)
        self.certain_victims += len(certain)
        self.certain_victims_same += len(certain & evicted)
        for gang in predicted.gangs:
            real = others[gang.title]
            self.gangs += 1
            self.frequent += gang.verdict == real.verdict
            self.possible += real.verdict in gang.verdicts
            self.certain += len(gang.verdicts) == 1
            self.certain_same += [*gang.verdicts] == [real.verdict]
            if real.verdict not in gang.verdicts:
                reason = _reason(gang.title, victims, certain, evicted)
                self.misses[reason] = self.misses.get(reason, 0) + 1
                self._note(
                    f"state {state}: {gang.title}: predicted {gang.outcome}; "
                    f"other cluster: {real.verdict}; reason: {reason}"
                )
            if real.verdict == "starts later" and gang.start_range is not None:
                real_start, found = real.start_seconds or 0.0, gang.start_range
                minimum, maximum = found.least * (1 - _TOLERANCE), found.most * (1 + _TOLERANCE)
                self.starts += 1
                self.near_starts += minimum <= real_start <= maximum
                if not minimum <= real_start <= maximum:
                    self._note(
                        f"state {state}: {gang.title}: start predicted after {durations(found)}; "
                        f"other cluster: after {real_start:.0f} s"
                    )
        for name in sorted((evicted - victims) | (certain - evicted)):
            only_other = "evicted in the other cluster, but in no simulation"
            only_predicted = "evicted in all simulations, but not in the other cluster"
            result = only_other if name in evicted else only_predicted
            self._note(f"state {state}: {name}: {result}")

    def _note(self, text: str) -> None:
        print_line(text)
        self.differences.append(text)

    def goals(self) -> list[Goal]:
        """Return a goal for each share of predictions that match the other cluster."""
        shares = {
            "most frequent verdicts that were correct": (self.frequent, self.gangs),
            "unanimous verdicts that were correct": (self.certain_same, self.certain),
            "verdicts that at least one simulation predicted": (self.possible, self.gangs),
            "evictions that at least one simulation predicted": (
                self.possible_victims,
                self.victims,
            ),
            "unanimously predicted evictions that occurred": (
                self.certain_victims_same,
                self.certain_victims,
            ),
            "waiting gangs that started in the predicted range": (self.near_starts, self.starts),
        }
        return [
            Goal(name, a / b if b else 1.0, _MIN_AGREEMENT, at_most=False)
            for name, (a, b) in shares.items()
        ]


def _victims(answer: Answer, *, certain: bool = False) -> set[str]:
    minimum = answer.simulations if certain else 1
    return {victim.title for victim in answer.victims if victim.simulations >= minimum}


def _reason(name: str, possible: set[str], certain: set[str], evicted: set[str]) -> str:
    """Return the reason why no simulation agrees with the other cluster about a gang."""
    if (name in evicted) != (name in possible):
        return "the gang itself is evicted only in simulations or only in the other cluster"
    if evicted != possible or possible != certain:
        return "other gangs are evicted"
    return "scheduled in another order or on another node"


def _accuracy(states: int, horizon: int, seed: int) -> dict[str, Any]:
    """Simulate each state three times, and compare the results with other simulations."""
    singles = {name: Comparison(name) for name in ("repeated", "shuffled", "slower", "applied")}
    predicted = Predictions()
    for number, state, runs in _simulated(states, horizon, seed):
        predictions, repeated, slower, applied = runs
        others = (repeated, predictions[1], slower, applied)
        for compared, other in zip(singles.values(), others, strict=True):
            compared.add(predictions[0], other)
        predicted.add(number, combine(predictions), applied)
        print_line(f"state {number}: {len(state.nodes)} nodes, {len(state.gangs)} gangs")
        print_line(", ".join(f"{n} {c.same_verdicts}/{c.verdicts}" for n, c in singles.items()))
    return {
        "states": states,
        "horizon": horizon,
        "single": [asdict(compared) for compared in singles.values()],
        "combined": asdict(predicted),
        "goals": predicted.goals(),
    }


_Runs = tuple[list[Answer], Answer, Answer, Answer]


def _simulated(states: int, horizon: int, seed: int) -> Iterator[tuple[int, State, _Runs]]:
    """Yield each state with its predictions and the simulations to compare them with."""
    random = Random(seed)  # noqa: S311  no secrets
    for kind, scheduler in enumerate(SCHEDULERS):
        with ExitStack() as stack, ThreadPoolExecutor(3) as threads:
            periods = (PERIOD, _REAL_PERIOD, _REAL_PERIOD)
            clusters = [stack.enter_context(sandbox(scheduler, period=each)) for each in periods]
            for number in range(kind, states, len(SCHEDULERS)):
                before = random_state(
                    random, random.randint(1, _MAX_NODES), random.randint(2, 60), scheduler
                )
                state = random_plan(random, before)
                other = Random(number + 1000)  # noqa: S311  no secrets
                fast = [*orders(state, REPETITIONS), None]
                shuffles_by_cluster: list[list[Random | None]] = [fast, [None], [other]]
                simulations = [
                    threads.submit(_simulate_orders, cluster, state, horizon, shuffles)
                    for cluster, shuffles in zip(clusters, shuffles_by_cluster, strict=True)
                ]
                found, (slower,), (applied,) = (each.result() for each in simulations)
                yield number, state, (found[:-1], found[-1], slower, applied)


def _simulate_orders(
    cluster: Sandbox, state: State, horizon: int, shuffles: Sequence[Random | None]
) -> list[Answer]:
    cluster.clear(nodes=True)
    results = []
    for shuffle in shuffles:
        results.append(simulate_in(cluster, state, horizon, shuffle))
        cluster.clear()
    return results


def _speed(name: str, nodes: int, gangs: int, scheduler: str) -> dict[str, float]:
    state = random_state(Random(nodes), nodes, gangs, scheduler)  # noqa: S311
    times = [time.monotonic()]
    with sandbox(state.scheduler_configuration) as cluster:
        times.append(time.monotonic())
        answer = simulate_in(cluster, state, HORIZON, None)
        times.append(time.monotonic())
    times.append(time.monotonic())
    start, decide, end = (later - at for at, later in pairwise(times))
    found = {"start": start, "decide": decide, "end": end, "total": sum((start, decide, end))}
    print_line(f"{name}, {answer.ends} gangs ended: {found}")
    return found


if __name__ == "__main__":
    main()
