"""Alerts and rule groups for Prometheus, including the rules for third-party model servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from infra.observability.rules import (
    GPUS_UNHEALTHY,
    LABELS_HONORED,
    NOT_TERMINATED,
    ON_POD,
    QUOTA_MATCHER,
    RUN_PODS,
    Recording,
    recordings,
    with_group_labels,
    with_run_label,
)
from infra.serving.runtimes.runtime import IN_FLIGHT, READY, SUM_BY_POD, Runtime
from infra.settings.monitoring import MonitoringSettings, Thresholds

Severity = Literal["critical", "warning", "info"]

_POD: Final = "{{ $labels.namespace }}/{{ $labels.pod }}"
_RUN: Final = "{{ $labels.namespace }}/{{ $labels.run }}"
_SERVICE: Final = "{{ $labels.namespace }}/{{ $labels.service }}"
_GPU: Final = "GPU {{ $labels.gpu }} of {{ $labels.Hostname }}"
_XID: Final = "max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS)"
_BY_SERVICE: Final = "by (namespace, service)"
_SERVICE_PODS: Final = (
    'label_replace(kube_pod_labels{label_gpu_platform_dev_service!=""}, '
    '"service", "$1", "label_gpu_platform_dev_service", "(.*)")'
)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert. `summary` and `description` may contain templates such as `{{ $labels.pod }}`."""

    name: str
    expr: str
    minutes: float
    severity: Severity
    summary: str
    description: str
    """The first action to take; the runbook lists the other actions."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, runbooks: str) -> dict[str, Any]:
        """Return the rule in the format of a rule file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": f"{round(self.minutes * 60)}s",
            "labels": {"severity": self.severity, "part_of": "gpu-platform", **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{runbooks}#{self.name.lower()}",
            },
        }


_QUEUE_SERIES: Final = "volcano_queue_pod_group_pending_count"
_GPU_SERIES: Final = "DCGM_FI_DEV_GPU_UTIL"
_POD_SERIES: Final = "kube_pod_labels"


def _expected_series(settings: MonitoringSettings) -> tuple[str, ...]:
    exporter = settings.dcgm_exporter
    gpus = (_GPU_SERIES,) if exporter.install or exporter.existing is not None else ()
    return (_QUEUE_SERIES, _POD_SERIES, *gpus)


def alerts(
    limits: Thresholds, *, scraped: Sequence[str] = (_QUEUE_SERIES, _POD_SERIES, _GPU_SERIES)
) -> dict[str, list[Alert]]:
    """Return the alerts by topic. `scraped` lists series that must always exist."""
    return {
        "gpus": _gpu_alerts(limits),
        "training": _training_alerts(limits),
        "queues": _queue_alerts(limits),
        "serving": _serving_alerts(limits),
        "monitoring": [_missing_series_alert(limits, scraped)],
    }


def _missing_series_alert(limits: Thresholds, scraped: Sequence[str]) -> Alert:
    absent = [f'label_replace(absent({name}), "series", "{name}", "", "")' for name in scraped]
    return Alert(
        name="SeriesMissing",
        expr=" or ".join(absent),
        minutes=limits.missing_minutes,
        severity="warning",
        summary="Prometheus has no series {{ $labels.series }}",
        description="Alerts that need this series do not fire. Check in Prometheus whether the "
        "target that exports it is discovered and up.",
    )


def rule_groups(settings: MonitoringSettings) -> list[dict[str, Any]]:
    """Return the groups for a rule file or a PrometheusRule."""
    interval = settings.interval_seconds
    series = [rule.manifest() for rule in recordings(settings.gpu_prices, interval)]
    groups = [group("gpu-platform-series", series, interval)]
    topics = alerts(settings.thresholds, scraped=_expected_series(settings))
    for topic, topic_alerts in topics.items():
        rules = [alert.manifest(settings.runbooks) for alert in topic_alerts]
        groups.append(group(f"gpu-platform-{topic}", rules, interval))
    return groups


def group(name: str, rules: Sequence[dict[str, Any]], interval_seconds: int) -> dict[str, Any]:
    """Return a rule group, whose rules Prometheus evaluates in order."""
    return {"name": name, "interval": f"{interval_seconds}s", "rules": list(rules)}


def duration(minutes: float) -> str:
    """Return a duration in PromQL format, rounded to seconds, with a minimum of one second."""
    return f"{max(1, round(minutes * 60))}s"


def _gpu_alerts(limits: Thresholds) -> list[Alert]:
    return [
        Alert(
            name="AllocatedGpuIdle",
            expr="avg by (namespace, pod, gpu, Hostname) "
            f'(DCGM_FI_DEV_GPU_UTIL{{pod!="", {LABELS_HONORED}}}) '
            f"< {limits.gpu_idle_share * 100:g}",
            minutes=limits.gpu_idle_minutes,
            severity="warning",
            summary=f"{_GPU} is allocated to {_POD} but idle",
            description="Check what the run is waiting for (python -m gitops status), or delete it "
            "if it was forgotten.",
        ),
        Alert(
            name="GpuXidError",
            # The exporter reports the last error until it restarts, even if the GPU has since been
            # assigned to another pod. The alert therefore resolves 15 minutes after the value
            # changes: it compares the value with the newest one that is at least 15 minutes old.
            # The comparison goes back one day, so that the alert does not fire again after a
            # Prometheus outage.
            expr=f"DCGM_FI_DEV_XID_ERRORS{{{LABELS_HONORED}}} > 0 unless on (Hostname, gpu) "
            f"{_XID} == last_over_time({_XID}[1d:1m] offset 15m)",
            minutes=0,
            severity="critical",
            summary=f"{_GPU} reports Xid {{{{ $value }}}}",
            description="Look up the number in NVIDIA's list of Xid errors. If it indicates "
            "a hardware error, cordon the node.",
        ),
        Alert(
            name="GpuUnhealthy",
            expr=f"{GPUS_UNHEALTHY} > 0",
            minutes=limits.gpu_unhealthy_minutes,
            severity="warning",
            summary="{{ $labels.node }} has unhealthy GPUs ({{ $value }})",
            description="The device plugin does not advertise these GPUs. Read the plugin's log.",
        ),
        Alert(
            name="GpuMemoryNearlyFull",
            expr=f"DCGM_FI_DEV_FB_USED{{{LABELS_HONORED}}} "
            "/ (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) "
            f"> {limits.gpu_memory_share:g}",
            minutes=limits.memory_minutes,
            severity="info",
            summary=f"The memory of {_GPU} is nearly full ({_POD})",
            description="The run may soon fail with an out-of-memory error: lower batch_size, or "
            "set accumulate, activation_checkpointing or a lower precision.",
        ),
    ]


def _training_alerts(limits: Thresholds) -> list[Alert]:
    stalled = duration(limits.stalled_minutes)
    age = duration(limits.checkpoint_minutes)
    return [
        Alert(
            name="TrainingWithoutStep",
            expr="((max by (namespace, run) "
            f"(increase(training_step_seconds_count[{stalled}])) == 0 "
            f"and on (namespace, run) max by (namespace, run) (training_info offset {stalled})) "
            # A process that does not answer scrapes has no series except `up`, which is 0.
            f'or (max by (namespace, run) (max_over_time(up{{run!=""}}[{stalled}])) == 0 '
            "and on (namespace, run) max by (namespace, run) "
            f'(up{{run!=""}} offset {stalled}))) '
            # The time ranges also contain series of runs that have ended.
            'and on (namespace, run) max by (namespace, run) (up{run!=""})',
            minutes=limits.stalled_minutes / 20,
            severity="critical",
            summary=f"{_RUN} makes no progress",
            description="Read the last log lines of rank 0, then of the other ranks: one rank "
            "that hangs blocks all ranks. hang_timeout terminates runs that hang.",
        ),
        Alert(
            name="LossNotFinite",
            # Before the first step, the loss is also NaN.
            expr="max by (namespace, run) "
            "(((training_loss != training_loss) * 0 + 1 or (abs(training_loss) == Inf) * 0 + 1) "
            f"and {ON_POD} training_step_seconds_count > 0)",
            minutes=0,
            severity="critical",
            summary=f"The loss of {_RUN} is NaN or infinite",
            description="Lower learning_rate, clip gradients, or look for invalid values in the "
            "data.",
        ),
        Alert(
            name="CheckpointTooOld",
            expr=f"max by (namespace, run) (changes(training_checkpoint_step[{age}])) == 0 "
            "and on (namespace, run) max by (namespace, run) "
            f"(training_step - training_checkpoint_step) > 0 "
            # A preempted run saves no checkpoints while it waits.
            f"and on (namespace, run) {_trained_for(limits.checkpoint_minutes)}",
            minutes=limits.checkpoint_minutes / 90,
            severity="warning",
            summary=f"{_RUN} has saved no checkpoint for {limits.checkpoint_minutes:g} minutes",
            description="Check whether the claim is full or slow, or save more often "
            "(checkpoint_every).",
        ),
        Alert(
            name="SharedMemoryNearlyFull",
            expr="max by (namespace, pod, run) "
            "(training_shm_used_bytes / training_shm_size_bytes) "
            f"> {limits.shm_share:g}",
            minutes=limits.memory_minutes,
            severity="warning",
            summary=f"The shared memory of {_POD} is nearly full",
            description="Raise the job's `shm`, or lower loader_workers: a full /dev/shm causes a "
            "bus error.",
        ),
        Alert(
            name="ClaimNearlyFull",
            expr="max by (namespace, persistentvolumeclaim) "
            "(kubelet_volume_stats_used_bytes / kubelet_volume_stats_capacity_bytes) "
            f"> {limits.claim_share:g} and on (namespace, persistentvolumeclaim) "
            f"(kube_pod_spec_volumes_persistentvolumeclaims_info and {ON_POD} "
            'kube_pod_labels{label_gpu_platform_dev_workload!=""})',
            minutes=limits.claim_minutes,
            severity="warning",
            summary="Claim {{ $labels.namespace }}/{{ $labels.persistentvolumeclaim }} is "
            "nearly full",
            description="Remove old runs, keep fewer checkpoints (keep_checkpoints), or expand the "
            "claim.",
        ),
        Alert(
            name="MemoryNearLimit",
            expr="max by (namespace, pod, container) "
            '(container_memory_working_set_bytes{container!="", container!="POD"}) '
            "/ on (namespace, pod, container) max by (namespace, pod, container) "
            '(kube_pod_container_resource_limits{resource="memory"}) '
            f"> {limits.memory_share:g} and {ON_POD} "
            'kube_pod_labels{label_gpu_platform_dev_workload!=""} '
            # The kubelet keeps reporting the last value of a terminated pod.
            f'and {ON_POD} kube_pod_status_phase{{phase="Running"}} == 1',
            minutes=limits.memory_minutes,
            severity="warning",
            summary=f"{_POD} is about to be OOM-killed",
            description="Raise `memory`, which includes /dev/shm.",
        ),
        Alert(
            name="FrequentRestarts",
            expr="max by (namespace, pod) (increase(kube_pod_container_status_restarts_total[1h]) "
            f'and {ON_POD} kube_pod_labels{{label_gpu_platform_dev_workload!=""}}) '
            f"> {limits.restarts_per_hour}",
            minutes=0,
            severity="critical",
            summary=f"{_POD} restarts repeatedly",
            description="Read the pod's last log lines: python -m gitops status, "
            "kubectl logs --previous.",
        ),
        Alert(
            name="FrequentJobRestarts",
            # volcano_job_retry_counts is not suitable, because it counts attempts to place a gang,
            # one per second. Instead, the run's number of pods in the last hour is divided by its
            # maximum number of concurrent pods. `group` counts a pod once, even if it has several
            # series because kube-state-metrics was replaced.
            expr="count by (namespace, run) (group by (namespace, run, pod, uid) "
            f"({with_run_label(f'last_over_time({RUN_PODS}[1h])')})) "
            "/ on (namespace, run) max_over_time(gpu_platform:run_pods[1h]) - 1 "
            f"> {limits.restarts_per_hour}",
            minutes=0,
            severity="critical",
            summary=f"{_RUN} restarts repeatedly",
            description="Read the run's last log lines: python -m gitops status.",
        ),
    ]


def _trained_for(minutes: float) -> str:
    """Return a query for the runs that existed for over 90% of the last `minutes` minutes."""
    seconds = max(1, round(minutes * 60))
    step = max(1, seconds // 20)
    runs = "max by (namespace, run) (training_info)"
    return f"count_over_time({runs}[{seconds}s:{step}s]) > {0.9 * seconds / step:g}"


def _queue_alerts(limits: Thresholds) -> list[Alert]:
    known = with_group_labels("volcano_e2e_job_scheduling_start_time", "job_id")
    return [
        Alert(
            name="GangPendingTooLong",
            # volcano_unschedule_task_count has no label other than the job's name.
            expr=f"group by (namespace, queue, job_id) ({known}) * on (job_id) group_left () "
            "max by (job_id) (volcano_unschedule_task_count) > 0",
            minutes=limits.pending_minutes,
            severity="warning",
            summary="Job {{ $labels.namespace }}/{{ $labels.job_id }} is pending in queue "
            "{{ $labels.queue }} (pods not scheduled: {{ $value }})",
            description="python -m gitops status shows Volcano's reason.",
        ),
        Alert(
            name="QueueBlocked",
            # GangPendingTooLong does not cover these gangs: the scheduler counts the missing pods
            # of a gang only after the queue has admitted the gang.
            expr="gpu_platform:queue_pending_gangs > 0 unless on (queue) max by (queue) "
            "(label_replace(changes(volcano_queue_pod_group_running_count[5m]), "
            '"queue", "$1", "queue_name", "(.*)")) > 0',
            minutes=limits.pending_minutes,
            severity="warning",
            summary="Queue {{ $labels.queue }} admits none of its waiting gangs ({{ $value }})",
            description="python -m gitops status shows Volcano's reason.",
        ),
        Alert(
            name="QuotaExhausted",
            expr="max by (namespace, resourcequota, resource) "
            f'(kube_resourcequota{{type="used", {QUOTA_MATCHER}}}) '
            ">= on (namespace, resourcequota, resource) "
            "max by (namespace, resourcequota, resource) "
            '(kube_resourcequota{type="hard"}) > 0',
            minutes=limits.exhausted_minutes,
            severity="info",
            summary="{{ $labels.namespace }} has exhausted its {{ $labels.resource }} quota",
            description="New pods are rejected: delete existing pods, or raise tenancy.quota.",
        ),
    ]


def _of_autoscaler(series: str) -> str:
    """Return a query for a value of each autoscaler, labeled with the service that it scales."""
    named = (
        f'label_replace(kube_horizontalpodautoscaler_{series}, "service", "$1", '
        # KEDA adds a prefix to the name of the ScaledObject.
        '"horizontalpodautoscaler", "(?:keda-hpa-)?(.*)")'
    )
    return f"max {_BY_SERVICE} ({named})"


def _serving_alerts(limits: Thresholds) -> list[Alert]:
    return [
        Alert(
            name="InferenceSlow",
            expr="histogram_quantile(0.99, sum by (namespace, service, le) "
            "(rate(inference_request_seconds_bucket[5m]))) "
            f"> {limits.latency_seconds:g}",
            minutes=limits.serving_minutes,
            severity="warning",
            summary=f"1% of the requests to {_SERVICE} take longer than "
            f"{limits.latency_seconds:g} s",
            description="Check whether requests spend this time in the queue or in the model, then "
            "add replicas or raise the batch size.",
        ),
        Alert(
            name="InferenceErrors",
            expr=f'sum {_BY_SERVICE} (rate(inference_requests_total{{code=~"5.."}}[5m])) '
            f"/ sum {_BY_SERVICE} (rate(inference_requests_total[5m])) > {limits.error_share:g}",
            minutes=limits.serving_minutes,
            severity="critical",
            summary=f"{{{{ $value | humanizePercentage }}}} of requests to {_SERVICE} fail",
            description="Check the servers' logs for crashed workers or a model that cannot be "
            "loaded.",
        ),
        Alert(
            name="InferenceQueueFull",
            expr=f'sum {_BY_SERVICE} (rate(inference_requests_total{{code="429"}}[5m])) '
            f"/ sum {_BY_SERVICE} (rate(inference_requests_total[5m])) > {limits.refused_share:g}",
            minutes=limits.serving_minutes,
            severity="warning",
            summary=f"{_SERVICE} rejects {{{{ $value | humanizePercentage }}}} of its requests",
            description="The service is overloaded: add replicas or enable autoscaling.",
        ),
        Alert(
            name="InferenceNotReady",
            # Servers that cannot start report nothing, so pods are counted by their labels. A
            # service without pods is scaled to zero, which is not an error.
            expr=f"(count {_BY_SERVICE} ({_SERVICE_PODS} * {NOT_TERMINATED}) "
            f"or count {_BY_SERVICE} (inference_ready)) "
            f"unless on (namespace, service) max {_BY_SERVICE} (inference_ready == 1)",
            minutes=limits.serving_minutes,
            severity="critical",
            summary=f"No server of {_SERVICE} is ready",
            description="Read /v2/health/ready for the reason, or run kubectl describe pod if "
            "no server answers.",
        ),
        Alert(
            name="AutoscalerAtMaximum",
            expr=f"{_of_autoscaler('status_current_replicas')} >= "
            f"{_of_autoscaler('spec_max_replicas')} "
            f"and on (namespace, service) {_SERVICE_PODS}",
            minutes=limits.scaled_out_minutes,
            severity="info",
            summary=f"{_SERVICE} has reached its maximum number of replicas",
            description="Raise autoscaling.max if the queue has free capacity.",
        ),
        Alert(
            name="ModelVersionMismatch",
            # A canary counts as a separate service.
            expr=f"count {_BY_SERVICE} "
            "(count by (namespace, service, version) (inference_model_info)) > 1",
            minutes=limits.rollout_minutes,
            severity="warning",
            summary=f"Servers of {_SERVICE} serve different versions of the model",
            description="Restart the outdated servers: kubectl rollout restart deployment.",
        ),
    ]


def server_groups(servers: Mapping[str, Runtime], interval_seconds: int) -> list[dict[str, Any]]:
    """Return a list with the rule group for third-party servers, or [] if there are none.

    The rules copy the servers' series to the names that this project's model server uses, so that
    alerts, dashboards and autoscalers work for every runtime.

    `servers` maps the names of services to their runtimes.
    """
    if not servers:
        return []
    recorded = dict.fromkeys(
        recording for runtime in servers.values() for recording in _recordings(runtime)
    )
    rules = [*recorded, Recording(READY, _ready(servers))]
    manifests = [rule.manifest() for rule in rules]
    return [group("gpu-platform-servers", manifests, interval_seconds)]


def _recordings(runtime: Runtime) -> list[Recording]:
    in_flight = runtime.in_flight("")
    recordings = [Recording(name, expr) for name, expr in runtime.recordings.items()]
    if in_flight is not None and not runtime.exports_in_flight:
        recordings.append(Recording(IN_FLIGHT, f"{SUM_BY_POD} ({in_flight})"))
    return recordings


_WORKERS: Final = ".+-[0-9]+-[0-9]+"
"""Regular expression for the names of all pods of a LeaderWorkerSet except the leaders."""


def _ready(servers: Mapping[str, Runtime]) -> str:
    """Return a query whose value is 1 for each pod that is ready, and 0 for other pods.

    The query includes only the leaders of a LeaderWorkerSet, because its workers have no probes.
    """
    names = "|".join(sorted(servers))
    label = "label_gpu_platform_dev_service"
    named = (
        f'label_replace(kube_pod_labels{{{label}=~"{names}", pod!~"{_WORKERS}"}}, '
        f'"service", "$1", "{label}", "(.+)")'
    )
    return (
        f"max by (namespace, service, pod) ({named} * on (namespace, pod) group_left () "
        f'max by (namespace, pod) (kube_pod_status_ready{{condition="true"}}) * {NOT_TERMINATED})'
    )
