"""Accuracy and speed of simulations: `make bench-simulation`.

Accuracy: random states of a cluster with random plans are simulated as `python -m gitops simulate`
does. A second simulated cluster applies the same plans with different timing: its scheduler runs
once per second, like a real one, and gangs of the same age are submitted in random order. A
prediction is therefore compared with a simulation, not with a cluster that runs programs. Three
results are compared: the verdict on each gang, the gangs that each plan preempts, and the start
times of waiting gangs. Each prediction is also made twice with the same timing: the scheduler
chooses among equal nodes and victims at random, so the agreement of the two predictions is an upper
limit.

Speed: 100 nodes with 50 gangs, and 1,000 nodes with 300 gangs, until 20 gangs have ended. This
includes starting and stopping the simulated cluster. Prints every difference and writes
.bench/simulation.json.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

from devcluster.paths import cache_root
from devcluster.toolchain import ensure
from gitops.forecast.answer import Answer
from gitops.forecast.sandbox import PERIOD, Sandbox, sandbox
from gitops.forecast.simulate import HORIZON, simulate_in
from gitops.forecast.state import State
from tools.bench.outcome import Goal, conclude, say
from tools.bench.random_states import DEFAULT, SCHEDULERS, random_plan, random_state

_REAL_PERIOD: Final = 1.0
_SAME: Final = 0.95
_TOLERANCE: Final = 0.2
_MAX_NODES: Final = 200
_SIZES: Final = [
    (100, 50, DEFAULT, 20.0),
    (100, 50, SCHEDULERS[0], 20.0),
    (1000, 300, DEFAULT, 90.0),
]
"""Number of nodes and gangs, scheduler configuration, and goal in seconds."""


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=50, help="random states; default: 50")
    parser.add_argument(
        "--horizon",
        type=int,
        default=HORIZON,
        help="number of gangs that end before a simulation stops; default: 20",
    )
    parser.add_argument("--seed", type=int, default=24, help="seed of the states; default: 24")
    parser.add_argument("--no-speed", action="store_true", help="measure only the accuracy")
    options = parser.parse_args()
    ensure("simulated", cache_root(), say)
    goals: list[Goal] = []
    result: dict[str, Any] = {}
    if options.states:
        compared, repeated = _truth(options.states, options.horizon, options.seed)
        result["truth"] = asdict(compared) | {"states": options.states, "horizon": options.horizon}
        result["repeated"] = asdict(repeated)
        goals += compared.goals()
        for share in repeated.goals():
            say(f"two predictions: {share.name}: {share.value:.2f}")
    if not options.no_speed:
        for nodes, gangs, scheduler, goal in _SIZES:
            kind = "default scheduler" if scheduler == DEFAULT else "with preemption"
            name = f"{nodes} nodes, {gangs} gangs, {kind}"
            result[name] = _speed(name, nodes, gangs, scheduler)
            goals.append(Goal(f"{name}, seconds", result[name]["whole"], goal, at_most=True))
    conclude("simulation", result, goals)


@dataclass
class Compared:
    """Predictions compared with the results of another cluster."""

    title: str
    verdicts: int = 0
    same_verdicts: int = 0
    preempting: int = 0
    same_victims: int = 0
    starts: int = 0
    near_starts: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, state: int, predicted: Answer, applied: Answer) -> None:
        """Add the comparison of two results for the same state."""
        other = {gang.title: gang for gang in applied.gangs}
        for gang in predicted.gangs:
            real = other[gang.title]
            self.verdicts += 1
            self.same_verdicts += gang.verdict == real.verdict
            if gang.verdict != real.verdict:
                self._note(f"state {state}: {gang.title} {gang.verdict}, in fact {real.verdict}")
            elif gang.verdict == "starts later":
                at, really = gang.start_seconds or 0.0, real.start_seconds or 0.0
                is_near = abs(at - really) <= _TOLERANCE * really
                self.starts += 1
                self.near_starts += is_near
                if not is_near:
                    self._note(f"state {state}: {gang.title} at {at:.0f} s, in fact {really:.0f} s")
        victims, real_victims = _victims(predicted), _victims(applied)
        if victims or real_victims:
            self.preempting += 1
            self.same_victims += victims == real_victims
            if victims != real_victims:
                self._note(f"state {state}: preempts {victims}, in fact {real_victims}")

    def _note(self, text: str) -> None:
        say(f"{self.title}: {text}")
        self.differences.append(text)

    def goals(self) -> list[Goal]:
        """Return the shares of agreeing predictions as goals."""
        shares = {
            "same verdict, share of gangs": (self.same_verdicts, self.verdicts),
            "same victims, share of plans that preempt": (self.same_victims, self.preempting),
            "start within 20 %, share of gangs that wait": (self.near_starts, self.starts),
        }
        return [
            Goal(name, a / b if b else 1.0, _SAME, at_most=False) for name, (a, b) in shares.items()
        ]


def _victims(answer: Answer) -> list[str]:
    return sorted({victim.name for victim in answer.victims})


def _truth(states: int, horizon: int, seed: int) -> tuple[Compared, Compared]:
    """Compare predictions with applied plans of different timing, and with repeated predictions."""
    compared, repeated = Compared("applied"), Compared("repeated")
    random = Random(seed)  # noqa: S311  no secrets
    for kind, scheduler in enumerate(SCHEDULERS):
        numbers = range(kind, states, len(SCHEDULERS))
        with ExitStack() as stack, ThreadPoolExecutor(3) as threads:
            periods = (PERIOD, _REAL_PERIOD, PERIOD)
            one, other, same = (stack.enter_context(sandbox(scheduler, each)) for each in periods)
            for number in numbers:
                before = random_state(
                    random, random.randint(1, _MAX_NODES), random.randint(2, 60), scheduler
                )
                state = random_plan(random, before)
                answers = [
                    threads.submit(_answer, cluster, state, horizon, shuffle)
                    for cluster, shuffle in (
                        (one, None),
                        (other, Random(number)),  # noqa: S311  no secrets
                        (same, None),
                    )
                ]
                predicted, applied, again = (each.result() for each in answers)
                compared.add(number, predicted, applied)
                repeated.add(number, predicted, again)
                say(f"{number}: {len(state.nodes)} nodes, {len(state.gangs)} gangs")
    return compared, repeated


def _answer(cluster: Sandbox, state: State, horizon: int, shuffle: Random | None) -> Answer:
    cluster.clear(nodes=True)
    return simulate_in(cluster, state, horizon, shuffle)


def _speed(name: str, nodes: int, gangs: int, scheduler: str) -> dict[str, float]:
    state = random_state(Random(nodes), nodes, gangs, scheduler)  # noqa: S311
    times = [time.monotonic()]
    with sandbox(state.scheduler_configuration) as cluster:
        times.append(time.monotonic())
        answer = simulate_in(cluster, state, HORIZON, None)
        times.append(time.monotonic())
    times.append(time.monotonic())
    start, decide, end = (later - at for at, later in pairwise(times))
    found = {"start": start, "decide": decide, "end": end, "whole": sum((start, decide, end))}
    say(f"{name}, {answer.ends} ends: {found}")
    return found


if __name__ == "__main__":
    main()
