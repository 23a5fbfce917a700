"""Measurements of a gang before its first step, to find slow nodes.

Every measurement is limited in time, and the number of rounds between nodes does not grow with the
gang. A gang of fewer than three processes is not measured.
"""

import os
import resource
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from training.config import TrainingConfig
from training.gang.outliers import (
    MIN_RANKS,
    Report,
    SlowNodeError,
    described,
    find_outliers,
    medians,
    node_indices,
    rounds,
)
from training.gang.preflight import SHARED_MEMORY, write_probe
from training.gang.world import World
from workload.progress import Preflight
from workload.report import emit
from workload.run.ranks import gather

SECONDS: Final = 0.25
"""Duration (s) of measuring products or an exchange: longer than two periods of a CPU quota."""

ROUNDS: Final = 4
"""Maximum number of other nodes with which a node exchanges data."""

ROUND_TRIPS: Final = 20
"""Number of messages of a latency measurement; the fastest counts."""

CHUNKS: Final = 33
"""Maximum number of chunks of a bandwidth measurement; the median counts."""

CLOCK_READINGS: Final = 3
DISK_BYTES: Final = 2**20


def check_gang(
    config: TrainingConfig, world: World, device: torch.device, beat: Callable[[], object]
) -> None:
    """Measure the gang and report slow nodes; raise SlowNodeError if `preflight` is strict.

    `beat` is called before each attempt.
    """
    # On GPUs, measurements use memory that the run needs, and they have not run on a GPU yet.
    automatic = "off" if device.type == "cuda" else "report"
    mode = automatic if config.preflight == "auto" else config.preflight
    if mode == "off" or world.size < MIN_RANKS:
        return
    began = time.monotonic()
    nodes = gather(os.environ.get("NODE_NAME") or socket.gethostname())

    def measure() -> list[Report]:
        beat()
        return gather(Report(nodes[world.rank], measured(nodes, world.rank, device, config)))

    reports, found = find_outliers(measure)
    bandwidth = all_reduce_bandwidth(device)
    if world.is_rank0:
        seconds = round(time.monotonic() - began, 3)
        emit(Preflight(seconds=seconds, all_reduce=bandwidth, **medians(reports)))
        for slow in found:
            emit(slow)
    if found and mode == "strict":
        raise SlowNodeError(described(found))


def measured(
    nodes: list[str], rank: int, device: torch.device, config: TrainingConfig
) -> dict[str, float]:
    """Return this process's measurements. All processes must call it together."""
    first = node_indices(nodes)[rank] == 0
    values = {"clock": clock_offset(rank), "matmul": matmul_speed(device)}
    values |= exchanged(nodes, rank, device)
    values |= memory_limits()
    if first:
        values |= disk_seconds(Path(config.run_dir))
    return values


def matmul_speed(device: torch.device) -> float:
    """Return the GFLOP/s of matrix products, which all processes compute at the same time."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.float16) if on_gpu else (512, torch.float32)
    # No random numbers: those of the run must not depend on this.
    factor = torch.ones(size, size, device=device, dtype=dtype)
    product = torch.mm(factor, factor)
    _await(device)
    dist.barrier()
    count, began, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < SECONDS:
        torch.mm(factor, factor, out=product)
        _await(device)
        count += 1
        elapsed = time.perf_counter() - began
    return 2e-9 * size**3 * count / elapsed


def exchanged(nodes: list[str], rank: int, device: torch.device) -> dict[str, float]:
    """Return the lowest latency (ms) and the best bandwidth (MB/s) to processes of other nodes.

    A slow peer makes only one exchange slow; a process is slow if all its exchanges are. Each
    process exchanges data with those that have the same index on other nodes.
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
    """Send messages to a peer and back; return the latency (ms) and the bandwidth (MB/s).

    Both processes return the measurement of the first one. Latency is measured with gloo.
    """

    def round_trip(message: torch.Tensor) -> float:
        began = time.perf_counter()
        for sends in (first, not first):
            if sends:
                dist.send(message, peer)
            else:
                dist.recv(message, peer)
        _await(message.device)
        return time.perf_counter() - began

    ping = torch.zeros(1)
    latency = min(round_trip(ping) for _ in range(ROUND_TRIPS)) / 2
    size = 2**25 if device.type == "cuda" else 2**20
    chunk = torch.zeros(size, dtype=torch.uint8, device=device)
    seconds: list[float] = []
    began = time.perf_counter()
    while not chunk[0].item():
        if first and (len(seconds) == CHUNKS - 1 or time.perf_counter() - began > SECONDS):
            chunk[0] = 1  # marks the last one
        seconds.append(round_trip(chunk))
    result = torch.tensor([latency * 1e3, 2e-6 * size / statistics.median(seconds)])
    if first:
        dist.send(result, peer)
    else:
        dist.recv(result, peer)
    return float(result[0]), float(result[1])


def all_reduce_bandwidth(device: torch.device) -> float:
    """Return the bus bandwidth of an all-reduce in MB/s, as nccl-tests defines it.

    It describes the whole gang and does not identify a slow node.
    """
    values = torch.zeros(2**24 if device.type == "cuda" else 2**20, device=device)
    dist.all_reduce(values[:1])
    _await(device)
    began = time.perf_counter()
    dist.all_reduce(values)
    _await(device)
    size = dist.get_world_size()
    return 2e-6 * (size - 1) / size * values.nbytes / (time.perf_counter() - began)


def clock_offset(rank: int) -> float:
    """Return the seconds by which the clock differs from the median of the gang."""
    offsets = []
    for _ in range(CLOCK_READINGS):
        dist.barrier()
        clocks = gather(time.time())
        offsets.append(abs(clocks[rank] - statistics.median(clocks)))
    return min(offsets)


def memory_limits() -> dict[str, float]:
    """Return the size of shared memory and the limit of locked memory in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # JSON has no infinity.
    values = {"locked_memory": float(2**63 if limit == resource.RLIM_INFINITY else limit)}
    if SHARED_MEMORY.is_dir():
        found = os.statvfs(SHARED_MEMORY)
        values["shared_memory"] = float(found.f_blocks * found.f_frsize)
    return values


def disk_seconds(run_dir: Path) -> dict[str, float]:
    """Return the seconds until 1 MiB is on disk; a later check reports errors."""
    began = time.perf_counter()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_probe(run_dir, bytes(DISK_BYTES))
    except OSError:
        return {}
    return {"disk": time.perf_counter() - began}


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
