"""What a dashboard shows, without Grafana: titles, queries and units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Shape = Literal["lines", "number", "stack"]


@dataclass(frozen=True)
class Panel:
    """Queries by legend. `unit` is one of Grafana's: s, percentunit, bytes, reqps, currencyUSD …"""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    shape: Shape = "lines"
    about: str = ""
    """What it tells, for whoever points at it."""


@dataclass(frozen=True)
class Variable:
    """Something to choose at the top, from a label's values."""

    name: str
    query: str
    several: bool = True


@dataclass(frozen=True)
class Page:
    """Rows of panels, by the row's title."""

    title: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[Variable] = ()
