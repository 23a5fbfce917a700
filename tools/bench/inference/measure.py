"""All servers of one workload in turns, so that whatever else the machine does falls on all."""

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.bench.inference.contestants import OURS, Contestant, Task
from tools.bench.inference.environments import python_of
from tools.bench.inference.figures import Records, Window, figures, pooled
from tools.bench.inference.forms import Form
from tools.bench.inference.load import Generator, Load, Target
from tools.bench.inference.process import Running, ServerError, free_port, serving
from tools.bench.inference.workloads import MAX_BATCH, MAX_QUEUE, Array, Workload
from tools.bench.outcome import say

CLIENTS: Final = (1, 4, 16, 64)
SHARES: Final = (0.5, 0.8, 1.2)
"""Of a server's own capacity: what it answers to 64 clients in the same turn."""

SAME_LOAD: Final = 0.8
"""Of each peer's capacity: ours is sent as many requests as well."""

LONGER: Final = {0.8: 2, 1.2: 2}
"""Tails need many requests."""

FILLED: Final = MAX_QUEUE + 2 * MAX_BATCH
"""Requests that a server with a bounded queue has taken when it begins to refuse."""

LONGEST: Final = 15.0
"""Seconds for which more than the capacity is sent before anything counts, at most."""

WARM_UPS: Final = 6
"""Most measurements that are thrown away after a pause; at least two are."""

FASTER: Final = 1.1
"""So much faster than before is still warming up."""

FEWEST: Final = 30
"""Requests on average, however slow a server is."""

WARM_UP: Final = 0.15
"""Share of a measurement that does not count: connections are made then, and what is answered was
asked when there was no load yet."""


def closed(clients: int) -> str:
    """Name of a level."""
    return f"{clients} clients"


def opened(share: float) -> str:
    """Name of a level."""
    return f"{share:.0%} load"


def at_load_of(peer: str) -> str:
    """Name of the level at which a peer has its share of the capacity, and ours the same rate."""
    return f"{peer}'s {SAME_LOAD:.0%} load"


@dataclass
class Series:
    """What was measured of one server, a sample a turn."""

    levels: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    difference: float = 0.0
    beside: dict[str, list[tuple[Records, Window]]] = field(default_factory=dict)
    """By peer, at the load that is a share of that peer's capacity."""
    records: dict[str, list[tuple[Records, Window]]] = field(default_factory=dict)

    def add(self, level: str, records: Records, window: Window, deadline: float) -> float:
        """One measurement; gives its throughput."""
        found = figures(records, deadline, window)
        self.levels.setdefault(level, []).append(asdict(found))
        self.records.setdefault(level, []).append((records, window))
        return found.throughput

    def finish(self, deadline: float) -> None:
        """Percentiles over all turns."""
        for level, turns in self.records.items():
            self.pools[level] = pooled(turns, deadline)
        for peer, turns in self.beside.items():
            self.pools[at_load_of(peer)] = pooled(turns, deadline)

    def median(self, level: str, figure: str) -> float:
        """Of the turns."""
        return float(statistics.median(turn[figure] for turn in self.levels[level]))

    def to_json(self) -> dict[str, Any]:
        """Without the single requests."""
        return {
            "levels": self.levels,
            "pooled": self.pools,
            "memoryBytes": self.memory,
            "largestDifference": self.difference,
        }


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    generator: Generator
    server_core: int
    turns: int
    seconds: float


@contextlib.contextmanager
def running(
    contestants: Sequence[Contestant],
    workload: Workload,
    form: Form,
    export: Path,
    expected: Array,
    core: int,
) -> Iterator[dict[str, tuple[Running, float]]]:
    """All that start and answer rightly, paused, with the largest difference of an answer.

    Others are told and left out.
    """
    with contextlib.ExitStack() as stack:
        servers = {}
        for contestant in contestants:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            python = python_of(contestant.environment)
            task = Task(workload, form, export, free_port(), scratch, python)
            try:
                server = stack.enter_context(serving(contestant, task, core))
                difference = server.check(expected)
            except ServerError as error:
                say(f"{workload.title}: {contestant.name} is left out: {error}")
                continue
            say(f"{workload.title}: {contestant.name} answers ({difference:.1g} off)")
            server.pause()
            servers[contestant.name] = (server, difference)
        yield servers


def in_turns(
    bench: Bench,
    servers: dict[str, tuple[Running, float]],
    workload: Workload,
    *,
    clients: Sequence[int] = CLIENTS,
    shares: Sequence[float] = SHARES,
    each_turn: Callable[[], None] = lambda: None,
) -> dict[str, Series]:
    """Each server at every level, turn by turn, and what else is to be measured in each.

    At the end of a turn ours gets the load that was a share of each peer's capacity.
    """
    series = {name: Series(difference=off) for name, (_, off) in servers.items()}
    for turn in range(bench.turns):
        each_turn()
        for name, (server, _) in _rotated(servers, turn):
            say(f"{workload.title}, turn {turn + 1} of {bench.turns}: {name} …")
            with server.awake():
                measure(bench, server, workload, series[name], clients, shares)
                series[name].memory.append(server.memory())
        if OURS in servers and SAME_LOAD in shares:
            ours, _ = servers[OURS]
            with ours.awake():
                at_loads_of_peers(bench, ours, workload, series)
    for one in series.values():
        one.finish(workload.deadline)
    return series


def measure(
    bench: Bench,
    server: Running,
    workload: Workload,
    series: Series,
    clients: Sequence[int],
    shares: Sequence[float],
) -> None:
    """One turn of one server: more and more clients, then shares of what the most were given."""
    target, base = server.target, bench.seconds * workload.patience
    warm_up(bench, target, base / 2)
    capacity = 0.0
    for count in clients:
        records = bench.generator.run(target, Load(base, clients=count))
        window = Window(WARM_UP * base, base)
        capacity = series.add(closed(count), records, window, workload.deadline)
    for share in shares:
        seconds = base * LONGER.get(share, 1)
        rate = max(share * capacity, 1)
        seconds = max(seconds, min(FEWEST / rate, 10))
        begin = WARM_UP * seconds
        if share > 1:
            begin = overloaded_after(capacity, share, workload.deadline)
            seconds += begin
        records = bench.generator.run(target, Load(seconds, rate=rate))
        series.add(opened(share), records, Window(begin, seconds), workload.deadline)


def at_loads_of_peers(
    bench: Bench, server: Running, workload: Workload, series: dict[str, Series]
) -> None:
    """Ours in the same turn, where it can answer as much at all."""
    base = bench.seconds * workload.patience
    seconds = base * LONGER.get(SAME_LOAD, 1)
    warm_up(bench, server.target, base / 2)
    own = series[OURS]
    for peer, one in series.items():
        rate = SAME_LOAD * capacity_of(one)
        if peer == OURS or rate >= capacity_of(own):
            continue
        seconds = max(seconds, min(FEWEST / rate, 10))
        records = bench.generator.run(server.target, Load(seconds, rate=rate))
        window = Window(WARM_UP * seconds, seconds)
        own.beside.setdefault(peer, []).append((records, window))


def capacity_of(series: Series) -> float:
    """What the last turn gave."""
    return float(series.levels[closed(CLIENTS[-1])][-1]["throughput"])


def warm_up(bench: Bench, target: Target, seconds: float) -> None:
    """Ask until it gets no faster: of a server that was stopped, the system takes pages away."""
    best = 0.0
    for _ in range(WARM_UPS):
        records = bench.generator.run(target, Load(seconds, clients=16))
        rate = figures(records, 1, Window(0, seconds)).throughput
        if rate < FASTER * best:
            return
        best = max(best, rate)


def overloaded_after(capacity: float, share: float, deadline: float) -> float:
    """Seconds until a bounded queue has filled, or an unbounded one has outgrown the deadline."""
    filled = FILLED / max((share - 1) * capacity, 1)
    outgrown = deadline * share / (share - 1)
    return min(max(filled, outgrown), LONGEST)


def _rotated(
    servers: dict[str, tuple[Running, float]], turn: int
) -> list[tuple[str, tuple[Running, float]]]:
    items = list(servers.items())
    begin = turn % max(len(items), 1)
    return items[begin:] + items[:begin]
