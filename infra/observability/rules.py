"""Recording rules: GPU-hours, cost, goodput and waiting times by run, queue and namespace.

Sources are kube-state-metrics (requests, phases, labels of pods and nodes), the training program
and Volcano. The series of Volcano's scheduler (pkg/scheduler/metrics) describe PodGroups:

- `e2e_job_scheduling_start_time` is the PodGroup's creation time (s).
- `e2e_job_scheduling_duration` is the time (ms) from the creation until the scheduler last assigned
  one of the pods to a node, even if the scheduler then abandoned the attempt.
- `unschedule_task_count` is the number of the PodGroup's pods without a node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube.accelerators import NOT_ACCELERATORS

ON_POD: Final = "on (namespace, pod)"
"""Clause that joins series by pod."""

LABELS_HONORED: Final = 'exported_pod=""'
"""Label matcher for series of the DCGM exporter that are scraped with `honorLabels`.

A scrape without `honorLabels`, such as that of the GPU Operator's ServiceMonitor, replaces `pod`
with the exporter's pod, and adds an `exported_pod` label with the workload's pod.
"""

NOT_TERMINATED: Final = (
    f"{ON_POD} group_left () "
    'max by (namespace, pod) (kube_pod_status_phase{phase=~"Pending|Running"} == 1)'
)
"""Right operand of `*` in queries that must omit the series of terminated pods."""


@dataclass(frozen=True)
class Recording:
    """A recorded series."""

    record: str
    expr: str

    def manifest(self) -> dict[str, Any]:
        """Return the rule in the format of a rule file."""
        return {"record": self.record, "expr": self.expr}


RUN_GPUS: Final = "gpu_platform:run_gpus"
RUN_COST: Final = "gpu_platform:run_cost_per_hour"
POD_RUN: Final = "gpu_platform:pod_run"
_PLACED_PODS: Final = "gpu_platform:run_placed_pods"

GPU_MATCHER: Final = f'resource!~"{NOT_ACCELERATORS}"'
"""Label matcher for GPU series. It does not depend on the device plugins' resource names."""

QUOTA_MATCHER: Final = (
    # Quota series keep the original resource names. kube-state-metrics replaces characters such
    # as `/` with `_` in other series, so match any character in place of each `_`.
    f'resource=~"requests[.].+", resource!~"requests[.]({NOT_ACCELERATORS.replace("_", ".")})"'
)
"""Label matcher for GPUs in quota series."""


def _node_gpus(status: str) -> str:
    # `max` counts each node once, even if several replicas of kube-state-metrics report it.
    return f"max by (node, resource) (kube_node_status_{status}{{{GPU_MATCHER}}})"


ALLOCATABLE_GPUS: Final = f"sum({_node_gpus('allocatable')})"
"""Query for the number of GPUs in the cluster that pods can request."""
GPUS_UNHEALTHY: Final = (
    f"sum by (node) ({_node_gpus('capacity')}) - sum by (node) ({_node_gpus('allocatable')})"
)
"""Query for the number of unhealthy GPUs on each node, as reported by the device plugin.

The kubelet counts them as capacity, but does not allocate them.
"""
RUN_PODS: Final = 'kube_pod_labels{label_gpu_platform_dev_run!=""}'
_IN_RUN: Final = f"{ON_POD} group_left (run) {POD_RUN}"
_IN_RUN_AND_QUEUE: Final = f"{ON_POD} group_left (run, queue) {POD_RUN}"


def recordings(prices: Mapping[str, float], interval_seconds: int) -> list[Recording]:
    """Return the recording rules, each after the rules whose series it reads."""
    return [
        Recording(POD_RUN, _pod_run()),
        Recording("gpu_platform:run_pods", f"count by (namespace, run) ({POD_RUN})"),
        Recording(
            "gpu_platform:pod_gpus",
            "sum by (namespace, pod, node) (max by (namespace, pod, node, container, resource) "
            f"(kube_pod_container_resource_requests{{{GPU_MATCHER}}})) * {NOT_TERMINATED}",
        ),
        Recording(
            RUN_GPUS,
            f"sum by (namespace, queue, run) (gpu_platform:pod_gpus * {_IN_RUN_AND_QUEUE})",
        ),
        Recording("gpu_platform:queue_gpus", f"sum by (queue) ({RUN_GPUS})"),
        Recording("gpu_platform:team_gpus", "sum by (namespace) (gpu_platform:pod_gpus)"),
        *_costs(prices),
        Recording(
            _PLACED_PODS,
            f'count by (namespace, run) (gpu_platform:pod_gpus{{node!=""}} * {_IN_RUN})',
        ),
        Recording(
            "gpu_platform:run_goodput",
            # Goodput is relative to the time during which the run's pods had GPUs, because
            # processes cannot measure image pulls, imports or restarts. The rule counts pods, not
            # GPUs, because one process per pod serves metrics. The window is 299s, because a window
            # of 5m includes both ends in Prometheus 2, which is one sample too many.
            'clamp_max(sum by (namespace, run) (increase(training_seconds_total{activity="step"}'
            f"[5m])) / (sum_over_time({_PLACED_PODS}[299s]) * {interval_seconds}), 1)",
        ),
        Recording(
            "gpu_platform:run_steps_per_second",
            "max by (namespace, run) (rate(training_step_seconds_count[5m]))",
        ),
        Recording(
            "gpu_platform:run_seconds_to_gang",
            # Some kinds keep failed pods of earlier attempts, which must not count.
            "max by (namespace, run) "
            f"(kube_pod_status_scheduled_time * {_IN_RUN} * {NOT_TERMINATED}) "
            f"- min by (namespace, run) (kube_pod_created * {_IN_RUN} * {NOT_TERMINATED})",
        ),
        *_queue_wait(),
        Recording(
            "gpu_platform:queue_pending_gangs",
            "max by (queue) (label_replace(volcano_queue_pod_group_pending_count, "
            '"queue", "$1", "queue_name", "(.*)"))',
        ),
    ]


def _pod_run() -> str:
    """Return a query whose value is 1 for each pod of a run, with labels for run and queue.

    Pods of Volcano Jobs have a label with the queue. Pods of other kinds have only the annotation
    from which Volcano reads the queue.
    """
    annotated = 'kube_pod_annotations{annotation_scheduling_volcano_sh_queue_name!=""}'
    in_queue = (
        _with_queue_label(
            'kube_pod_labels{label_volcano_sh_queue_name!=""}', "label_volcano_sh_queue_name"
        ),
        _with_queue_label(annotated, "annotation_scheduling_volcano_sh_queue_name"),
    )
    queues = f" or {ON_POD} ".join(f"max by (namespace, pod, queue) ({each})" for each in in_queue)
    runs = f"max by (namespace, pod, run) ({with_run_label(RUN_PODS)})"
    return f"{runs} * {ON_POD} group_left (queue) ({queues}) or {ON_POD} {runs}"


def with_run_label(series: str) -> str:
    """Return a query that adds the `run` label to series that contain the labels of pods."""
    return f'label_replace({series}, "run", "$1", "label_gpu_platform_dev_run", "(.*)")'


def _with_queue_label(series: str, label: str) -> str:
    return f'label_replace({series}, "queue", "$1", "{label}", "(.*)")'


def _costs(prices: Mapping[str, float]) -> list[Recording]:
    if not prices:
        return []
    price = " or ".join(
        f"(max by (node) (kube_node_labels{{label_nvidia_com_gpu_product={_quoted(product)}}}) "
        f"* {price:.15g})"
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
            "sum by (namespace, queue, run) "
            f"(gpu_platform:pod_cost_per_hour * {_IN_RUN_AND_QUEUE})",
        ),
        Recording(
            "gpu_platform:team_cost_per_hour", "sum by (namespace) (gpu_platform:pod_cost_per_hour)"
        ),
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def hours(series: str, time_range: str, interval_seconds: int) -> str:
    """Return a query for the integral (in hours) of a series over a time range such as `1d`."""
    return f"sum_over_time({series}[{time_range}]) * {interval_seconds} / 3600"


QUEUE_WAIT: Final = "gpu_platform:queue_wait_seconds"
_FIRST_WAIT: Final = "gpu_platform:gang_first_wait_seconds"
_GANG: Final = "namespace, queue, gang"


def _queue_wait() -> list[Recording]:
    """Return rules for the time that each gang waited until all its pods were scheduled."""
    return [
        Recording(_FIRST_WAIT, _first_wait()),
        Recording(
            QUEUE_WAIT,
            f"{_FIRST_WAIT} or (time() - {_by_gang('volcano_e2e_job_scheduling_start_time')} "
            f"and on (gang) {_unscheduled_pods()} > 0)",
        ),
    ]


def _first_wait() -> str:
    """Return a query for the shortest wait of each gang, measured while all its pods are scheduled.

    The query also reads earlier values of the recorded series, because Volcano's value is reset if
    a pod is replaced, and lost if the scheduler restarts.
    """
    duration = _by_gang("volcano_e2e_job_scheduling_duration")
    now = f"{duration} / 1000 and on (gang) {_unscheduled_pods()} == 0"
    before = f"last_over_time({_FIRST_WAIT}[1h])"
    either = f"{_with_source(now, 'now')} or {_with_source(before, 'before')}"
    known = _by_gang("volcano_e2e_job_scheduling_start_time")
    return f"min by ({_GANG}) ({either}) and on ({_GANG}) {known}"


def _with_source(series: str, source: str) -> str:
    return f'label_replace({series}, "source", "{source}", "", "")'


def _by_gang(series: str) -> str:
    return f"max by ({_GANG}) ({with_group_labels(series, 'gang')})"


def with_group_labels(series: str, label: str) -> str:
    """Return a query that copies the PodGroup's namespace and name to `namespace` and `label`."""
    named = f'label_replace({series}, "namespace", "$1", "job_namespace", "(.*)")'
    return f'label_replace({named}, "{label}", "$1", "job_name", "(.*)")'


def _unscheduled_pods() -> str:
    named = 'label_replace(volcano_unschedule_task_count, "gang", "$1", "job_id", "(.*)")'
    return f"max by (gang) ({named})"
