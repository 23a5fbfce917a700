"""Dashboards as data, and their conversion with Grafana's foundation SDK."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, VariableRefresh

WIDTH: Final = 24
"""Columns of Grafana's grid."""

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")

Shape = Literal["lines", "number", "stack"]


@dataclass(frozen=True)
class Panel:
    """Queries by legend. `unit` is one of Grafana's: s, percentunit, bytes, reqps, currencyUSD."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    shape: Shape = "lines"
    about: str = ""
    """Description of the panel."""


@dataclass(frozen=True)
class Variable:
    """A variable of the dashboard, with the values of a label."""

    name: str
    query: str
    several: bool = True


@dataclass(frozen=True)
class Page:
    """Rows of panels, by the row's title."""

    title: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[Variable] = ()


def build(name: str, page: Page) -> Dashboard:
    """Build a dashboard, whose data source is a variable."""
    builder = (
        dashboard.Dashboard(page.title)
        .uid(f"gpu-platform-{name}")
        .tags(["gpu-platform"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
    )
    for variable in page.variables:
        builder = builder.with_variable(_variable(variable))
    for title, panels in page.rows.items():
        builder = builder.with_row(dashboard.Row(title))
        for panel in panels:
            builder = builder.with_panel(_panel(panel, len(panels)))
    return builder.build()


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .datasource(_SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(variable.several)
        .include_all(variable.several)
    )


def _panel(panel: Panel, beside: int) -> timeseries.Panel | stat.Panel:
    made = stat.Panel() if panel.shape == "number" else timeseries.Panel()
    made = made.title(panel.title).description(panel.about).unit(panel.unit).datasource(_SOURCE)
    made = made.span(WIDTH // beside).height(4 if panel.shape == "number" else 8)
    if isinstance(made, timeseries.Panel) and panel.shape == "stack":
        made = made.fill_opacity(30).stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for target in _targets(panel):
        made = made.with_target(target)
    return made


def _targets(panel: Panel) -> Sequence[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))
        for number, (legend, expr) in enumerate(panel.queries.items())
    ]
