"""Measurements that find the slow nodes of a gang before its first step.

Every measurement is limited in time or size, and a node exchanges data with only a few other
nodes, however large the gang is. A gang of fewer than three processes is not measured.

A process is an outlier if its value is worse than the gang's median by both a factor and an
absolute difference. Measurements are noisy, so a process is reported only if it is an outlier in
every attempt, and then with its best value.
"""

import itertools
import os
import resource
import shutil
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from training.config import TrainingConfig
from training.gang.distributed import gather
from training.gang.preflight import SHARED_MEMORY, write_probe
from training.gang.world import World
from workload.progress import Preflight, SlowNode
from workload.report import emit

MIN_RANKS: Final = 3
"""Minimum number of values for a meaningful median."""

ATTEMPTS: Final = 3
"""Number of consecutive measurements in which a process must be an outlier to count as slow."""


class SlowNodeError(Exception):
    """A node of the gang is slow. Restarting the gang on other nodes fixes this."""


@dataclass(frozen=True)
class Measurement:
    """Kind of measurement. Outliers are worse than the median by both `factor` and `difference`."""

    unit: str
    factor: float
    difference: float = 0
    lower_is_better: bool = False
    between_nodes: bool = False
    """True if data is exchanged between nodes. In this case, only processes with the same index on
    their nodes are comparable."""

    def best(self, values: Sequence[float]) -> float:
        """Return the best of several values of one process."""
        return min(values) if self.lower_is_better else max(values)

    def is_outlier(self, value: float, median: float) -> bool:
        """Return whether a value is much worse than the median."""
        low, high = (median, value) if self.lower_is_better else (value, median)
        return high >= low * self.factor and high - low >= self.difference


MEASUREMENTS: Final = {
    "matmul": Measurement("GFLOP/s", factor=2),
    "bandwidth": Measurement("MB/s", factor=3, between_nodes=True),
    "latency": Measurement("ms", factor=3, difference=1, lower_is_better=True, between_nodes=True),
    "disk": Measurement("s", factor=3, difference=1, lower_is_better=True),
    "clock": Measurement("s", factor=1, difference=1, lower_is_better=True),
    "shared_memory": Measurement("bytes", factor=2, difference=1),
    "locked_memory": Measurement("bytes", factor=2, difference=1),
}


@dataclass(frozen=True)
class Report:
    """Results of one process, keyed by measurement. Failed measurements are omitted."""

    node: str
    values: dict[str, float]


def find_outliers(measure: Callable[[], list[Report]]) -> tuple[list[Report], list[SlowNode]]:
    """Measure until every outlier has had one normal value, but at most `ATTEMPTS` times.

    Return the best values, and the outliers that remain. `measure` returns the reports of all ranks
    in order, and must return the same list on every rank.
    """
    attempts = [measure()]
    suspects = _outlier_keys(outliers(attempts[0]))
    while suspects and len(attempts) < ATTEMPTS:
        attempts.append(measure())
        suspects &= _outlier_keys(outliers(attempts[-1]))
    best = [_best(reports) for reports in zip(*attempts, strict=True)]
    return best, [slow for slow in outliers(best) if (slow.rank, slow.measurement) in suspects]


def _outlier_keys(found: Iterable[SlowNode]) -> set[tuple[int, str]]:
    """Return the rank and the measurement of each outlier."""
    return {(slow.rank, slow.measurement) for slow in found}


def _best(reports: Sequence[Report]) -> Report:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in itertools.chain(*(report.values.items() for report in reports)):
        values[name].append(value)
    best = {name: MEASUREMENTS[name].best(found) for name, found in values.items()}
    return Report(reports[0].node, best)


def outliers(reports: Sequence[Report]) -> Iterator[SlowNode]:
    """Yield each process that is much worse than the median of comparable processes."""
    indices = node_indices([report.node for report in reports])
    for name, measurement in MEASUREMENTS.items():
        comparable: defaultdict[int, list[int]] = defaultdict(list)
        for rank, report in enumerate(reports):
            if name in report.values:
                comparable[indices[rank] if measurement.between_nodes else 0].append(rank)
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
    """Return each rank's index among the processes on its node; `nodes` lists every rank's node."""
    indices: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    return [next(indices[node]) for node in nodes]


def medians(reports: Sequence[Report]) -> dict[str, float]:
    """Return the median of each measurement for which at least one process has a value."""
    return {
        name: statistics.median(found)
        for name in MEASUREMENTS
        if (found := [report.values[name] for report in reports if name in report.values])
    }


def describe_slow_nodes(found: Sequence[SlowNode]) -> str:
    """Return a line for each slow node, starting with `slow node NODE: `."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for slow in found:
        lines[slow.node].append(
            f"{slow.measurement} of rank {slow.rank} is {slow.value:.3g} {slow.unit}, "
            f"but the median of its gang is {slow.median:.3g} {slow.unit}"
        )
    return "\n".join(f"slow node {node}: {'; '.join(causes)}" for node, causes in lines.items())


def rounds(count: int, maximum: int) -> list[list[tuple[int, int]]]:
    """Return at most `maximum` rounds of a round-robin tournament of `count` nodes (circle method).

    Each node is in at most one pair of a round, and no pair occurs twice.
    """
    slots = count + count % 2
    schedule = []
    for turn in range(min(slots - 1, maximum)):
        order = [0, *(1 + (turn + slot) % (slots - 1) for slot in range(slots - 1))]
        pairs = zip(order[: slots // 2], reversed(order[slots // 2 :]), strict=True)
        # With an odd number of nodes, the last index stands for no node, so its pair is skipped.
        schedule.append([pair for pair in pairs if max(pair) < count])
    return schedule


MEASUREMENT_SECONDS: Final = 0.25
"""Duration (s) of a matmul measurement, and time limit (s) of a bandwidth measurement. It is longer
than two periods of a CPU quota."""

ROUNDS: Final = 4
"""Maximum number of other nodes with which a node exchanges data."""

ROUND_TRIPS: Final = 20
"""Number of round trips in a latency measurement. The time of the fastest one is used."""

CHUNKS: Final = 33
"""Maximum number of chunks in a bandwidth measurement. Their median time is used."""

CLOCK_READINGS: Final = 3
DISK_BYTES: Final = 2**20


def check_gang(
    config: TrainingConfig, world: World, device: torch.device, beat: Callable[[], object]
) -> None:
    """Measure the gang and report slow nodes. If there are any, raise SlowNodeError in strict mode.

    `beat` is called before each attempt.
    """
    # On GPUs, the measurements are off by default: they use memory that the run needs, and they are
    # untested on multiple GPUs.
    automatic = "off" if device.type == "cuda" else "report"
    mode = automatic if config.preflight == "auto" else config.preflight
    if mode == "off" or world.size < MIN_RANKS:
        return
    began = time.monotonic()
    nodes = gather(os.environ.get("NODE_NAME") or socket.gethostname())

    def measure() -> list[Report]:
        beat()
        return gather(Report(nodes[world.rank], measure_process(nodes, world.rank, device, config)))

    reports, found = find_outliers(measure)
    bandwidth = all_reduce_bandwidth(device)
    if world.is_rank0:
        seconds = round(time.monotonic() - began, 3)
        emit(Preflight(seconds=seconds, all_reduce=bandwidth, **medians(reports)))
        for slow in found:
            emit(slow)
    if found and mode == "strict":
        raise SlowNodeError(describe_slow_nodes(found))


def measure_process(
    nodes: list[str], rank: int, device: torch.device, config: TrainingConfig
) -> dict[str, float]:
    """Return this process's measurements. All processes must call this function together."""
    first = node_indices(nodes)[rank] == 0
    values = {"clock": clock_offset(rank), "matmul": matmul_speed(device)}
    values |= measure_network(nodes, rank, device)
    values |= memory_limits()
    if first:
        values |= disk_seconds(Path(config.run_dir))
    return values


def matmul_speed(device: torch.device) -> float:
    """Return the GFLOP/s of a matrix product that all processes compute at the same time."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.float16) if on_gpu else (512, torch.float32)
    # Do not use random numbers: the measurement must not affect the run's random numbers.
    factor = torch.ones(size, size, device=device, dtype=dtype)
    product = torch.mm(factor, factor)
    _synchronize(device)
    dist.barrier()
    count, began, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < MEASUREMENT_SECONDS:
        torch.mm(factor, factor, out=product)
        _synchronize(device)
        count += 1
        elapsed = time.perf_counter() - began
    return 2e-9 * size**3 * count / elapsed


def measure_network(nodes: list[str], rank: int, device: torch.device) -> dict[str, float]:
    """Return the lowest latency (ms) and the best bandwidth (MB/s) to processes on other nodes.

    Each process exchanges data with the processes that have the same index on other nodes. A slow
    peer slows down only one of these exchanges, so a process counts as slow only if all of its
    exchanges are slow.
    """
    members = [[i for i, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    found = []
    for pairs in rounds(len(members), ROUNDS):
        for one, other in pairs:
            for pair in zip(members[one], members[other], strict=False):
                if rank in pair:
                    found.append(_exchange(sum(pair) - rank, rank < sum(pair) - rank, device))
    if not found:
        return {}
    latencies, bandwidths = zip(*found, strict=True)
    return {"latency": min(latencies), "bandwidth": max(bandwidths)}


def _exchange(peer: int, first: bool, device: torch.device) -> tuple[float, float]:
    """Exchange messages with a peer, and return the latency (ms) and the bandwidth (MB/s).

    Both processes return the measurement of the first one. Latency is measured with gloo.
    """

    def round_trip(message: torch.Tensor) -> float:
        began = time.perf_counter()
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(message, peer)
        _synchronize(message.device)
        return time.perf_counter() - began

    ping = torch.zeros(1)
    latency = min(round_trip(ping) for _ in range(ROUND_TRIPS)) / 2
    size = 2**25 if device.type == "cuda" else 2**20
    chunk = torch.zeros(size, dtype=torch.uint8, device=device)
    seconds: list[float] = []
    began = time.perf_counter()
    while not chunk[0].item():
        if first and (
            len(seconds) == CHUNKS - 1 or time.perf_counter() - began > MEASUREMENT_SECONDS
        ):
            chunk[0] = 1  # marks the last chunk
        seconds.append(round_trip(chunk))
    result = torch.tensor([latency * 1e3, 2e-6 * size / statistics.median(seconds)])
    (dist.send if first else dist.recv)(result, peer)
    return float(result[0]), float(result[1])


def all_reduce_bandwidth(device: torch.device) -> float:
    """Return the bus bandwidth of an all-reduce in MB/s, as nccl-tests defines it.

    It describes the whole gang and does not identify a slow node.
    """
    values = torch.zeros(2**24 if device.type == "cuda" else 2**20, device=device)
    dist.all_reduce(values[:1])
    _synchronize(device)
    began = time.perf_counter()
    dist.all_reduce(values)
    _synchronize(device)
    size = dist.get_world_size()
    return 2e-6 * (size - 1) / size * values.nbytes / (time.perf_counter() - began)


def clock_offset(rank: int) -> float:
    """Return the seconds by which this process's clock differs from the median of the gang."""
    offsets = []
    for _ in range(CLOCK_READINGS):
        dist.barrier()
        clocks = gather(time.time())
        offsets.append(abs(clocks[rank] - statistics.median(clocks)))
    return min(offsets)


def memory_limits() -> dict[str, float]:
    """Return the size of shared memory and the locked memory limit, both in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # JSON has no infinity, so 2**63 stands for an unlimited value.
    values = {"locked_memory": float(2**63 if limit == resource.RLIM_INFINITY else limit)}
    if SHARED_MEMORY.is_dir():
        values["shared_memory"] = float(shutil.disk_usage(SHARED_MEMORY).total)
    return values


def disk_seconds(run_dir: Path) -> dict[str, float]:
    """Return the time (s) to write 1 MiB to disk.

    The result is empty after an error, which a later check reports.
    """
    began = time.perf_counter()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_probe(run_dir, DISK_BYTES)
    except OSError:
        return {}
    return {"disk": time.perf_counter() - began}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
