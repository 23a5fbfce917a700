"""Sections of the benchmark, and their goals.

Each section adds its measurements to the result as they become available.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tools.bench.inference.bare import Loop, start_loop
from tools.bench.inference.contestants import OURS, TOLERANCE, Contestant
from tools.bench.inference.contestants import backends as all_backends
from tools.bench.inference.exports import export
from tools.bench.inference.http_servers import http_servers
from tools.bench.inference.load import cache
from tools.bench.inference.measure import (
    CLIENTS,
    MAX_LOAD,
    Bench,
    Series,
    at_load_of,
    closed_loop,
    measure_in_turns,
    open_loop,
    start_servers,
)
from tools.bench.inference.networks import compute_of
from tools.bench.inference.workloads import WORKLOADS, Array, Workload
from tools.bench.outcome import Goal, print_line, ratios, spread
from training.export import code_version
from workload.manifest import MANIFEST_FILE

JSON_MODEL: Final = "simple-cnn"
MIN_RATIO_TO_BEST_PEER: Final = {"simple-cnn": 0.85}
"""Maps models to the minimum ratio of our throughput to that of the best peer, with 64 clients. The
default is 1. In docs/inference-benchmark.md, the best peer is mosec, whose front end in Rust
matters most for small networks.
"""

MAX_CPU: Final = 50e-6
"""Maximum CPU time (s) of a request to the no-op model."""


def servers(
    bench: Bench,
    contestants: Sequence[Contestant],
    workloads: Sequence[Workload],
    result: dict[str, Any],
    goals: list[Goal],
) -> None:
    """Measure all servers with every model, and the bare loop."""
    result["servers"], result["bare"] = {}, {}
    for workload in workloads:
        directory = export_of(workload)
        expected = expected_outputs(workload, directory)
        with (
            start_loop(workload, directory, bench.server_core) as loop,
            start_servers(
                contestants, workload, "raw", directory, expected, bench.server_core
            ) as found,
        ):
            bare: list[float] = []

            def measure_bare_loop(
                loop: Loop = loop,
                bare: list[float] = bare,
                seconds: float = bench.seconds * workload.duration_factor,
            ) -> None:
                bare.append(loop.rate(seconds))

            series = measure_in_turns(bench, found, workload, each_turn=measure_bare_loop)
        result["bare"][workload.name] = bare
        result["servers"][workload.name] = {name: one.to_json() for name, one in series.items()}
        goals += goals_of(workload, series, bare)


def json(
    bench: Bench,
    contestants: Sequence[Contestant],
    workloads: Sequence[Workload],
    result: dict[str, Any],
) -> None:
    """Measure the same requests in JSON format, for one model."""
    workload = WORKLOADS[JSON_MODEL]
    if workload not in workloads:
        return
    series = _measure_min_and_max_clients(bench, contestants, workload, "json")
    result["json"] = {
        "workload": workload.name,
        "throughput": {name: _throughput(one) for name, one in series.items()},
        "pooled": {name: one.pools[MAX_LOAD] for name, one in series.items()},
    }


def backends(bench: Bench, workloads: Sequence[Workload], result: dict[str, Any]) -> None:
    """Measure our server with each of its backends."""
    result["backends"] = {}
    for workload in workloads:
        if workload.plain or not workload.is_network:
            continue
        series = _measure_min_and_max_clients(bench, all_backends(), workload, "raw")
        result["backends"][workload.name] = {
            name: {
                "throughput": _throughput(one),
                "p50": one.pools[closed_loop(1)]["p50"],
                "difference": one.difference,
            }
            for name, one in series.items()
        }


def http(bench: Bench, result: dict[str, Any]) -> None:
    """Measure HTTP servers that only echo requests."""
    result["http"] = http_servers(bench)


def export_of(workload: Workload) -> Path:
    """Return the export of a model, which is written once per version of the training code."""
    directory = cache() / "exports" / code_version() / workload.model
    if not (directory / MANIFEST_FILE).exists():
        print_line(f"{workload.title}: exporting …")
        export(workload, directory)
    return directory


def expected_outputs(workload: Workload, directory: Path) -> Array:
    """Return the outputs of plain PyTorch, computed one sample at a time.

    Raise ValueError if two outputs are too similar to detect swapped responses.
    """
    compute = compute_of(replace(workload, plain=True), directory)
    rows = np.concatenate([compute(row[None]) for row in workload.samples()])
    distances = np.abs(rows[:, None] - rows[None]).max(-1) + np.eye(len(rows))
    if distances.min() < 10 * TOLERANCE:
        raise ValueError(f"{workload.title}: two outputs differ by only {distances.min():.2g}")
    return rows


def _measure_min_and_max_clients(
    bench: Bench, contestants: Sequence[Contestant], workload: Workload, data_format: Any
) -> dict[str, Series]:
    directory = export_of(workload)
    expected = expected_outputs(workload, directory)
    with start_servers(
        contestants, workload, data_format, directory, expected, bench.server_core
    ) as found:
        return measure_in_turns(bench, found, workload, clients=(1, CLIENTS[-1]), shares=())


def _throughput(series: Series) -> list[float]:
    return [turn["throughput"] for turn in series.levels[MAX_LOAD]]


def goals_of(workload: Workload, series: Mapping[str, Series], bare: Sequence[float]) -> list[Goal]:
    """Return the goals of one workload. `bare` contains the rates of the bare loop."""
    if OURS not in series:
        return []
    title, ours = workload.title, series[OURS]
    found = []
    if peers := {name: one for name, one in series.items() if name != OURS}:
        best = max(peers, key=lambda name: peers[name].median(MAX_LOAD, "throughput"))
        to_best = ratios(_throughput(ours), _throughput(peers[best]))
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
        to_bare = ratios(_throughput(ours), bare)
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
