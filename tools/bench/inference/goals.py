"""Performance goals of this project's server, and their comparison with measurements."""

from collections.abc import Mapping, Sequence
from typing import Final

from tools.bench.inference.contestants import OURS
from tools.bench.inference.measure import MAX_LOAD, Series, at_load_of, open_loop
from tools.bench.inference.workloads import Workload
from tools.bench.outcome import Goal, ratios, spread

MIN_RATIO_TO_BEST_PEER: Final = {"simple-cnn": 0.85}
"""Maps models to the required ratio of our throughput to the best peer's with 64 clients. The
default is 1. In docs/inference-benchmark.md, the best peer is mosec, whose front end in Rust
matters most for small networks.
"""

MAX_CPU: Final = 50e-6
"""Maximum CPU time (s) of a request to the no-op model."""


def goals_of(workload: Workload, series: Mapping[str, Series], bare: Sequence[float]) -> list[Goal]:
    """Return the goals of one workload. `bare` contains the rates of the bare loop."""
    if OURS not in series:
        return []
    title, ours = workload.title, series[OURS]
    found = []
    if peers := {name: one for name, one in series.items() if name != OURS}:
        best = max(peers, key=lambda name: peers[name].median(MAX_LOAD, "throughput"))
        to_best = ratios(_rates(ours), _rates(peers[best]))
        found.append(
            Goal(
                f"{title}: throughput ratio at 64 clients: ours / {best} (best peer)",
                spread(to_best)["median"],
                MIN_RATIO_TO_BEST_PEER.get(workload.model, 1),
            )
        )
        found += _tail(title, ours, peers)
    if not workload.is_network:
        name = f"{title}: CPU time (µs) of a request at 64 clients"
        cpu = ours.median(MAX_LOAD, "cpu")
        found.append(Goal(name, cpu * 1e6, MAX_CPU * 1e6, at_most=True))
    if workload.model == "resnet18" and bare:
        to_bare = ratios(_rates(ours), bare)
        found.append(
            Goal(
                f"{title}: throughput ratio at 64 clients: ours / bare loop",
                spread(to_bare)["median"],
                0.9,
            )
        )
    return found + _overload(title, ours)


def _tail(title: str, ours: Series, peers: Mapping[str, Series]) -> list[Goal]:
    level = open_loop(0.8)
    tails = {name: one.pools[level]["p99"] for name, one in peers.items() if level in one.pools}
    answered = {name: tail for name, tail in tails.items() if tail is not None}
    own = ours.pools.get(level, {}).get("p99")
    if not answered or own is None:
        return []
    best = min(answered, key=lambda name: answered[name])
    name = f"{title}: p99 ratio at 80% load: ours / {best} (lowest p99 of the peers)"
    return [
        Goal(name, own / answered[best], 1, at_most=True),
        *_tail_at_same_load(title, ours, answered),
    ]


def _tail_at_same_load(title: str, ours: Series, peers: Mapping[str, float]) -> list[Goal]:
    """Compare tail latencies at equal rates, because 80% of a higher capacity is a higher load."""
    tails = {peer: ours.pools.get(at_load_of(peer), {}).get("p99") for peer in peers}
    ratios = {peer: tail / peers[peer] for peer, tail in tails.items() if tail is not None}
    if not ratios:
        return []
    worst = max(ratios, key=lambda peer: ratios[peer])
    name = f"{title}: p99 ratio at 80% of {worst}'s capacity: ours / {worst} (highest ratio)"
    return [Goal(name, ratios[worst], 1, at_most=True)]


def _overload(title: str, ours: Series) -> list[Goal]:
    level = open_loop(1.2)
    if level not in ours.levels:
        return []
    peaks = [
        max(turns[turn]["throughput"] for name, turns in ours.levels.items() if name != level)
        for turn in range(len(ours.levels[level]))
    ]
    good = ratios([turn["goodput"] for turn in ours.levels[level]], peaks)
    errors = sum(turn["errors"] for turns in ours.levels.values() for turn in turns)
    rejected = sum(turn["rejected"] for turn in ours.levels[level])
    return [
        Goal(f"{title}: goodput ratio at 120% load: ours / own peak", spread(good)["median"], 0.9),
        Goal(f"{title}: requests rejected with 429 at 120% load", rejected, 1),
        Goal(f"{title}: responses other than 200 and 429", errors, 0, at_most=True),
    ]


def _rates(series: Series) -> list[float]:
    return [turn["throughput"] for turn in series.levels[MAX_LOAD]]
