"""Gantt chart of the gangs in a simulation, with and without the planned change.

If several simulations differ, the chart shows the most typical simulation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gitops.forecast.answer import Answer, GangAnswer, duration

_LABEL_WIDTH: Final = 260
_CHART_WIDTH: Final = 720
_ROW_HEIGHT: Final = 22
_HEADER_HEIGHT: Final = 46
_TICKS: Final = 6
_MAX_NAME_LENGTH: Final = 34


@dataclass(frozen=True)
class _Bar:
    """A bar with its position and width in SVG units."""

    x: float
    width: float
    css: str
    title: str


@dataclass(frozen=True)
class _Row:
    name: str
    title: str
    y: float
    bars: list[_Bar]


def svg(answer: Answer) -> str:
    """Return a self-contained SVG image with a row for each gang that is not suspended.

    The rows are sorted by queue and start.
    """
    gangs = sorted(
        (gang for gang in answer.gangs if gang.verdict != "suspended"),
        key=lambda g: (g.queue, _or_infinity(g.start_seconds), g.title),
    )
    chart_end = _chart_end(answer, gangs)
    rows: list[_Row] = []
    heads: list[dict[str, Any]] = []
    y = float(_HEADER_HEIGHT)
    for gang in gangs:
        if not heads or heads[-1]["queue"] != gang.queue:
            heads.append({"queue": gang.queue, "y": y})
            y += _ROW_HEIGHT
        rows.append(_Row(_truncated(gang.title), gang.title, y, _bars(answer, gang, chart_end)))
        y += _ROW_HEIGHT
    ticks = [
        {"x": _LABEL_WIDTH + _CHART_WIDTH * n / _TICKS, "text": duration(chart_end * n / _TICKS)}
        for n in range(_TICKS + 1)
    ]
    image: str = _TEMPLATE.render(
        answer=answer,
        rows=rows,
        heads=heads,
        ticks=ticks,
        height=y + 14,
        width=_LABEL_WIDTH + _CHART_WIDTH + 30,
        row=_ROW_HEIGHT,
        head=_HEADER_HEIGHT,
    )
    return image


def _chart_end(answer: Answer, gangs: list[GangAnswer]) -> float:
    """Return the end (s) of the chart: the later of the horizon and the last known end of a gang.

    The ends of gangs that were already running in the snapshot are ignored.
    """
    times = [answer.horizon_seconds]
    for gang in gangs:
        if gang.verdict != "runs":
            times += [t for t in (gang.end_seconds, gang.end_without_seconds) if t is not None]
    return max(times) or 3600


def _or_infinity(time: float | None) -> float:
    return float("inf") if time is None else time


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"


def _bars(answer: Answer, gang: GangAnswer, chart_end: float) -> list[_Bar]:
    bars = []
    if answer.compared and not gang.added:
        start, end = gang.start_without_seconds, gang.end_without_seconds
        bars.append(_bar(start, end, chart_end, "without", f"{gang.title} without the change"))
    evicted = any(victim.title == gang.title for victim in answer.victims)
    css = "evicted" if evicted else "runs" if gang.verdict == "runs" else "new"
    bars.append(_bar(gang.start_seconds, gang.end_seconds, chart_end, css, gang.title))
    return [bar for bar in bars if bar is not None]


def _bar(
    start: float | None, end: float | None, chart_end: float, css: str, title: str
) -> _Bar | None:
    if start is None or start > chart_end:
        return None
    last = chart_end if end is None else min(end, chart_end)
    scale = _CHART_WIDTH / chart_end
    text = f"{title}: {duration(start)} to {'unknown' if end is None else duration(end)}"
    width = max((last - start) * scale, 1.5)
    return _Bar(_LABEL_WIDTH + start * scale, width, css, text)


def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("gantt.svg.j2")


_TEMPLATE: Final = _template()
