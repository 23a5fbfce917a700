"""Measurements of all servers in turn, so that other load on the host affects each equally."""

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.inference.contestants import OURS, Contestant, Task
from tools.bench.inference.figures import Records, Window, figures, pooled
from tools.bench.inference.formats import Format
from tools.bench.inference.load import Generator, Load, Target
from tools.bench.inference.process import (
    RunningServer,
    ServerError,
    cpu_seconds,
    free_port,
    serving,
)
from tools.bench.inference.workloads import MAX_BATCH, MAX_QUEUE, Array, Workload
from tools.bench.outcome import print_line

CLIENTS: Final = (1, 4, 16, 64)
SHARES: Final = (0.5, 0.8, 1.2)
"""Shares of a server's capacity. The capacity is its rate with 64 clients in the same round."""

SAME_LOAD: Final = 0.8
"""Our server is also measured at this share of each peer's capacity."""

DURATION_FACTORS: Final = {0.8: 4, 1.2: 2}
"""Factors for the duration of a measurement, keyed by share of the capacity. Tail latencies need
many requests."""

CONNECTING: Final = 1.0
"""Duration (s) for which an open loop below the capacity runs before it is measured.

During this time, the load generator opens its connections, which causes a backlog. At 80% of the
capacity, clearing the backlog takes several times as long as opening the connections, so the
backlog would determine the tail latency.
"""

FULL_BACKLOG: Final = MAX_QUEUE + 2 * MAX_BATCH
"""Backlog (requests) at which a bounded queue is full, including two batches in progress."""

MAX_OVERLOAD_SECONDS: Final = 15.0
"""Maximum duration (s) of overload before a measurement."""

MAX_WARM_UPS: Final = 6
"""Maximum number of warm-up measurements after a pause; the minimum is two."""

WARM_UP_SPEEDUP: Final = 1.1
"""The warm-up continues while the throughput improves by at least this factor."""

MIN_REQUESTS: Final = 30
"""Minimum expected number of requests in an open loop. To reach it, the loop is extended to at
most 10 s."""

WARM_UP: Final = 0.15
"""Initial share of a closed loop that is discarded, because the load is still building up."""


def closed_loop(clients: int) -> str:
    """Return the name of a closed-loop level."""
    return f"{clients} clients"


MAX_LOAD: Final = closed_loop(CLIENTS[-1])


def open_loop(share: float) -> str:
    """Return the name of an open-loop level."""
    return f"{share:.0%} load"


def at_load_of(peer: str) -> str:
    """Return the name of the level at which our server receives the same rate as a peer."""
    return f"{peer}'s {SAME_LOAD:.0%} load"


@dataclass
class Series:
    """Measurements of one server, one sample per round."""

    levels: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    difference: float = 0.0
    at_peer_load: dict[str, list[tuple[Records, Window]]] = field(default_factory=dict)
    """Maps each peer to the records of our server at a share of that peer's capacity."""
    records: dict[str, list[tuple[Records, Window]]] = field(default_factory=dict)

    def add(
        self, level: str, records: Records, window: Window, deadline: float, cpu: float
    ) -> float:
        """Add a measurement with its CPU time (s) per request, and return its throughput."""
        found = figures(records, deadline, window)
        self.levels.setdefault(level, []).append({**asdict(found), "cpu": cpu})
        self.records.setdefault(level, []).append((records, window))
        return found.throughput

    def finish(self, deadline: float) -> None:
        """Compute the percentiles over all rounds."""
        for level, turns in self.records.items():
            self.pools[level] = pooled(turns, deadline)
        for peer, turns in self.at_peer_load.items():
            self.pools[at_load_of(peer)] = pooled(turns, deadline)

    def median(self, level: str, figure: str) -> float:
        """Return the median of a figure over all rounds."""
        return float(statistics.median(turn[figure] for turn in self.levels[level]))

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON data, without individual requests."""
        return {
            "levels": self.levels,
            "pooled": self.pools,
            "memoryBytes": self.memory,
            "largestDifference": self.difference,
        }


@dataclass(frozen=True)
class Bench:
    """Parameters of all measurements. `turns` is the number of rounds."""

    generator: Generator
    server_core: int
    turns: int
    seconds: float


@contextlib.contextmanager
def start_servers(
    contestants: Sequence[Contestant],
    workload: Workload,
    data_format: Format,
    export: Path,
    expected: Array,
    core: int,
) -> Iterator[dict[str, tuple[RunningServer, float]]]:
    """Start the servers; yield them paused, each with its largest deviation from `expected`.

    Servers that fail to start, or that respond incorrectly, are reported and skipped.
    """
    with contextlib.ExitStack() as stack:
        servers = {}
        for contestant in contestants:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            task = Task(workload, data_format, export, free_port(), scratch, contestant.python)
            try:
                server = stack.enter_context(serving(contestant, task, core))
                difference = server.check(expected)
            except ServerError as error:
                print_line(f"{workload.title}: {contestant.name} is skipped: {error}")
                continue
            print_line(
                f"{workload.title}: {contestant.name} is ready (difference {difference:.1g})"
            )
            server.pause()
            servers[contestant.name] = (server, difference)
        yield servers


def measure_in_turns(
    bench: Bench,
    servers: dict[str, tuple[RunningServer, float]],
    workload: Workload,
    *,
    clients: Sequence[int] = CLIENTS,
    shares: Sequence[float] = SHARES,
    each_turn: Callable[[], None] = lambda: None,
) -> dict[str, Series]:
    """Measure each server at every level in each round. `each_turn` is called before each round.

    At the end of a round, our server is measured at `SAME_LOAD` of each peer's capacity.
    """
    series = {name: Series(difference=difference) for name, (_, difference) in servers.items()}
    for turn in range(bench.turns):
        each_turn()
        for name, (server, _) in _rotated(servers, turn):
            print_line(f"{workload.title}, round {turn + 1} of {bench.turns}: {name} …")
            with server.resumed():
                measure(bench, server, workload, series[name], clients, shares)
                series[name].memory.append(server.memory())
        if OURS in servers and SAME_LOAD in shares:
            ours, _ = servers[OURS]
            with ours.resumed():
                at_loads_of_peers(bench, ours, workload, series)
    for one in series.values():
        one.finish(workload.deadline)
    return series


def measure(
    bench: Bench,
    server: RunningServer,
    workload: Workload,
    series: Series,
    clients: Sequence[int],
    shares: Sequence[float],
) -> None:
    """Measure a server in one round, first with `clients`, then at `shares` of its capacity."""
    base = bench.seconds * workload.duration_factor
    warm_up(bench, server.target, base / 2)
    capacity = 0.0
    for count in clients:
        records, cpu = _measure_load(bench, server, Load(base, clients=count))
        window = Window(WARM_UP * base, base)
        capacity = series.add(closed_loop(count), records, window, workload.deadline, cpu)
    for share in shares:
        seconds = base * DURATION_FACTORS.get(share, 1)
        rate = max(share * capacity, 1)
        seconds = max(seconds, min(MIN_REQUESTS / rate, 10))
        begin = CONNECTING
        if share > 1:
            begin = overloaded_after(capacity, share, workload.deadline)
        window = Window(begin, begin + seconds)
        records, cpu = _measure_load(bench, server, Load(window.end, rate=rate))
        series.add(open_loop(share), records, window, workload.deadline, cpu)


def _measure_load(bench: Bench, server: RunningServer, load: Load) -> tuple[Records, float]:
    """Send load. Return the records of its requests, and the server's CPU time (s) per request."""
    before = cpu_seconds(server.processes())
    records = bench.generator.run(server.target, load)
    return records, (cpu_seconds(server.processes()) - before) / len(records.rows)


def at_loads_of_peers(
    bench: Bench, server: RunningServer, workload: Workload, series: dict[str, Series]
) -> None:
    """Measure our server at `SAME_LOAD` of each peer's capacity, if it can handle that rate."""
    base = bench.seconds * workload.duration_factor
    seconds = base * DURATION_FACTORS.get(SAME_LOAD, 1)
    warm_up(bench, server.target, base / 2)
    own = series[OURS]
    for peer, one in series.items():
        rate = SAME_LOAD * capacity_of(one)
        if peer == OURS or rate >= capacity_of(own):
            continue
        seconds = max(seconds, min(MIN_REQUESTS / rate, 10))
        window = Window(CONNECTING, CONNECTING + seconds)
        records = bench.generator.run(server.target, Load(window.end, rate=rate))
        own.at_peer_load.setdefault(peer, []).append((records, window))


def capacity_of(series: Series) -> float:
    """Return the capacity that was measured in the last round."""
    return float(series.levels[closed_loop(CLIENTS[-1])][-1]["throughput"])


def warm_up(bench: Bench, target: Target, seconds: float) -> None:
    """Send load until throughput is stable.

    The kernel may have reclaimed memory pages of the server while it was paused.
    """
    best = 0.0
    for _ in range(MAX_WARM_UPS):
        records = bench.generator.run(target, Load(seconds, clients=16))
        rate = figures(records, 1, Window(0, seconds)).throughput
        if rate < WARM_UP_SPEEDUP * best:
            return
        best = max(best, rate)


def overloaded_after(capacity: float, share: float, deadline: float) -> float:
    """Return the seconds of overload after which the measurement may start.

    By then, a bounded queue is full, and the wait in an unbounded queue exceeds the deadline.
    """
    until_full = FULL_BACKLOG / max((share - 1) * capacity, 1)
    until_late = deadline * share / (share - 1)
    return min(max(until_full, until_late), MAX_OVERLOAD_SECONDS)


def _rotated(
    servers: dict[str, tuple[RunningServer, float]], turn: int
) -> list[tuple[str, tuple[RunningServer, float]]]:
    items = list(servers.items())
    begin = turn % max(len(items), 1)
    return items[begin:] + items[:begin]
