"""The cluster's GPUs: who has them, and what they do."""

from infra.observability.dashboards.page import Page, Panel
from infra.observability.recording import GPUS_UNHEALTHY
from infra.settings.monitoring import MonitoringSettings

_BY_NODE = "avg by (Hostname) (DCGM_FI_DEV_{})"


def page(settings: MonitoringSettings) -> Page:
    """The page."""
    del settings
    total = 'sum(kube_node_status_allocatable{resource=~"nvidia_com_.*"})'
    taken = "sum(gpu_platform:pod_gpus)"
    return Page(
        "GPU cluster",
        {
            "GPUs": [
                Panel("In the cluster", {"": total}, shape="number"),
                Panel("Taken", {"": taken}, shape="number"),
                Panel("Taken of all", {"": f"{taken} / {total}"}, "percentunit", "number"),
                Panel(
                    "Alerts",
                    {"": 'count(ALERTS{alertstate="firing"}) or vector(0)'},
                    shape="number",
                ),
            ],
            "Who has them": [
                Panel("By queue", {"{{queue}}": "gpu_platform:queue_gpus"}, shape="stack"),
                Panel("By team", {"{{namespace}}": "gpu_platform:team_gpus"}, shape="stack"),
            ],
            "What they do": [
                Panel(
                    "Use", {"{{Hostname}}": f"{_BY_NODE.format('GPU_UTIL')} / 100"}, "percentunit"
                ),
                Panel("Memory", {"{{Hostname}}": _BY_NODE.format("FB_USED")}, "decmbytes"),
                Panel("Power", {"{{Hostname}}": _BY_NODE.format("POWER_USAGE")}, "watt"),
            ],
            "Trouble": [
                Panel("Xid errors", {"{{Hostname}} {{gpu}}": "DCGM_FI_DEV_XID_ERRORS"}),
                Panel(
                    "Unhealthy GPUs",
                    {"{{node}}": GPUS_UNHEALTHY},
                    about="what a node has and gives to nobody",
                ),
                Panel(
                    "Alerts", {"{{alertname}}": 'sum by (alertname) (ALERTS{alertstate="firing"})'}
                ),
            ],
        },
    )
