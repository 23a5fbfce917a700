"""What runs, queues and teams cost. Without `monitoring.gpu_prices` only GPU hours."""

from infra.observability.dashboards.page import Page, Panel
from infra.observability.recording import hours
from infra.settings.monitoring import MonitoringSettings


def page(settings: MonitoringSettings) -> Page:
    """The page."""
    every = settings.interval_seconds
    unit = f"currency{settings.grafana.currency}"

    def spent(series: str, label: str) -> str:
        return f"sum by ({label}) ({hours(series, '$__range', every)})"

    rows = {
        "GPU hours in the chosen time": [
            Panel(
                "By team",
                {"{{namespace}}": spent("gpu_platform:team_gpus", "namespace")},
                shape="number",
            ),
            Panel(
                "By queue", {"{{queue}}": spent("gpu_platform:queue_gpus", "queue")}, shape="number"
            ),
            Panel(
                "By run",
                {"{{run}}": f"topk(10, {spent('gpu_platform:run_gpus', 'run')})"},
                shape="number",
            ),
        ],
        "Idle": [
            Panel(
                "GPUs that are taken and do nothing",
                {"{{namespace}}/{{pod}}": 'DCGM_FI_DEV_GPU_UTIL{pod!=""} < 5'},
                "percent",
            )
        ],
    }
    if settings.gpu_prices:
        cost = "gpu_platform:run_cost_per_hour"
        rows = {
            "Cost in the chosen time": [
                Panel(
                    "By team",
                    {"{{namespace}}": spent("gpu_platform:team_cost_per_hour", "namespace")},
                    unit,
                    "number",
                ),
                Panel("By queue", {"{{queue}}": spent(cost, "queue")}, unit, "number"),
                Panel("By run", {"{{run}}": f"topk(10, {spent(cost, 'run')})"}, unit, "number"),
            ],
            "Cost for an hour": [
                Panel("By queue", {"{{queue}}": f"sum by (queue) ({cost})"}, unit, "stack"),
            ],
            **rows,
        }
    return Page("Cost", rows)
