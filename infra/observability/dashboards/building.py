"""A page as Grafana's own foundation SDK builds it."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, VariableRefresh

from infra.observability.dashboards.page import Page, Panel, Variable

WIDTH: Final = 24
"""Columns of Grafana's grid."""

_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")


def build(name: str, page: Page) -> Dashboard:
    """The dashboard; its data source is chosen at the top."""
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
