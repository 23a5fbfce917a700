"""Generator of the tables in docs/inference-benchmark.md from .bench/inference.json."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.bench.inference.contestants import CONTESTANTS, OURS
from tools.bench.inference.measure import (
    CLIENTS,
    MAX_LOAD,
    SAME_LOAD,
    SHARES,
    at_load_of,
    closed_loop,
    open_loop,
)
from tools.bench.inference.workloads import MAX_BATCH, MAX_DELAY_MS, MAX_QUEUE, WORKLOADS
from tools.bench.outcome import ratios, spread

BEGIN: Final = "<!-- measured: written by `make bench-inference BENCH_ARGS=--docs` -->"
END: Final = "<!-- end of measurements -->"


def report(result: Mapping[str, Any]) -> str:
    """Return all measurements as Markdown."""
    machine = result["machine"]
    parts = [
        f"Measured {result['when'][:10]} on {machine['cores']} cores of an {machine['processor']}, "
        f"Python {machine['python']}, {result['turns']} rounds; load average "
        f"{machine['loadAverage'][0]:.1f} at the end. Versions: "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + "."
    ]
    parts += [_workload(name, result) for name in result["servers"]]
    if effects := _networks(result["servers"]):
        parts.append(effects)
    if result.get("json"):
        parts.append(_json(result))
    if result.get("backends"):
        parts.append(_backends(result))
    if result.get("http"):
        parts.append(_http(result["http"]))
    parts.append(_goals(result["goals"]))
    parts.append(_configurations(result))
    return "\n\n".join(parts) + "\n"


def inserted(page: str, text: str) -> str:
    """Return a page with the text between its markers. Raise ValueError if they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must contain the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _workload(name: str, result: Mapping[str, Any]) -> str:
    workload, servers = WORKLOADS[name], result["servers"][name]
    shape = "x".join(str(size) for size in workload.shape)
    lines = [f"### {workload.title}, {shape} float32, deadline {_ms(workload.deadline)} ms"]
    if bare := result["bare"].get(name):
        lines.append(f"The bare loop computes {_range(bare)} samples/s in batches of {MAX_BATCH}.")
    head = [
        "server",
        *(f"{count} client{'s' if count > 1 else ''}, requests/s" for count in CLIENTS),
        f"p50/p95/p99 with {CLIENTS[-1]} clients, ms",
        "CPU per request, µs",
    ]
    rows = [
        [
            server,
            *(_range(_column(one, closed_loop(count), "throughput")) for count in CLIENTS),
            _tails(one["pooled"][MAX_LOAD]),
            _number(1e6 * spread(_column(one, MAX_LOAD, "cpu"))["median"]),
        ]
        for server, one in servers.items()
    ]
    lines.append(_table(head, rows))
    head = ["server", *(f"p50/p95/p99 at {share:.0%}, ms" for share in SHARES)]
    head += ["goodput at 120% / peak", "429", "errors", "memory, MiB"]
    rows = [
        [
            server,
            *(_tails(one["pooled"][open_loop(share)]) for share in SHARES),
            _goodput(one),
            str(sum(_column(one, open_loop(SHARES[-1]), "rejected"))),
            str(sum(sum(_column(one, level, "errors")) for level in one["levels"])),
            f"{max(one['memoryBytes']) / 2**20:.0f}",
        ]
        for server, one in servers.items()
    ]
    lines.append(_table(head, rows))
    if same := _same_load(servers):
        lines += ["Our server at 80% of each peer's capacity:", same]
    return "\n\n".join(lines)


def _networks(servers: Mapping[str, Any]) -> str:
    """Return a table of each server's speedup with our optimized network over plain PyTorch."""
    models = [name for name in servers if f"{name}-plain" in servers]
    names = dict.fromkeys(name for model in models for name in servers[model])
    rows = []
    for name in names:
        found = [
            (servers[model].get(name), servers[f"{model}-plain"].get(name)) for model in models
        ]
        rows.append(
            [name, *(_gain(ours, plain) if ours and plain else "-" for ours, plain in found)]
        )
    head = ["server", *(WORKLOADS[model].title for model in models)]
    title = "### Throughput at 64 clients with our optimized network, relative to plain PyTorch"
    return f"{title}\n\n{_table(head, rows)}" if models else ""


def _gain(ours: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    rates = [_column(one, MAX_LOAD, "throughput") for one in (ours, plain)]
    found = spread(ratios(*rates))
    return f"{found['median']:.2f} ({found['minimum']:.2f}-{found['maximum']:.2f})"


def _same_load(servers: Mapping[str, Any]) -> str:
    ours = servers.get(OURS, {}).get("pooled", {})
    level = open_loop(SAME_LOAD)
    rows = [
        [
            peer,
            f"{statistics.median(_column(one, level, 'offered')):,.0f}",
            _tails(one["pooled"][level]),
            _tails(ours[at_load_of(peer)]),
        ]
        for peer, one in servers.items()
        if at_load_of(peer) in ours
    ]
    head = ["peer", "requests per second", "peer p50/p95/p99, ms", "our p50/p95/p99, ms"]
    return _table(head, rows) if rows else ""


def _goodput(one: Mapping[str, Any]) -> str:
    level = open_loop(SHARES[-1])
    shares = [
        turn["goodput"]
        / max(turns[number]["throughput"] for name, turns in one["levels"].items() if name != level)
        for number, turn in enumerate(one["levels"][level])
    ]
    return f"{spread(shares)['median']:.2f}"


def _json(result: Mapping[str, Any]) -> str:
    title = WORKLOADS[result["json"]["workload"]].title
    rows = [
        [server, _range(one), _tails(result["json"]["pooled"][server])]
        for server, one in result["json"]["throughput"].items()
    ]
    head = ["server", "requests per second", "p50/p95/p99, ms"]
    return f"### {title} as JSON, 64 clients\n\n" + _table(head, rows)


def _backends(result: Mapping[str, Any]) -> str:
    head = ["model", "backend", "64 clients, requests/s", "1 client, p50 ms", "largest deviation"]
    rows = [
        [WORKLOADS[name].title, backend, _range(one["throughput"]), _ms(one["p50"]),
         f"{one['difference']:.1g}"]
        for name, found in result["backends"].items()
        for backend, one in found.items()
    ]  # fmt: skip
    return "### Backends of our server\n\n" + _table(head, rows)


def _http(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    sizes = list(next(iter(found.values())))
    rows = [[name, *(_range(one[size]) for size in sizes)] for name, one in found.items()]
    head = ["HTTP server", *sizes]
    return "### HTTP servers alone: 64 clients, echo\n\n" + _table(head, rows)


def _goals(goals: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            goal["name"],
            _number(goal["value"]),
            f"{'at most' if goal['at_most'] else 'at least'} {goal['goal']:g}",
            "yes" if goal["met"] else "**no**",
        ]
        for goal in goals
    ]
    return "### Goals\n\n" + _table(["goal", "value", "target", "met"], rows)


def _configurations(result: Mapping[str, Any]) -> str:
    measured = {name for servers in result["servers"].values() for name in servers}
    lines = [f"- {name}: {one.note}." for name, one in CONTESTANTS.items() if name in measured]
    common = (
        f"Servers that have these settings use batches of at most {MAX_BATCH}, a delay of "
        f"{MAX_DELAY_MS} ms and a queue of {MAX_QUEUE} requests. All use one thread on one core."
    )
    return "### Configuration of each server\n\n" + common + "\n\n" + "\n".join(lines)


def _column(one: Mapping[str, Any], level: str, figure: str) -> list[Any]:
    return [turn[figure] for turn in one["levels"][level]]


def _range(values: Sequence[float]) -> str:
    found = spread(values)
    return f"{found['median']:,.0f} ({found['minimum']:,.0f}-{found['maximum']:,.0f})"


def _tails(pool: Mapping[str, float | None]) -> str:
    return " / ".join(_ms(pool[name]) for name in ("p50", "p95", "p99"))


def _ms(seconds: float | None) -> str:
    """Format a duration in milliseconds with three significant digits."""
    if seconds is None:
        return "-"
    return _number(seconds * 1000)


def _number(value: float) -> str:
    """Format a number with three significant digits and without an exponent."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


COLORS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f")


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Plot p99 of open loops and the median of closed loops against the rate, for each model."""
    # Slow to import, and only this function needs it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A fixed salt makes the file reproducible.
    mpl.rcParams["svg.hashsalt"] = "inference-load"
    names = [name for name in result["servers"] if not WORKLOADS[name].plain]
    figure = Figure(figsize=(4.2 * len(names), 7), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        workload, servers = WORKLOADS[name], result["servers"][name]
        for server, one in servers.items():
            style = _style(server)
            shares = [open_loop(share) for share in SHARES]
            axes[0, column].plot(*_points(one, shares, "offered", "p99"), **style)
            clients = [closed_loop(count) for count in CLIENTS]
            axes[1, column].plot(*_points(one, clients, "throughput", "p50"), **style)
        axes[0, column].set_title(workload.title)
        axes[0, column].axhline(workload.deadline * 1000, color="black", lw=0.8, ls=":")
        axes[0, column].set_xlabel("requests per second, sent at 50, 80, 120% of capacity")
        axes[1, column].set_xlabel("requests per second, answered with 1, 4, 16, 64 clients")
        for row in (0, 1):
            axes[row, column].set(xscale="log", yscale="log")
            axes[row, column].grid(True, which="both", lw=0.3)
    axes[0, 0].set_ylabel("p99, ms (dotted: deadline)")
    axes[1, 0].set_ylabel("median, ms")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def _points(
    one: Mapping[str, Any], levels: list[str], rate: str, figure: str
) -> tuple[list[float], list[float]]:
    points = [
        (spread([turn[rate] for turn in one["levels"][level]])["median"], pool * 1000)
        for level in levels
        if (pool := one["pooled"][level][figure]) is not None
    ]
    return [x for x, _ in points], [y for _, y in points]


def _style(server: str) -> dict[str, Any]:
    color = COLORS[list(CONTESTANTS).index(server)]
    width = 2.5 if server == OURS else 1.2
    return {"label": server, "color": color, "lw": width, "marker": "o", "ms": 3 + width}
