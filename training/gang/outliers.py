"""Comparison of the processes of a gang with each other. Imports no torch.

A process is an outlier if it is worse than the median of its gang by a factor and by a difference.
Measurements are noisy, so it must be an outlier in every attempt. Its best value is reported.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from workload.progress import SlowNode

MIN_RANKS: Final = 3
"""Number of values below which a median is not meaningful."""

ATTEMPTS: Final = 3
"""Number of consecutive measurements in which a process must be an outlier."""


class SlowNodeError(Exception):
    """A node of the gang is slow; a restart elsewhere helps."""


@dataclass(frozen=True)
class Measurement:
    """A measurement: an outlier is worse than the median by both `factor` and `difference`."""

    unit: str
    factor: float
    difference: float = 0
    lower_is_better: bool = False
    pairs: bool = False
    """Measured between nodes: only processes with the same index on their nodes are comparable."""

    def best(self, values: Sequence[float]) -> float:
        """Return the best of several values of one process."""
        return min(values) if self.lower_is_better else max(values)

    def is_outlier(self, value: float, median: float) -> bool:
        """Return whether a value is much worse than the median."""
        if self.lower_is_better:
            return value >= median * self.factor and value - median >= self.difference
        return value * self.factor <= median and median - value >= self.difference


MEASUREMENTS: Final = {
    "matmul": Measurement("GFLOP/s", factor=2),
    "bandwidth": Measurement("MB/s", factor=3, pairs=True),
    "latency": Measurement("ms", factor=3, difference=1, lower_is_better=True, pairs=True),
    "disk": Measurement("s", factor=3, difference=1, lower_is_better=True),
    "clock": Measurement("s", factor=1, difference=1, lower_is_better=True),
    "shared_memory": Measurement("bytes", factor=2, difference=1),
    "locked_memory": Measurement("bytes", factor=2, difference=1),
}


@dataclass(frozen=True)
class Report:
    """Values of one process by measurement, without those that it could not measure."""

    node: str
    values: dict[str, float]


def find_outliers(measure: Callable[[], list[Report]]) -> tuple[list[Report], list[SlowNode]]:
    """Measure, and repeat while there are outliers.

    Returns the best values and those outliers that remain. `measure` returns the reports of all
    processes, by rank, and must return the same in each of them.
    """
    best = measure()
    found = list(outliers(best))
    suspects = _processes(found)
    for _ in range(ATTEMPTS - 1):
        if not found:
            break
        now = measure()
        best = [_better(before, report) for before, report in zip(best, now, strict=True)]
        suspects &= _processes(outliers(now))
        found = [slow for slow in outliers(best) if (slow.rank, slow.measurement) in suspects]
    return best, found


def _processes(found: Iterable[SlowNode]) -> set[tuple[int, str]]:
    return {(slow.rank, slow.measurement) for slow in found}


def _better(before: Report, now: Report) -> Report:
    values = {
        name: MEASUREMENTS[name].best([now.values.get(name, value), value])
        for name, value in before.values.items()
    }
    return Report(before.node, {**now.values, **values})


def outliers(reports: Sequence[Report]) -> Iterator[SlowNode]:
    """Yield each process that is much worse than the others."""
    indices = node_indices([report.node for report in reports])
    for name, measurement in MEASUREMENTS.items():
        comparable: defaultdict[int, list[int]] = defaultdict(list)
        for rank, report in enumerate(reports):
            if name in report.values:
                comparable[indices[rank] if measurement.pairs else 0].append(rank)
        for ranks in comparable.values():
            if len(ranks) < MIN_RANKS:
                continue
            median = statistics.median(reports[rank].values[name] for rank in ranks)
            for rank in ranks:
                value = reports[rank].values[name]
                if measurement.is_outlier(value, median):
                    yield SlowNode(
                        node=reports[rank].node,
                        rank=rank,
                        measurement=name,
                        value=value,
                        median=median,
                        unit=measurement.unit,
                    )


def node_indices(nodes: Sequence[str]) -> list[int]:
    """Return the index of each process among those of its node, from the nodes by rank."""
    counts: Counter[str] = Counter()
    indices = []
    for node in nodes:
        indices.append(counts[node])
        counts[node] += 1
    return indices


def medians(reports: Sequence[Report]) -> dict[str, float]:
    """Return the median of each measurement that at least one process has made."""
    return {
        name: statistics.median(found)
        for name in MEASUREMENTS
        if (found := [report.values[name] for report in reports if name in report.values])
    }


def described(found: Sequence[SlowNode]) -> str:
    """Return a line for each slow node, starting with `slow node NODE: `."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for slow in found:
        lines[slow.node].append(
            f"{slow.measurement} of rank {slow.rank} is {slow.value:.3g} {slow.unit}, "
            f"the median of its gang is {slow.median:.3g} {slow.unit}"
        )
    return "\n".join(f"slow node {node}: {'; '.join(causes)}" for node, causes in lines.items())


def rounds(count: int, maximum: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs of `count` nodes (circle method), at most `maximum`.

    Each node is in at most one pair of a round, and no pair occurs twice.
    """
    seats = count + count % 2
    schedule = []
    for turn in range(min(seats - 1, maximum)):
        circle = [0, *(1 + (turn + seat) % (seats - 1) for seat in range(seats - 1))]
        pairs = zip(circle[: seats // 2], reversed(circle[seats // 2 :]), strict=True)
        # With an odd number, the partner of the last seat sits out.
        schedule.append([pair for pair in pairs if max(pair) < count])
    return schedule
