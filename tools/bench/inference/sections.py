"""Sections of the benchmark. Each adds its measurements to the result as they become available."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tools.bench.inference.bare import Loop, start_loop
from tools.bench.inference.contestants import TOLERANCE, Contestant
from tools.bench.inference.contestants import backends as all_backends
from tools.bench.inference.exports import export
from tools.bench.inference.goals import goals_of
from tools.bench.inference.http_servers import http_servers
from tools.bench.inference.load import cache
from tools.bench.inference.measure import (
    CLIENTS,
    MAX_LOAD,
    Bench,
    Series,
    closed_loop,
    measure_in_turns,
    start_servers,
)
from tools.bench.inference.networks import compute_of
from tools.bench.inference.workloads import WORKLOADS, Array, Workload
from tools.bench.outcome import Goal, print_line
from training.export import code_version
from workload.manifest import MANIFEST_FILE

JSON_MODEL: Final = "simple-cnn"


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
