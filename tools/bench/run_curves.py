"""Chart of a run's loss and throughput over time, including faults and recoveries.

    python -m tools.bench.run_curves --out docs/run-curves.svg LOG...

Each LOG is rank 0's log of one attempt, with a timestamp at the start of each line. Use the log
files that the failure recorder saved (docs/logs.md) and, for the last attempt, the output of
`kubectl logs --timestamps`. The chart shows the loss per step if the program reports it
(`log_every`), otherwise per epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workload.progress import AnyEvent, Epoch, Started, Step, parse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED, _GREEN = "#1f77b4", "#d62728", "#2ca02c"
_WINDOW: Final = 10.0
"""Window (s) over which throughput is averaged."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of the run. Times are seconds since the run's first log line."""

    start: float
    end: float
    resumed_at: int
    """Step from which the attempt resumed."""
    seconds: tuple[float, ...]
    samples: tuple[int, ...]
    """Cumulative number of processed samples at each time in `seconds`."""
    losses: tuple[float, ...]


def main() -> None:
    """Read the logs and write the chart."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", type=Path)
    parser.add_argument("--out", metavar="FILE", type=Path, required=True)
    options = parser.parse_args()
    lines = [line for log in options.logs for line in log.read_text().splitlines()]
    found = attempts(lines)
    if not found:
        parser.error(
            "no line contains a step or an epoch; check that each line begins with a timestamp"
        )
    draw(found, options.out)


def attempts(lines: Iterable[str]) -> list[Attempt]:
    """Return the attempts, sorted by their start. The lines may be in any order."""
    events = sorted(_events(lines), key=lambda each: each[0])
    parts: list[tuple[Started, list[tuple[float, AnyEvent]]]] = []
    for at, event in events:
        if isinstance(event, Started):
            parts.append((event, []))
        if parts:
            parts[-1][1].append((at, event))
    origin = events[0][0] if events else 0.0
    return [found for start, part in parts if (found := _attempt(start, part, origin)).seconds]


def throughput(attempt: Attempt) -> tuple[list[float], list[float]]:
    """Return times, and the throughput at each of them, averaged over the preceding `_WINDOW`."""
    x, y = [], []
    first = 0
    for last, at in enumerate(attempt.seconds):
        while first < last - 1 and at - attempt.seconds[first] > _WINDOW:
            first += 1
        if last > first and at > attempt.seconds[first]:
            processed = attempt.samples[last] - attempt.samples[first]
            x.append(at)
            y.append(processed / (at - attempt.seconds[first]))
    return x, y


def draw(found: list[Attempt], path: Path) -> None:
    """Plot the loss above the throughput, and shade the time lost between two attempts."""
    # Slow to import, and only this function needs it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "run-curves"  # makes the file reproducible
    figure = Figure(figsize=(8, 5), layout="constrained")
    loss, rate = figure.subplots(2, 1, sharex=True)
    for attempt in found:
        loss.plot(attempt.seconds, attempt.losses, color=_BLUE, lw=1.2)
        rate.plot(*throughput(attempt), color=_GREEN, lw=1.2)
    for before, after in itertools.pairwise(found):
        _draw_fault(loss, rate, before, after)
    loss.set(yscale="log", ylabel="loss")
    rate.set(ylabel="samples per second", xlabel="seconds", ylim=(0, None))
    for axes in (loss, rate):
        axes.grid(True, which="major", lw=0.3)
    figure.savefig(path, metadata={"Date": None})


def _draw_fault(loss: Axes, rate: Axes, before: Attempt, after: Attempt) -> None:
    for axes in (loss, rate):
        axes.axvspan(before.end, after.seconds[0], color=_RED, alpha=0.15, lw=0)
    took = after.seconds[0] - before.end
    label = f"killed; resumed {took:.0f} s later\nafter step {after.resumed_at}"
    position = (before.end, 0.97)
    loss.annotate(
        label, position, xycoords=loss.get_xaxis_transform(), ha="left", va="top", fontsize="small"
    )


def _attempt(start: Started, part: list[tuple[float, AnyEvent]], origin: float) -> Attempt:
    batch = start.batch_size * start.processes
    steps = [(at - origin, event) for at, event in part if isinstance(event, Step)]
    epochs = [(at - origin, event) for at, event in part if isinstance(event, Epoch)]
    points = steps or epochs
    return Attempt(
        start=part[0][0] - origin,
        end=part[-1][0] - origin,
        resumed_at=start.step,
        seconds=tuple(at for at, _ in points),
        samples=tuple(_count(event) * (event.samples or batch) for _, event in points),
        losses=tuple(event.loss for _, event in points),
    )


def _count(event: Step | Epoch) -> int:
    return event.step if isinstance(event, Step) else int(event.epoch)


def _events(lines: Iterable[str]) -> Iterator[tuple[float, AnyEvent]]:
    for text in dict.fromkeys(lines):
        time, _, line = text.partition(" ")
        with contextlib.suppress(ValueError):  # a program may print anything
            at = datetime.fromisoformat(time).astimezone(UTC).timestamp()
            if (event := parse(line)) is not None:
                yield at, event


if __name__ == "__main__":
    main()
