"""Goals of a soak, and a robust trend of memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tools.bench.outcome import Goal

WARM_UP: Final = 0.25
"""Share of the time at the beginning during which caches fill."""

WORKLOADS: Final = ("server", "trainer")
SHARE, MIN_MIB = {True: 0.03, False: 0.10}, {True: 4.0, False: 12.0}
"""Permitted growth over the measured time, for workloads (`True`) and the cluster's processes: a
share of their memory or a number of MiB, whichever is larger."""


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
