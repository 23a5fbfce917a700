"""Data types for dashboards, and functions that convert them with Grafana's Foundation SDK."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, VariableRefresh

WIDTH: Final = 24
"""Number of columns in Grafana's grid."""

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")

Shape = Literal["lines", "number", "stack"]


@dataclass(frozen=True)
class Panel:
    """A panel. `queries` maps legends to queries; `unit` is one of Grafana's units, such as `s`."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    shape: Shape = "lines"
    description: str = ""


@dataclass(frozen=True)
class Variable:
    """A dashboard variable that offers the values of a label."""

    name: str
    query: str
    multi: bool = True


@dataclass(frozen=True)
class DashboardSpec:
    """A dashboard. `rows` maps titles to panels."""

    title: str
    rows: Mapping[str, Sequence[Panel]]
    variables: Sequence[Variable] = ()


def build(name: str, spec: DashboardSpec) -> Dashboard:
    """Build a dashboard whose data source is a variable."""
    builder = (
        dashboard.Dashboard(spec.title)
        .uid(f"gpu-platform-{name}")
        .tags(["gpu-platform"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus"))
    )
    for variable in spec.variables:
        builder = builder.with_variable(_variable(variable))
    for title, panels in spec.rows.items():
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
        .multi(variable.multi)
        .include_all(variable.multi)
    )


def _panel(panel: Panel, panels_in_row: int) -> timeseries.Panel | stat.Panel:
    builder = stat.Panel() if panel.shape == "number" else timeseries.Panel()
    builder = builder.title(panel.title).description(panel.description)
    builder = builder.unit(panel.unit).datasource(_SOURCE)
    builder = builder.span(WIDTH // panels_in_row).height(4 if panel.shape == "number" else 8)
    if isinstance(builder, timeseries.Panel) and panel.shape == "stack":
        stacking = common.StackingConfig().mode(StackingMode.NORMAL)
        builder = builder.fill_opacity(30).stacking(stacking)
    for target in _targets(panel):
        builder = builder.with_target(target)
    return builder


def _targets(panel: Panel) -> Sequence[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))
        for number, (legend, expr) in enumerate(panel.queries.items())
    ]
