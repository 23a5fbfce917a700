"""Table of runs for terminals. Requires rich."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gitops import prices
from gitops.runs.snapshot import Cluster
from gitops.runs.status import RunStatus, read_runs
from gitops.runs.waiting import waiting
from kube.kinds.record import State

_SVG_FORMAT: Final = re.sub(
    r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL
).replace("font-family: Fira Code, monospace", "font-family: monospace")

_UNLIMITED_WIDTH: Final = 1000
"""Console width at which nothing is truncated."""

_IMAGE_WIDTH: Final = 120
"""Width of an image that is created without a terminal."""

STYLES: Final = {
    State.WAITING: "yellow",
    State.RUNNING: "green",
    State.RESTARTING: "magenta",
    State.SUSPENDED: "blue",
    State.SUCCEEDED: "dim",
    State.FAILED: "bold red",
}


def terminal(*, record: bool = False, soft_wrap: bool = False) -> Console:
    """Return a console on standard output.

    Output to files and pipes is not truncated, unless it is recorded for an image.
    """
    width = None if sys.stdout.isatty() else _IMAGE_WIDTH if record else _UNLIMITED_WIDTH
    return Console(record=record, soft_wrap=soft_wrap, width=width)


def print_runs(cluster: Cluster) -> None:
    """Print the runs of a cluster, followed by all other waiting jobs and pods.

    Raises:
        GitopsError: If the cluster does not respond.
    """
    table = prices.load()
    console = terminal(soft_wrap=True)
    now = datetime.now(UTC)
    snapshot = cluster.snapshot()
    statuses = read_runs(cluster, table, now, snapshot=snapshot)
    if statuses:
        console.print()
        console.print(render(statuses, table.currency, now))
    printed = {(run.namespace, run.name) for run in statuses if run.waiting_reason}
    for item in waiting(snapshot):
        if (item.namespace, item.job) not in printed:
            console.print(f"\n{item}", highlight=False, markup=False)


def render(
    runs: Sequence[RunStatus], currency: str, now: datetime, namespace: str | None = None
) -> RenderableType:
    """Return the table, the reasons for waiting and failure, and log lines of failed runs.

    `namespace` is the namespace of the runs, or None for the runs of all namespaces.
    """
    if not runs:
        return Text(f"no runs in namespace {namespace}" if namespace else "no runs")
    return Group(_table(runs, currency, now), *_notes(runs))


def as_svg(console: Console, command: str) -> str:
    """Return the recorded output as an SVG image of a terminal, in the viewer's monospace font."""
    return console.export_svg(title=f"$ {command}", code_format=_SVG_FORMAT)


@dataclass(frozen=True)
class _Table:
    """A table that omits empty columns and, on narrow terminals, less important columns."""

    columns: Mapping[str, Sequence[RenderableType]]
    less_important: Sequence[str]
    """Columns in the order in which they are omitted."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        shown = {name: cells for name, cells in self.columns.items() if any(c != "" for c in cells)}
        omitted = iter(self.less_important)
        while _width(table := _rich_table(shown), console, options) > options.max_width:
            if (name := next(omitted, None)) is None:
                break
            shown.pop(name, None)
        yield table


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(width=_UNLIMITED_WIDTH), table).maximum


def _rich_table(columns: Mapping[str, Sequence[RenderableType]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        left = name in ("RUN", "QUEUE", "STATE", "PODS", "GPUS", "EPOCHS")
        # Run names wrap instead of being truncated, because other commands require the full name.
        table.add_column(
            name, justify="left" if left else "right", overflow="fold", no_wrap=name != "RUN"
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _table(runs: Sequence[RunStatus], currency: str, now: datetime) -> _Table:
    several = len({run.namespace for run in runs}) > 1
    columns: dict[str, list[RenderableType]] = {
        "RUN": [f"{run.namespace}/{run.name}" if several else run.name for run in runs],
        "QUEUE": [run.queue for run in runs],
        "STATE": [Text(_state(run), STYLES[run.state]) for run in runs],
        "PODS": [f"{run.pods}/{run.wanted}" for run in runs],
        "GPUS": [str(sum(run.gpus.values()) or "") for run in runs],
        "EPOCHS": [_epochs(run) for run in runs],
        "LOSS": [_loss(run) for run in runs],
        "LEFT": [_time_left(run) for run in runs],
        "AGE": [_age(run, now) for run in runs],
        "GPU H": ["" if run.gpu_hours is None else f"{run.gpu_hours:.2f}" for run in runs],
        currency: ["" if run.cost is None else f"{run.cost:.2f}" for run in runs],
    }
    return _Table(columns, (currency, "GPU H", "AGE", "LOSS", "GPUS", "QUEUE"))


def _state(run: RunStatus) -> str:
    stage = f", {run.stage}" if run.stage else ""
    position = f", position {run.position}" if run.position else ""
    plural = "" if run.restarts == 1 else "s"
    restarts = f", {run.restarts} restart{plural}" if run.restarts else ""
    return f"{run.state}{stage}{position}{restarts}"


def _epochs(run: RunStatus) -> RenderableType:
    progress = run.progress
    if progress is None or progress.completed_fraction is None:
        return "" if progress is None or progress.step is None else f"step {progress.step}"
    row = Table.grid(padding=(0, 1))
    count = f"{progress.epoch:g}/{progress.epochs:g}"
    row.add_row(ProgressBar(total=1, completed=progress.completed_fraction, width=8), count)
    return row


def _notes(runs: Sequence[RunStatus]) -> Iterator[RenderableType]:
    for run in runs:
        if run.waiting_reason or run.reasons or run.last_log_lines:
            yield Text()
            yield Text(
                run.waiting_reason or f"{run.namespace}/{run.name} has failed:", STYLES[run.state]
            )
            for line in (*run.reasons, *run.last_log_lines):
                yield Text(f"  {line}")
    commands: dict[str, list[str]] = {}
    for run in runs:
        if run.failure_log_command:
            command = f"{run.failure_log_command.removesuffix(run.name)}RUN"
            commands.setdefault(command, []).append(run.name)
    for command, names in commands.items():
        yield Text()
        yield Text(f"to print the last log lines and events of failed pods of {', '.join(names)}:")
        yield Text(f"  {command}", "dim")


def _loss(run: RunStatus) -> str:
    return "" if run.progress is None or run.progress.loss is None else f"{run.progress.loss:.4g}"


def _time_left(run: RunStatus) -> str:
    if run.progress is None or run.progress.remaining_seconds is None or run.state.finished:
        return ""
    return _span(run.progress.remaining_seconds)


def _age(run: RunStatus, now: datetime) -> str:
    return "" if run.created is None else _span((now - run.created).total_seconds())


def _span(seconds: float) -> str:
    span = timedelta(seconds=int(max(seconds, 0)))
    days, remainder = span.days, span.seconds
    hours, minutes = divmod(remainder // 60, 60)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{remainder % 60}s" if minutes else f"{remainder}s"
