"""Table of faults, written after every row and drawn at the end."""

import json
import os
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import matplotlib as mpl
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Row:
    """Result of one fault. Times are in seconds, None if not applicable."""

    fault: str
    repeated: int | None
    standstill: float | None
    lost: dict[str, int]
    """Number of requests without a 200 response, by status or error."""
    answered: int
    new_gang: float | None
    """Time until a gang submitted during the fault has completed."""
    verdict: str
    """`yes`, or the failed assertion."""
    seconds: float
    """Duration of the whole test, including the run."""
    at: str = ""

    @property
    def requests(self) -> int:
        """Number of requests sent."""
        return self.answered + sum(self.lost.values())

    def cells(self) -> list[str]:
        """Return the cells of the Markdown table."""
        lost = ", ".join(f"{count} x {name}" for name, count in sorted(self.lost.items()))
        return [
            self.fault,
            "-" if self.repeated is None else str(self.repeated),
            _seconds(self.standstill),
            f"{lost or '0'} of {self.requests}" if self.answered else "-",
            _seconds(self.new_gang),
            self.verdict.splitlines()[0][:120].replace("|", "/"),
        ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


HEAD = ("fault", "steps repeated", "training paused", "requests lost", "new gang", "passed")


class Table:
    """Rows of one machine by fault; a repeated fault replaces its row."""

    def __init__(self, folder: Path) -> None:
        self._json, self._markdown = folder / "faults.json", folder / "faults.md"
        self._picture = folder / "faults.svg"
        self._rows: dict[str, Row] = {}
        if self._json.exists():
            kept = json.loads(self._json.read_text())
            if kept["machine"] == machine():
                self._rows = {row["fault"]: Row(**row) for row in kept["rows"]}

    def add(self, row: Row) -> None:
        """Add a row. A row without a verdict is ignored, because its fault was interrupted."""
        if not row.verdict:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows[row.fault] = replace(row, at=now)
        self._json.parent.mkdir(exist_ok=True)
        document = {"machine": machine(), "rows": [asdict(row) for row in self._rows.values()]}
        self._json.write_text(json.dumps(document, indent=2) + "\n")
        lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in self._rows.values())]
        self._markdown.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))

    def draw(self) -> None:
        """Draw the plot of all rows, if there are any."""
        if self._rows:
            draw(list(self._rows.values()), self._picture)


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


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}"
