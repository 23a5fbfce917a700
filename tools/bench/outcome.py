"""Outcome of a benchmark: host, samples and goals."""

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / ".bench"


@dataclass(frozen=True)
class Goal:
    """A goal: `value` must be at least `goal` or, if `at_most` is true, at most `goal`."""

    name: str
    value: float
    goal: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """True if the goal was met."""
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def machine() -> dict[str, Any]:
    """Return a description of the host's hardware and software."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "memoryGiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "loadAverage": os.getloadavg(),
    }


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum of samples."""
    return {"median": statistics.median(samples), "minimum": min(samples), "maximum": max(samples)}


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the ratio of the first to the second sample for each benchmark round."""
    return [one / other for one, other in zip(first, second, strict=True)]


def conclude(name: str, samples: dict[str, Any], goals: Sequence[Goal]) -> None:
    """Print the goals, including missed ones, and write .bench/<name>.json."""
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{name}.json"
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        **samples,
        "goals": [asdict(goal) | {"met": goal.met} for goal in goals],
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    for goal in goals:
        bound = "at most" if goal.at_most else "at least"
        met = "met" if goal.met else "MISSED"
        print_line(f"{met}: {goal.name}: {goal.value:.3g} (goal: {bound} {goal.goal:g})")
    print_line(f"wrote {path.relative_to(DIRECTORY.parent)}")


def load(name: str) -> dict[str, Any]:
    """Return a result that `conclude` wrote."""
    result: dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text())
    return result


def print_line(text: str) -> None:
    """Print one line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
