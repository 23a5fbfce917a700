"""The dashboards: GPU cluster, queues, training run, inference and cost."""

from collections.abc import Callable
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from infra.manifests import Manifest
from infra.observability.grafana import DashboardSpec, Panel, Variable, build
from infra.observability.rules import (
    ALLOCATABLE_GPUS,
    GPUS_UNHEALTHY,
    LABELS_HONORED,
    QUEUE_WAIT,
    hours,
)
from infra.settings.monitoring import MonitoringSettings

_BY_NODE: Final = "avg by (Hostname) (DCGM_FI_DEV_{})"
_BY_QUEUE: Final = "max by (queue_name) (volcano_queue_{})"
_FIRING: Final = 'ALERTS{alertstate="firing", part_of="gpu-platform"}'
_RUN: Final = '{namespace=~"$namespace", run=~"$run"}'
_STEP_P99: Final = (
    f"histogram_quantile(0.99, sum by (run, le) (rate(training_step_seconds_bucket{_RUN}[5m])))"
)
_SERVICE: Final = '{namespace=~"$namespace", service=~"$service"}'


def dashboards(settings: MonitoringSettings) -> dict[str, DashboardSpec]:
    """Return the dashboards by name."""
    return {
        "cluster": _cluster(),
        "queues": _queues(),
        "run": _run(),
        "inference": _inference(),
        "cost": _cost(settings),
    }


def config_maps(
    settings: MonitoringSettings, metadata: Callable[[str], Manifest]
) -> list[Manifest]:
    """Return a ConfigMap for each dashboard. `metadata` maps a ConfigMap's name to its metadata."""
    built: list[Manifest] = []
    for name, spec in dashboards(settings).items():
        object_metadata = metadata(f"gpu-platform-dashboard-{name}")
        object_metadata["labels"] = {**object_metadata["labels"], **settings.grafana.labels}
        text = JSONEncoder(sort_keys=True, indent=1).encode(build(name, spec))
        built.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": object_metadata,
                "data": {f"gpu-platform-{name}.json": text},
            }
        )
    return built


def _cluster() -> DashboardSpec:
    allocated = "sum(gpu_platform:pod_gpus)"
    return DashboardSpec(
        "GPU cluster",
        {
            "GPUs": [
                Panel("Total", {"": ALLOCATABLE_GPUS}, shape="number"),
                Panel("Allocated", {"": allocated}, shape="number"),
                Panel(
                    "Share allocated",
                    {"": f"{allocated} / {ALLOCATABLE_GPUS}"},
                    "percentunit",
                    "number",
                ),
                Panel("Alerts", {"": f"count({_FIRING}) or vector(0)"}, shape="number"),
            ],
            "Allocation": [
                Panel("By queue", {"{{queue}}": "gpu_platform:queue_gpus"}, shape="stack"),
                Panel("By namespace", {"{{namespace}}": "gpu_platform:team_gpus"}, shape="stack"),
            ],
            "Utilization": [
                Panel(
                    "Compute",
                    {"{{Hostname}}": f"{_BY_NODE.format('GPU_UTIL')} / 100"},
                    "percentunit",
                ),
                Panel("Memory", {"{{Hostname}}": _BY_NODE.format("FB_USED")}, "decmbytes"),
                Panel("Power", {"{{Hostname}}": _BY_NODE.format("POWER_USAGE")}, "watt"),
            ],
            "Errors": [
                Panel(
                    "Xid errors",
                    {"{{Hostname}} {{gpu}}": f"DCGM_FI_DEV_XID_ERRORS{{{LABELS_HONORED}}}"},
                ),
                Panel(
                    "Unhealthy GPUs",
                    {"{{node}}": GPUS_UNHEALTHY},
                    description="GPUs in the node's capacity that are not allocatable",
                ),
                Panel("Alerts", {"{{alertname}}": f"sum by (alertname) ({_FIRING})"}),
            ],
        },
    )


def _queues() -> DashboardSpec:
    return DashboardSpec(
        "Queues",
        {
            "Jobs": [
                Panel("Running", {"{{queue_name}}": _BY_QUEUE.format("pod_group_running_count")}),
                Panel("Waiting", {"{{queue}}": "gpu_platform:queue_pending_gangs"}),
                Panel(
                    "Admitted, not placed",
                    {"{{queue_name}}": _BY_QUEUE.format("pod_group_inqueue_count")},
                ),
            ],
            "Shares": [
                Panel("GPUs", {"{{queue}}": "gpu_platform:queue_gpus"}, shape="stack"),
                Panel(
                    "Share of the deserved amount",
                    {"{{queue_name}}": _BY_QUEUE.format("share")},
                    "percentunit",
                ),
            ],
            "Waiting": [
                Panel(
                    "Time until a gang is placed",
                    {
                        "{{queue}} longest": f"max by (queue) ({QUEUE_WAIT})",
                        "{{queue}} median": f"quantile by (queue) (0.5, {QUEUE_WAIT})",
                    },
                    "s",
                    description="From the creation of the gang's PodGroup until all of its pods "
                    "were first placed, or until now if some have not been placed yet",
                ),
                Panel(
                    "Time from the first pod to the complete gang",
                    {"{{namespace}}/{{run}}": "gpu_platform:run_seconds_to_gang"},
                    "s",
                ),
                Panel(
                    "Unscheduled pods",
                    {"{{job_id}}": "max by (job_id) (volcano_unschedule_task_count)"},
                ),
            ],
        },
    )


def _run() -> DashboardSpec:
    return DashboardSpec(
        "Training run",
        {
            "Now": [
                Panel("Step", {"{{run}}": f"max by (run) (training_step{_RUN})"}, shape="number"),
                Panel("Epoch", {"{{run}}": f"max by (run) (training_epoch{_RUN})"}, shape="number"),
                Panel(
                    "Accuracy",
                    {"{{run}}": f"max by (run) (training_accuracy{_RUN})"},
                    "percentunit",
                    "number",
                ),
                Panel(
                    "GPUs",
                    {"{{run}}": f"sum by (run) (gpu_platform:run_gpus{_RUN})"},
                    shape="number",
                ),
            ],
            "Learning": [
                Panel(
                    "Loss",
                    {
                        "{{run}} {{pod}}": f"training_loss{_RUN}",
                        "{{run}} test": f"max by (run) (training_held_out_loss{_RUN})",
                    },
                ),
                Panel("Gradient norm", {"{{run}}": f"max by (run) (training_gradient_norm{_RUN})"}),
                Panel("Learning rate", {"{{run}}": f"max by (run) (training_learning_rate{_RUN})"}),
            ],
            "Speed": [
                Panel(
                    "Samples per second",
                    {"{{run}}": f"max by (run) (training_samples_per_second{_RUN})"},
                ),
                Panel("Step time, 99th percentile", {"{{run}}": _STEP_P99}, "s"),
                Panel(
                    "Goodput",
                    {"{{run}}": f"gpu_platform:run_goodput{_RUN}"},
                    "percentunit",
                    description="Time spent in steps, as a share of the time with allocated GPUs",
                ),
            ],
            "Time": [
                Panel(
                    "Activities",
                    {"{{activity}}": f"sum by (activity) (rate(training_seconds_total{_RUN}[5m]))"},
                    "percentunit",
                    "stack",
                ),
                Panel(
                    "Steps since the last checkpoint",
                    {
                        "{{run}}": f"max by (run) (training_step{_RUN} "
                        f"- training_checkpoint_step{_RUN})"
                    },
                ),
                Panel(
                    "Shared memory",
                    {"{{pod}}": f"training_shm_used_bytes{_RUN} / training_shm_size_bytes{_RUN}"},
                    "percentunit",
                ),
            ],
        },
        [
            Variable("namespace", "label_values(training_info, namespace)"),
            Variable(
                "run", 'label_values(training_info{namespace=~"$namespace"}, run)', multi=False
            ),
        ],
    )


def _inference() -> DashboardSpec:
    by_code = f"sum by (service, code) (rate(inference_requests_total{_SERVICE}[5m]))"
    return DashboardSpec(
        "Inference",
        {
            "Load": [
                Panel("Requests", {"{{service}} {{code}}": by_code}, "reqps", "stack"),
                Panel(
                    "Latency",
                    {f"{{{{service}}}} {share}": _quantile(share) for share in (0.5, 0.95, 0.99)},
                    "s",
                ),
            ],
            "Servers": [
                Panel("Ready", {"{{service}}": f"sum by (service) (inference_ready{_SERVICE})"}),
                Panel(
                    "In flight",
                    {"{{service}}": f"sum by (service) (inference_requests_in_flight{_SERVICE})"},
                ),
                Panel(
                    "Waiting",
                    {"{{service}}": f"sum by (service) (inference_queue_depth{_SERVICE})"},
                ),
                Panel(
                    "Samples",
                    {
                        "{{service}}": "sum by (service) "
                        f"(rate(inference_samples_total{_SERVICE}[5m]))"
                    },
                    "reqps",
                ),
            ],
            "Versions": [
                Panel(
                    "Servers by model version",
                    {
                        "{{service}} {{version}}": "count by (service, version) "
                        f"(inference_model_info{_SERVICE})"
                    },
                    shape="stack",
                )
            ],
        },
        [
            Variable("namespace", "label_values(inference_ready, namespace)"),
            Variable("service", 'label_values(inference_ready{namespace=~"$namespace"}, service)'),
        ],
    )


def _quantile(share: float) -> str:
    buckets = f"sum by (service, le) (rate(inference_request_seconds_bucket{_SERVICE}[5m]))"
    return f"histogram_quantile({share}, {buckets})"


def _cost(settings: MonitoringSettings) -> DashboardSpec:
    interval = settings.interval_seconds
    unit = f"currency{settings.grafana.currency}"

    def total_by(series: str, label: str) -> str:
        return f"sum by ({label}) ({hours(series, '$__range', interval)})"

    rows = {
        "GPU-hours in the selected time range": [
            Panel(
                "By namespace",
                {"{{namespace}}": total_by("gpu_platform:team_gpus", "namespace")},
                shape="number",
            ),
            Panel(
                "By queue",
                {"{{queue}}": total_by("gpu_platform:queue_gpus", "queue")},
                shape="number",
            ),
            Panel(
                "By run",
                {"{{run}}": f"topk(10, {total_by('gpu_platform:run_gpus', 'run')})"},
                shape="number",
            ),
        ],
        "Idle": [
            Panel(
                "Allocated but idle GPUs",
                {"{{namespace}}/{{pod}}": f'DCGM_FI_DEV_GPU_UTIL{{pod!="", {LABELS_HONORED}}} < 5'},
                "percent",
            )
        ],
    }
    if settings.gpu_prices:
        cost = "gpu_platform:run_cost_per_hour"
        rows = {
            "Cost in the selected time range": [
                Panel(
                    "By namespace",
                    {"{{namespace}}": total_by("gpu_platform:team_cost_per_hour", "namespace")},
                    unit,
                    "number",
                ),
                Panel("By queue", {"{{queue}}": total_by(cost, "queue")}, unit, "number"),
                Panel("By run", {"{{run}}": f"topk(10, {total_by(cost, 'run')})"}, unit, "number"),
            ],
            "Cost per hour": [
                Panel("By queue", {"{{queue}}": f"sum by (queue) ({cost})"}, unit, "stack")
            ],
            **rows,
        }
    return DashboardSpec("Cost", rows)
