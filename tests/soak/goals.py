"""Goals of a soak, a robust trend of memory, and its plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tools.bench.outcome import Goal

WARM_UP: Final = 0.25
"""Share of the time at the beginning during which caches fill."""

WORKLOADS: Final = ("server", "trainer")
SHARE, MIN_MIB = {True: 0.03, False: 0.10}, {True: 4.0, False: 12.0}
"""Permitted growth over the measured time, for workloads (`True`) and the cluster's processes: a
share of their memory or a number of MiB, whichever is larger."""
LARGEST: Final = 9
"""Number of the cluster's programs that are drawn individually."""


@dataclass(frozen=True)
class Trend:
    """Memory in MiB over the measured time. `growth` is the lower bound of the increase."""

    median: float
    slope_per_hour: float
    growth: float


def trend(minutes: Sequence[float], mib: Sequence[float]) -> Trend:
    """Return the Theil-Sen line, which is robust against peaks, and its lower bound (95 %).

    Sen, Estimates of the regression coefficient based on Kendall's tau (JASA 63, 1968).
    """
    # Importing scipy takes a second in every process that collects tests.
    from scipy.stats import theilslopes

    x, y = np.asarray(minutes), np.asarray(mib)
    found = theilslopes(y, x, 0.95)
    span = float(x[-1] - x[0])
    growth = max(float(found.low_slope) * span, 0.0)
    return Trend(float(np.median(y)), float(found.slope) * 60, growth)


def trends(samples: Sequence[Mapping[str, Any]]) -> dict[str, Trend]:
    """Return the trends by role, of processes that exist throughout after the warm-up."""
    begin = samples[-1]["minute"] * WARM_UP
    measured = [sample for sample in samples if sample["minute"] >= begin]
    names = sorted(set.intersection(*(set(sample["mib"]) for sample in measured)))
    minutes = [sample["minute"] for sample in measured]
    return {name: trend(minutes, [sample["mib"][name] for sample in measured]) for name in names}


def goals_of(result: Mapping[str, Any]) -> list[Goal]:
    """Return the goals of a soak with the measured values."""
    found = trends(result["memory"])
    goals = [
        Goal(
            f"memory growth of {name} in MiB (lower bound)",
            round(one.growth, 2),
            _max_growth(name, one),
            True,
        )
        for name, one in found.items()
    ]
    goals += [Goal(f"{name} measured", float(name in found), 1.0) for name in WORKLOADS]
    left = sum(map(len, result["left"].values()))
    host = sum(map(len, result["leftOnHost"].values()))
    return [
        *goals,
        Goal("objects, processes, mounts and links left in the cluster", left, 0, True),
        Goal("processes, mounts, links and settings left on the host", host, 0, True),
        Goal("requests without a response", sum(result["requests"]["failed"].values()), 0, True),
        Goal("turns (submit, kill and replace)", result["turns"], 1),
    ]


def _max_growth(name: str, one: Trend) -> float:
    workload = name in WORKLOADS
    return round(max(one.median * SHARE[workload], MIN_MIB[workload]), 2)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the workloads above and the cluster's largest programs below, with trends."""
    # Imported here: every process that collects the tests imports this module.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "soak"  # makes the file reproducible
    samples = result["memory"]
    found = trends(samples)
    own = sorted(set(found) - set(WORKLOADS), key=lambda name: -found[name].median)[:LARGEST]
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    shown: list[list[str]] = [[name for name in WORKLOADS if name in found], own]
    for one, names in zip(axes, shown, strict=True):
        for name in names:
            points = [(s["minute"], s["mib"][name]) for s in samples if name in s["mib"]]
            label = f"{name} ({found[name].slope_per_hour:+.1f} MiB/h)"
            one.plot(*zip(*points, strict=True), lw=1.2, label=label)
        one.axvspan(0, samples[-1]["minute"] * WARM_UP, color="black", alpha=0.06, lw=0)
        one.set_ylabel("anonymous memory (MiB)")
        one.set_ylim(bottom=0)
        one.grid(True, lw=0.3)
        one.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(
        f"{result['turns']} turns of submitting, killing and replacing, "
        f"{result['requests']['answered']} requests answered",
        fontsize="medium",
    )
    axes[1].set_xlabel("minutes (grey: warm-up, which is not counted)")
    figure.savefig(path, metadata={"Date": None})
