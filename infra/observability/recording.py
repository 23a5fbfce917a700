"""GPU hours, cost, goodput and waits by run, queue and team (namespace).

From kube-state-metrics (requests, phases, labels of pods and nodes) and from the training program.
"""

from collections.abc import Mapping
from typing import Final

from infra.observability.rule import ON_POD, Recording

RUN_GPUS: Final = "gpu_platform:run_gpus"
RUN_COST: Final = "gpu_platform:run_cost_per_hour"

_GPU_RESOURCES: Final = "nvidia_com_.*"
_LABELS: Final = (
    'label_replace(label_replace(kube_pod_labels{label_gpu_platform_dev_run!=""}, '
    '"run", "$1", "label_gpu_platform_dev_run", "(.*)"), '
    '"queue", "$1", "label_volcano_sh_queue_name", "(.*)")'
)


def recordings(prices: Mapping[str, float]) -> list[Recording]:
    """The series, each after those that it is computed from."""
    return [
        Recording(
            "gpu_platform:pod_gpus",
            f'sum by (namespace, pod, node) (kube_pod_container_resource_requests{{resource=~"'
            f'{_GPU_RESOURCES}"}}) * {ON_POD} group_left () '
            'max by (namespace, pod) (kube_pod_status_phase{phase=~"Pending|Running"} == 1)',
        ),
        Recording(
            RUN_GPUS,
            f"sum by (namespace, queue, run) (gpu_platform:pod_gpus * {ON_POD} "
            f"group_left (run, queue) max by (namespace, pod, run, queue) ({_LABELS}))",
        ),
        Recording("gpu_platform:queue_gpus", f"sum by (queue) ({RUN_GPUS})"),
        Recording("gpu_platform:team_gpus", "sum by (namespace) (gpu_platform:pod_gpus)"),
        *_costs(prices),
        Recording(
            "gpu_platform:run_goodput",
            "sum by (namespace, run) "
            '(rate(training_seconds_total{activity="step"}[5m])) '
            "/ sum by (namespace, run) (rate(training_seconds_total[5m]))",
        ),
        Recording(
            "gpu_platform:run_steps_per_second",
            "max by (namespace, run) (rate(training_step_seconds_count[5m]))",
        ),
        Recording(
            "gpu_platform:run_seconds_to_gang",
            "max by (namespace, run) (kube_pod_status_scheduled_time * "
            f"{ON_POD} group_left (run) max by (namespace, pod, run) ({_LABELS})) "
            "- min by (namespace, run) (kube_pod_created * "
            f"{ON_POD} group_left (run) max by (namespace, pod, run) ({_LABELS}))",
        ),
        Recording(
            "gpu_platform:queue_pending_gangs",
            "sum by (queue) (label_replace(volcano_queue_pod_group_pending_count, "
            '"queue", "$1", "queue_name", "(.*)"))',
        ),
    ]


def _costs(prices: Mapping[str, float]) -> list[Recording]:
    if not prices:
        return []
    price = " or ".join(
        f"(max by (node) (kube_node_labels{{label_nvidia_com_gpu_product={_quoted(product)}}}) "
        f"* {price:g})"
        for product, price in sorted(prices.items())
    )
    return [
        Recording("gpu_platform:node_gpu_price", price),
        Recording(
            "gpu_platform:pod_cost_per_hour",
            "gpu_platform:pod_gpus * on (node) group_left () gpu_platform:node_gpu_price",
        ),
        Recording(
            RUN_COST,
            f"sum by (namespace, queue, run) (gpu_platform:pod_cost_per_hour * {ON_POD} "
            f"group_left (run, queue) max by (namespace, pod, run, queue) ({_LABELS}))",
        ),
        Recording(
            "gpu_platform:team_cost_per_hour",
            "sum by (namespace) (gpu_platform:pod_cost_per_hour)",
        ),
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def hours(series: str, span: str, interval_seconds: int) -> str:
    """PromQL of the hours that a series of amounts adds up to within a span such as `1d`."""
    return f"sum_over_time({series}[{span}]) * {interval_seconds} / 3600"
