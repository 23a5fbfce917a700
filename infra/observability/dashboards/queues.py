"""Queues: what they have, what they may have, and who waits."""

from infra.observability.dashboards.page import Page, Panel
from infra.observability.queue_wait import QUEUE_WAIT
from infra.settings.monitoring import MonitoringSettings

_BY = "sum by (queue_name) (volcano_queue_{})"


def page(settings: MonitoringSettings) -> Page:
    """The page."""
    del settings
    return Page(
        "Queues",
        {
            "Jobs": [
                Panel("Running", {"{{queue_name}}": _BY.format("pod_group_running_count")}),
                Panel("Waiting", {"{{queue}}": "gpu_platform:queue_pending_gangs"}),
                Panel(
                    "Let in, without nodes",
                    {"{{queue_name}}": _BY.format("pod_group_inqueue_count")},
                ),
            ],
            "Shares": [
                Panel("GPUs", {"{{queue}}": "gpu_platform:queue_gpus"}, shape="stack"),
                Panel(
                    "Share of what is deserved",
                    {"{{queue_name}}": _BY.format("share")},
                    "percentunit",
                ),
            ],
            "Waiting": [
                Panel(
                    "Until a gang has its nodes",
                    {
                        "{{queue}} longest": f"max by (queue) ({QUEUE_WAIT})",
                        "{{queue}} median": f"quantile by (queue) (0.5, {QUEUE_WAIT})",
                    },
                    "s",
                    about="from its PodGroup on, for the first time; of those that wait, until now",
                ),
                Panel(
                    "From the first pod to a whole gang",
                    {"{{namespace}}/{{run}}": "gpu_platform:run_seconds_to_gang"},
                    "s",
                ),
                Panel(
                    "Pods without a node",
                    {"{{job_id}}": "max by (job_id) (volcano_unschedule_task_count)"},
                ),
            ],
        },
    )
