"""Plot of the faults: standstill of training and other durations."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.faults.row import Row

_HELD, _BROKE = "#1f77b4", "#d62728"
_WIDTH: Final = 40
"""Maximum characters per line of a fault's name."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a bar per fault, sorted by standstill. Failed faults are red."""
    mpl.rcParams["svg.hashsalt"] = "faults"  # makes the file reproducible
    shown = sorted(rows, key=lambda row: row.standstill or 0.0, reverse=True)
    names = [textwrap.fill(row.fault.replace("`", ""), _WIDTH) for row in shown]
    lines = sum(name.count("\n") + 1 for name in names)
    figure = Figure(figsize=(8, 0.9 + 0.1 * len(names) + 0.17 * lines), layout="constrained")
    axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(5, 2))
    places = range(len(shown))
    bars = axes.barh(
        places,
        [row.standstill or 0.0 for row in shown],
        color=[_HELD if row.verdict == "yes" else _BROKE for row in shown],
    )
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize="small")
    axes.set_yticks(places, names, fontsize="small")
    axes.margins(x=0.12, y=0.01)
    axes.invert_yaxis()
    axes.set_title("training paused, seconds", fontsize="small", loc="left")
    axes.grid(True, axis="x", lw=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    beside.set_axis_off()
    repeated = ["-" if row.repeated is None else str(row.repeated) for row in shown]
    _column(beside, 0.3, "steps\nrepeated", repeated)
    lost = [f"{sum(row.lost.values())} of {row.requests}" for row in shown]
    _column(beside, 1.0, "requests\nlost", lost)
    figure.savefig(path, metadata={"Date": None})


def _column(axes: Axes, right: float, head: str, cells: Sequence[str]) -> None:
    """Write a right-aligned text next to each bar; `right` is a share of the width."""
    axes.text(right, 1.0, head, transform=axes.transAxes, ha="right", va="bottom", fontsize="small")
    across = axes.get_yaxis_transform()
    for place, cell in enumerate(cells):
        axes.text(right, place, cell, transform=across, ha="right", va="center", fontsize="small")
