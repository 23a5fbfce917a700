"""The picture of latency against load: docs/inference-load.svg."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.inference.contestants import CONTESTANTS, OURS
from benchmarks.inference.measure import CLIENTS, SHARES, closed, opened
from benchmarks.inference.workloads import WORKLOADS
from benchmarks.outcome import spread

COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f")


def draw(result: Mapping[str, Any], path: Path) -> None:
    """A column a model: p99 of open loops, and the median of closed ones, against the rate."""
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "inference-load"
    names = list(result["servers"])
    figure = Figure(figsize=(4.2 * len(names), 7), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        workload, servers = WORKLOADS[name], result["servers"][name]
        for server, one in servers.items():
            style = _style(server)
            shares = [opened(share) for share in SHARES]
            axes[0, column].plot(*_points(one, shares, "offered", "p99"), **style)
            clients = [closed(count) for count in CLIENTS]
            axes[1, column].plot(*_points(one, clients, "throughput", "p50"), **style)
        axes[0, column].set_title(workload.title)
        axes[0, column].axhline(workload.deadline * 1000, color="black", lw=0.8, ls=":")
        axes[0, column].set_xlabel("requests a second, sent at 50, 80, 120% of capacity")
        axes[1, column].set_xlabel("requests a second, answered to 1, 4, 16, 64 clients")
        for row in (0, 1):
            axes[row, column].set(xscale="log", yscale="log")
            axes[row, column].grid(True, which="both", lw=0.3)
    axes[0, 0].set_ylabel("p99, ms (dotted: deadline)")
    axes[1, 0].set_ylabel("median, ms")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _points(
    one: Mapping[str, Any], levels: list[str], rate: str, figure: str
) -> tuple[list[float], list[float]]:
    points = [
        (spread([turn[rate] for turn in one["levels"][level]])["median"], pool * 1000)
        for level in levels
        if (pool := one["pooled"][level][figure]) is not None
    ]
    return [x for x, _ in points], [y for _, y in points]


def _style(server: str) -> dict[str, Any]:
    colour = COLOURS[list(CONTESTANTS).index(server)]
    width = 2.5 if server == OURS else 1.2
    return {"label": server, "color": colour, "lw": width, "marker": "o", "ms": 3 + width}
