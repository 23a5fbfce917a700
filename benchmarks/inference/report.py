"""The tables of docs/inference-benchmark.md, from .bench/inference.json."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.inference.contestants import CONTESTANTS, OURS
from benchmarks.inference.measure import (
    CLIENTS,
    SAME_LOAD,
    SHARES,
    at_load_of,
    closed,
    opened,
)
from benchmarks.inference.workloads import MAX_BATCH, MAX_DELAY_MS, MAX_QUEUE, WORKLOADS
from benchmarks.outcome import spread

BEGIN: Final = "<!-- measured: written by `make bench-inference BENCH_ARGS=--docs` -->"
END: Final = "<!-- end of what is measured -->"


def report(result: Mapping[str, Any]) -> str:
    """Everything that was measured, as Markdown."""
    machine = result["machine"]
    parts = [
        f"Measured {result['when'][:10]} on {machine['cores']} cores of an {machine['processor']}, "
        f"Python {machine['python']}, {result['turns']} turns; load average "
        f"{machine['loadAverage'][0]:.1f} at the end. Versions: "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + "."
    ]
    parts += [_workload(name, result) for name in result["servers"]]
    if result.get("json"):
        parts.append(_forms(result))
    if result.get("backends"):
        parts.append(_backends(result))
    if result.get("http"):
        parts.append(_http(result["http"]))
    parts.append(_goals(result["goals"]))
    parts.append(_setups(result))
    return "\n\n".join(parts) + "\n"


def inserted(page: str, text: str) -> str:
    """A page with the text between its two marks. Raises ValueError when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def _workload(name: str, result: Mapping[str, Any]) -> str:
    workload, servers = WORKLOADS[name], result["servers"][name]
    shape = "x".join(str(size) for size in workload.shape)
    lines = [f"### {workload.title}, {shape} float32, deadline {_ms(workload.deadline)} ms"]
    if bare := result["bare"].get(name):
        rates = ", ".join(f"{_range(rates)} ({kind})" for kind, rates in bare.items())
        lines.append(f"Samples a second of the bare loop, batches of {MAX_BATCH}: {rates}.")
    head = ["server", *(f"{count} clients, 1/s" for count in CLIENTS), "p50/p95/p99 of 64, ms"]
    rows = [
        [
            server,
            *(_range(_column(one, closed(count), "throughput")) for count in CLIENTS),
            _tails(one["pooled"][closed(CLIENTS[-1])]),
        ]
        for server, one in servers.items()
    ]
    lines.append(_table(head, rows))
    head = ["server", *(f"p50/p95/p99 at {share:.0%}, ms" for share in SHARES)]
    head += ["goodput at 120% to peak", "429", "errors", "memory, MiB"]
    rows = [
        [
            server,
            *(_tails(one["pooled"][opened(share)]) for share in SHARES),
            _goodput(one),
            str(sum(_column(one, opened(SHARES[-1]), "refused"))),
            str(sum(sum(_column(one, level, "errors")) for level in one["levels"])),
            f"{max(one['memoryBytes']) / 2**20:.0f}",
        ]
        for server, one in servers.items()
    ]
    lines.append(_table(head, rows))
    if same := _same_load(servers):
        lines += ["Ours at the loads that are 80% of the peers' capacities:", same]
    return "\n\n".join(lines)


def _same_load(servers: Mapping[str, Any]) -> str:
    ours = servers.get(OURS, {}).get("pooled", {})
    level = opened(SAME_LOAD)
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
    head = ["peer", "requests a second", "its p50/p95/p99, ms", "ours, ms"]
    return _table(head, rows) if rows else ""


def _goodput(one: Mapping[str, Any]) -> str:
    level = opened(SHARES[-1])
    ratios = [
        turn["goodput"]
        / max(turns[number]["throughput"] for name, turns in one["levels"].items() if name != level)
        for number, turn in enumerate(one["levels"][level])
    ]
    return f"{spread(ratios)['median']:.2f}"


def _forms(result: Mapping[str, Any]) -> str:
    title = WORKLOADS[result["json"]["workload"]].title
    rows = [
        [server, _range(one), _tails(result["json"]["pooled"][server])]
        for server, one in result["json"]["throughput"].items()
    ]
    head = ["server", "requests a second", "p50/p95/p99, ms"]
    return f"### {title} as JSON, 64 clients\n\n" + _table(head, rows)


def _backends(result: Mapping[str, Any]) -> str:
    head = ["model", "backend", "64 clients, 1/s", "1 client, p50 ms", "off by at most"]
    rows = [
        [WORKLOADS[name].title, backend, _range(one["throughput"]), _ms(one["p50"]),
         f"{one['difference']:.1g}"]
        for name, found in result["backends"].items()
        for backend, one in found.items()
    ]  # fmt: skip
    return "### The backends of our server\n\n" + _table(head, rows)


def _http(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    sizes = list(next(iter(found.values())))
    rows = [[name, *(_range(one[size]) for size in sizes)] for name, one in found.items()]
    head = ["HTTP server", *(f"{size}, 1/s" for size in sizes)]
    return "### HTTP servers alone, 64 clients, the body sent back\n\n" + _table(head, rows)


def _goals(goals: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            goal["name"],
            f"{goal['value']:.3g}",
            f"{'at most' if goal['at_most'] else 'at least'} {goal['goal']:g}",
            "yes" if goal["met"] else "**no**",
        ]
        for goal in goals
    ]
    return "### Goals\n\n" + _table(["goal", "value", "wanted", "met"], rows)


def _setups(result: Mapping[str, Any]) -> str:
    asked = {name for servers in result["servers"].values() for name in servers}
    lines = [f"- {name}: {one.note}." for name, one in CONTESTANTS.items() if name in asked]
    common = (
        f"Where a server has such a setting: batches of at most {MAX_BATCH}, a delay of "
        f"{MAX_DELAY_MS} ms, {MAX_QUEUE} requests in the queue. All: one thread, one core."
    )
    return "### How each is set up\n\n" + common + "\n\n" + "\n".join(lines)


def _column(one: Mapping[str, Any], level: str, figure: str) -> list[Any]:
    return [turn[figure] for turn in one["levels"][level]]


def _range(values: Sequence[float]) -> str:
    found = spread(values)
    return f"{found['median']:,.0f} ({found['least']:,.0f}-{found['most']:,.0f})"


def _tails(pool: Mapping[str, float | None]) -> str:
    return " / ".join(_ms(pool[name]) for name in ("p50", "p95", "p99"))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
