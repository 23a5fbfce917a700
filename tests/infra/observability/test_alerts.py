"""Every alert fires on its fault and stays silent otherwise, as evaluated by promtool."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.observability.alerts import alerts, rule_groups
from infra.settings.monitoring import (
    DcgmExporterSettings,
    ExistingExporterSettings,
    MonitoringSettings,
)
from tests.infra.observability.promtool import SETTINGS, check, check_all, expression_test, promtool

POD = 'namespace="ml", pod="p"'
RUN = f'{POD}, run="digits-1"'
SERVICE = 'namespace="ml", service="digits"'
GPU = f'{POD}, gpu="0", Hostname="n"'
LABELED = f'kube_pod_labels{{{POD}, label_gpu_platform_dev_workload="training"}}'


GANG = {
    'volcano_e2e_job_scheduling_start_time{namespace="volcano-system", job_name="digits-1", '
    'job_namespace="ml", queue="vision"}': "0x80"
}
WAITING = {
    'gpu_platform:queue_pending_gangs{queue="vision"}': "1x80",
    'volcano_queue_pod_group_running_count{queue_name="other"}': "0+1x80",
}
SERVING = f'kube_pod_labels{{{POD}, label_gpu_platform_dev_service="digits"}}'
PENDING = f'kube_pod_status_phase{{{POD}, phase="Pending"}}'
RUNNING = f'kube_pod_status_phase{{{POD}, phase="Running"}}'
USED = 'kubelet_volume_stats_used_bytes{namespace="ml", persistentvolumeclaim="c"}'
CAPACITY = 'kubelet_volume_stats_capacity_bytes{namespace="ml", persistentvolumeclaim="c"}'
MOUNTED = f'kube_pod_spec_volumes_persistentvolumeclaims_info{{{POD}, persistentvolumeclaim="c"}}'
UP = 'namespace="ml", pod="p", run="digits-1", job="gpu-platform-training"'


def pod_labels_of_run(number: int) -> str:
    """Return the series that kube-state-metrics exports for a pod of a run."""
    labels = f'namespace="ml", pod="p", uid="{number}"'
    return f'kube_pod_labels{{{labels}, label_gpu_platform_dev_run="digits-1"}}'


def quota(resource: str, used: int) -> dict[str, str]:
    """Return the series for a quota of 8."""
    labels = f'namespace="ml", resourcequota="workloads", resource="{resource}"'
    amounts = {"used": used, "hard": 8}
    return {
        f'kube_resourcequota{{{labels}, type="{type_}"}}': f"{amount}x30"
        for type_, amount in amounts.items()
    }


@dataclass(frozen=True)
class Case:
    """Series with one value per minute: `fires` triggers the alert, `silent` does not."""

    alert: str
    minutes: int
    fires: dict[str, str]
    silent: dict[str, str]


ALWAYS = {
    'volcano_queue_pod_group_pending_count{queue_name="vision"}': "0x60",
    LABELED: "1x60",
    f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "95x60",
}
CASES = [
    Case("SeriesMissing", 40, {name: ALWAYS[name] for name in list(ALWAYS)[:2]}, ALWAYS),
    Case(
        "AllocatedGpuIdle",
        40,
        {f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "1x60"},
        # scraped without honorLabels: the label `pod` is the exporter's
        {f'DCGM_FI_DEV_GPU_UTIL{{{GPU}, exported_pod="digits-0"}}': "1x60"},
    ),
    Case(
        "AllocatedGpuIdle",
        40,
        {f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "1x60"},
        {f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "1x20 95x40"},
    ),
    Case(
        "AllocatedGpuIdle",
        40,
        {f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": "0x60"},
        {'DCGM_FI_DEV_GPU_UTIL{gpu="0", Hostname="n"}': "0x60"},  # not allocated
    ),
    Case(
        "GpuXidError",
        30,
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "0x25 79x30"},
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "79x60"},  # an old error
    ),
    Case(
        "GpuXidError",
        30,
        # The exporter labels a series with its own value.
        {
            f'DCGM_FI_DEV_XID_ERRORS{{{GPU}, err_code="31"}}': "31x25 stale",
            f'DCGM_FI_DEV_XID_ERRORS{{{GPU}, err_code="79"}}': "_x26 79x30",
        },
        # The error is old, and another pod uses the GPU now.
        {
            f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "79x25 stale",
            f"DCGM_FI_DEV_XID_ERRORS{{{GPU.replace('p', 'q', 2)}}}": "_x26 79x30",
        },
    ),
    Case(
        "GpuXidError",
        30,
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "0x25 79x30"},
        {f'DCGM_FI_DEV_XID_ERRORS{{{GPU}, exported_pod="digits-0"}}': "0x25 79x30"},
    ),
    Case(
        "GpuXidError",
        60,
        # Prometheus is down for 40 minutes. In the first case, an error occurs meanwhile.
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "31x15 _x40 79x20"},
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "79x15 _x40 79x20"},
    ),
    Case(
        "GpuUnhealthy",
        20,
        {
            'kube_node_status_capacity{node="n", resource="nvidia_com_gpu"}': "8x30",
            'kube_node_status_allocatable{node="n", resource="nvidia_com_gpu"}': "8x10 7x20",
        },
        # The device plugin restarts; one core is reserved for the system.
        {
            'kube_node_status_capacity{node="n", resource="nvidia_com_gpu"}': "8x30",
            'kube_node_status_allocatable{node="n", resource="nvidia_com_gpu"}': "8x16 0x2 8x20",
            'kube_node_status_capacity{node="n", resource="cpu"}': "64x30",
            'kube_node_status_allocatable{node="n", resource="cpu"}': "63x30",
        },
    ),
    Case(
        "GpuMemoryNearlyFull",
        15,
        {f"DCGM_FI_DEV_FB_USED{{{GPU}}}": "79x20", f"DCGM_FI_DEV_FB_FREE{{{GPU}}}": "1x20"},
        {f"DCGM_FI_DEV_FB_USED{{{GPU}}}": "60x20", f"DCGM_FI_DEV_FB_FREE{{{GPU}}}": "20x20"},
    ),
    Case(
        "GpuMemoryNearlyFull",
        15,
        {f"DCGM_FI_DEV_FB_USED{{{GPU}}}": "79x20", f"DCGM_FI_DEV_FB_FREE{{{GPU}}}": "1x20"},
        {
            f'DCGM_FI_DEV_FB_USED{{{GPU}, exported_pod="digits-0"}}': "79x20",
            f'DCGM_FI_DEV_FB_FREE{{{GPU}, exported_pod="digits-0"}}': "1x20",
        },
    ),
    Case(
        "TrainingWithoutStep",
        60,
        {
            f"training_step_seconds_count{{{RUN}}}": "0+10x20 200x60",
            f"training_info{{{RUN}}}": "1x80",
            f"up{{{UP}}}": "1x80",
        },
        {f"training_step_seconds_count{{{RUN}}}": "0+10x80", f"training_info{{{RUN}}}": "1x80"},
    ),
    Case(
        "TrainingWithoutStep",
        60,
        {
            f"training_step_seconds_count{{{RUN}}}": "7x80",
            f"training_info{{{RUN}}}": "1x80",
            f"up{{{UP}}}": "1x80",
        },
        # The run has just started.
        {
            f"training_step_seconds_count{{{RUN}}}": "_x50 0x30",
            f"training_info{{{RUN}}}": "_x50 1x30",
        },
    ),
    Case(
        "TrainingWithoutStep",
        60,
        # The whole run hangs: no replica responds to scrapes.
        {
            f"training_step_seconds_count{{{RUN}}}": "0+10x20",
            f"training_info{{{RUN}}}": "1x20",
            f"up{{{UP}}}": "1x20 0x60",
        },
        # One of the run's processes never responds to scrapes.
        {
            f"training_step_seconds_count{{{RUN}}}": "0+10x80",
            f"training_info{{{RUN}}}": "1x80",
            f"up{{{UP}}}": "1x80",
            f'up{{{UP}, instance="another"}}': "0x80",
        },
    ),
    Case(
        "TrainingWithoutStep",
        44,
        {
            f"training_step_seconds_count{{{RUN}}}": "0+10x20 200x60",
            f"training_info{{{RUN}}}": "1x80",
            f"up{{{UP}}}": "1x80",
        },
        # The run has ended after an evaluation and an export.
        {
            f"training_step_seconds_count{{{RUN}}}": "0+10x20 200x5 stale",
            f"training_info{{{RUN}}}": "1x26 stale",
            f"up{{{UP}}}": "1x26 stale",
        },
    ),
    Case(
        "TrainingWithoutStep",
        24,
        {
            f"training_step_seconds_count{{{RUN}}}": "7x80",
            f"training_info{{{RUN}}}": "1x80",
            f"up{{{UP}}}": "1x80",
        },
        # The run failed before its process served metrics.
        {f"up{{{UP}}}": "0x5 stale"},
    ),
    Case(
        "LossNotFinite",
        5,
        {
            f"training_loss{{{RUN}}}": "0.5 0.7 NaN NaN NaN NaN NaN",
            f"training_step_seconds_count{{{RUN}}}": "1+1x10",
        },
        {f"training_loss{{{RUN}}}": "0.5x10", f"training_step_seconds_count{{{RUN}}}": "1+1x10"},
    ),
    Case(
        "LossNotFinite",
        5,
        {
            f"training_loss{{{RUN}}}": "0.5 Inf Inf Inf Inf Inf Inf",
            f"training_step_seconds_count{{{RUN}}}": "1+1x10",
        },
        # The run has not completed a step yet.
        {
            f"training_loss{{{RUN}}}": "NaN NaN NaN NaN NaN NaN",
            f"training_step_seconds_count{{{RUN}}}": "0x10",
        },
    ),
    Case(
        "CheckpointTooOld",
        120,
        {
            f"training_checkpoint_step{{{RUN}}}": "100x130",
            f"training_step{{{RUN}}}": "100+10x130",
            f"training_info{{{RUN}}}": "1x130",
        },
        {
            f"training_checkpoint_step{{{RUN}}}": "0+100x130",
            f"training_step{{{RUN}}}": "10+100x130",
            f"training_info{{{RUN}}}": "1x130",
        },
    ),
    Case(
        "CheckpointTooOld",
        130,
        # The process restarts, and the run has saved no checkpoint since.
        {
            f"training_checkpoint_step{{{RUN}}}": "100x60 stale 100x80",
            f"training_step{{{RUN}}}": "100+10x60 stale 100+10x80",
            f"training_info{{{RUN}}}": "1x60 stale 1x80",
        },
        # The run saved its last checkpoint 10 minutes before it was preempted for an hour.
        {
            f"training_checkpoint_step{{{RUN}}}": "0x30 100x29 stale _x60 100x20",
            f"training_step{{{RUN}}}": "0+10x59 stale _x60 100+10x20",
            f"training_info{{{RUN}}}": "1x59 stale _x60 1x20",
        },
    ),
    Case(
        "SharedMemoryNearlyFull",
        5,
        {
            f"training_shm_used_bytes{{{RUN}}}": "95x10",
            f"training_shm_size_bytes{{{RUN}}}": "100x10",
        },
        {
            f"training_shm_used_bytes{{{RUN}}}": "50x10",
            f"training_shm_size_bytes{{{RUN}}}": "100x10",
        },
    ),
    Case(
        "ClaimNearlyFull",
        10,
        {USED: "95x20", CAPACITY: "100x20", MOUNTED: "1x20", LABELED: "1x20"},
        {USED: "50x20", CAPACITY: "100x20", MOUNTED: "1x20", LABELED: "1x20"},
    ),
    Case(
        "ClaimNearlyFull",
        10,
        {USED: "95x20", CAPACITY: "100x20", MOUNTED: "1x20", LABELED: "1x20"},
        # Another application mounts the claim.
        {
            USED: "95x20",
            CAPACITY: "100x20",
            MOUNTED.replace('"p"', '"other"'): "1x20",
            LABELED: "1x20",
        },
    ),
    Case(
        "MemoryNearLimit",
        5,
        {
            f'container_memory_working_set_bytes{{{POD}, container="training", id="1"}}': "99x10",
            f'kube_pod_container_resource_limits{{{POD}, container="training", '
            'resource="memory"}': "100x10",
            LABELED: "1x10",
            RUNNING: "1x10",
        },
        {
            f'container_memory_working_set_bytes{{{POD}, container="other", id="1"}}': "99x10",
            f'kube_pod_container_resource_limits{{{POD}, container="other", '
            'resource="memory"}': "100x10",
            RUNNING: "1x10",
        },
    ),
    Case(
        "MemoryNearLimit",
        5,
        {
            f'container_memory_working_set_bytes{{{POD}, container="training", id="1"}}': "99x10",
            f'kube_pod_container_resource_limits{{{POD}, container="training", '
            'resource="memory"}': "100x10",
            LABELED: "1x10",
            RUNNING: "1x10",
        },
        # The pod has ended.
        {
            f'container_memory_working_set_bytes{{{POD}, container="training", id="1"}}': "99x10",
            f'kube_pod_container_resource_limits{{{POD}, container="training", '
            'resource="memory"}': "100x10",
            LABELED: "1x10",
            RUNNING: "0x10",
        },
    ),
    Case(
        "FrequentRestarts",
        70,
        {
            f'kube_pod_container_status_restarts_total{{{POD}, container="training"}}': "0+1x80",
            LABELED: "1x80",
        },
        {
            f'kube_pod_container_status_restarts_total{{{POD}, container="training"}}': (
                "0x40 1x40"
            ),
            LABELED: "1x80",
        },
    ),
    Case(
        "FrequentJobRestarts",
        70,
        # A new pod starts every ten minutes, and ended pods are removed.
        {pod_labels_of_run(number): f"_x{10 * number} 1x10" for number in range(9)},
        {
            pod_labels_of_run(0): "1x80",
            pod_labels_of_run(1): "1x80",
            pod_labels_of_run(2): "1x80",
            pod_labels_of_run(3): "1x80",
        },
    ),
    Case(
        "FrequentJobRestarts",
        70,
        {pod_labels_of_run(number): f"_x{10 * number} 1x10" for number in range(9)},
        # kube-state-metrics is replaced every ten minutes.
        {
            f'{pod_labels_of_run(0)[:-1]}, instance="{number}"}}': f"_x{10 * number} 1x10 stale"
            for number in range(9)
        },
    ),
    Case(
        "GangPendingTooLong",
        70,
        {**GANG, 'volcano_unschedule_task_count{job_id="digits-1"}': "4x80"},
        {**GANG, 'volcano_unschedule_task_count{job_id="digits-1"}': "4x20 0x60"},
    ),
    Case(
        "QueueBlocked",
        70,
        {**WAITING, 'volcano_queue_pod_group_running_count{queue_name="vision"}': "2x80"},
        # A gang ends, and another one starts.
        {**WAITING, 'volcano_queue_pod_group_running_count{queue_name="vision"}': "2x30 1 2x50"},
    ),
    Case(
        "QuotaExhausted",
        20,
        quota("requests.nvidia.com/gpu", 8),
        quota("requests.nvidia.com/gpu", 4),
    ),
    Case(
        "QuotaExhausted",
        20,
        quota("requests.huawei.com/Ascend910", 8),
        {
            **quota("requests.rdma/hca", 8),
            **quota("requests.cpu", 8),
            **quota("requests.ephemeral-storage", 8),
            **quota("limits.memory", 8),
            **quota("pods", 8),
        },
    ),
    Case(
        "InferenceSlow",
        20,
        {
            f'inference_request_seconds_bucket{{{SERVICE}, le="0.1"}}': "0x30",
            f'inference_request_seconds_bucket{{{SERVICE}, le="5"}}': "0+100x30",
            f'inference_request_seconds_bucket{{{SERVICE}, le="+Inf"}}': "0+100x30",
        },
        {
            f'inference_request_seconds_bucket{{{SERVICE}, le="0.1"}}': "0+100x30",
            f'inference_request_seconds_bucket{{{SERVICE}, le="5"}}': "0+100x30",
            f'inference_request_seconds_bucket{{{SERVICE}, le="+Inf"}}': "0+100x30",
        },
    ),
    Case(
        "InferenceErrors",
        20,
        {
            f'inference_requests_total{{{SERVICE}, code="200"}}': "0+90x30",
            f'inference_requests_total{{{SERVICE}, code="503"}}': "0+10x30",
        },
        {
            f'inference_requests_total{{{SERVICE}, code="200"}}': "0+90x30",
            f'inference_requests_total{{{SERVICE}, code="400"}}': "0+10x30",
        },
    ),
    Case(
        "InferenceQueueFull",
        20,
        {
            f'inference_requests_total{{{SERVICE}, code="200"}}': "0+90x30",
            f'inference_requests_total{{{SERVICE}, code="429"}}': "0+10x30",
        },
        {f'inference_requests_total{{{SERVICE}, code="200"}}': "0+90x30"},
    ),
    Case(
        "InferenceNotReady",
        10,
        {f"inference_ready{{{SERVICE}}}": "0x20"},
        {f'inference_ready{{{SERVICE}, pod="a"}}': "0x20", f"inference_ready{{{SERVICE}}}": "1x20"},
    ),
    Case(
        "InferenceNotReady",
        10,
        # The pod lacks a node, an image or a Secret: no replica responds.
        {SERVING: "1x20", PENDING: "1x20"},
        # The service is scaled to zero with one old failed pod left; another service responds.
        {
            SERVING: "1x20",
            PENDING: "0x20",
            f'kube_pod_status_phase{{{POD}, phase="Failed"}}': "1x20",
            SERVING.replace('"digits"', '"other"').replace('"p"', '"o"'): "1x20",
            PENDING.replace('"p"', '"o"').replace("Pending", "Running"): "1x20",
            'inference_ready{namespace="ml", pod="o", service="other"}': "1x20",
        },
    ),
    Case(
        "AutoscalerAtMaximum",
        20,
        {
            "kube_horizontalpodautoscaler_status_current_replicas"
            '{namespace="ml", horizontalpodautoscaler="digits"}': "3x30",
            "kube_horizontalpodautoscaler_status_current_replicas"
            '{instance="2", namespace="ml", horizontalpodautoscaler="digits"}': "3x30",
            "kube_horizontalpodautoscaler_spec_max_replicas"
            '{namespace="ml", horizontalpodautoscaler="digits"}': "3x30",
            SERVING: "1x30",
        },
        {
            "kube_horizontalpodautoscaler_status_current_replicas"
            '{namespace="ml", horizontalpodautoscaler="digits"}': "2x30",
            "kube_horizontalpodautoscaler_spec_max_replicas"
            '{namespace="ml", horizontalpodautoscaler="digits"}': "3x30",
            SERVING: "1x30",
        },
    ),
    Case(
        "AutoscalerAtMaximum",
        20,
        # KEDA creates the autoscaler.
        {
            "kube_horizontalpodautoscaler_status_current_replicas"
            '{namespace="ml", horizontalpodautoscaler="keda-hpa-digits"}': "3x30",
            "kube_horizontalpodautoscaler_spec_max_replicas"
            '{namespace="ml", horizontalpodautoscaler="keda-hpa-digits"}': "3x30",
            SERVING: "1x30",
        },
        # The autoscaler belongs to another application.
        {
            "kube_horizontalpodautoscaler_status_current_replicas"
            '{namespace="ml", horizontalpodautoscaler="web"}': "3x30",
            "kube_horizontalpodautoscaler_spec_max_replicas"
            '{namespace="ml", horizontalpodautoscaler="web"}': "3x30",
            SERVING: "1x30",
        },
    ),
    Case(
        "ModelVersionMismatch",
        20,
        {
            f'inference_model_info{{{SERVICE}, pod="a", version="1"}}': "1x30",
            f'inference_model_info{{{SERVICE}, pod="b", version="2"}}': "1x30",
        },
        {
            f'inference_model_info{{{SERVICE}, pod="a", version="1"}}': "1x30",
            f'inference_model_info{{{SERVICE}, pod="b", version="1"}}': "1x30",
        },
    ),
]


@pytest.fixture(scope="module")
def program() -> Path:
    return promtool()


def firing(case: Case, series: dict[str, str], count: int) -> dict[str, object]:
    expr = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0)'
    return expression_test(series, case.minutes, expr, {"labels": "{}", "value": count})


def test_every_alert_fires(program: Path, tmp_path: Path) -> None:
    files = [([firing(case, case.fires, 1)], [case.alert]) for case in CASES]
    assert check_all(program, tmp_path, files) == ""


def test_every_alert_is_silent_without_its_fault(program: Path, tmp_path: Path) -> None:
    files = [([firing(case, case.silent, 0)], [case.alert]) for case in CASES]
    assert check_all(program, tmp_path, files) == ""


def test_wrong_expectation_makes_promtool_fail(program: Path, tmp_path: Path) -> None:
    case = CASES[0]
    output = check(program, tmp_path, firing(case, case.silent, 1), alerts=[case.alert])
    assert case.alert in output


def test_every_alert_is_tested() -> None:
    alert_names = [each.name for found in alerts(SETTINGS.thresholds).values() for each in found]
    assert sorted(alert_names) == sorted({case.alert for case in CASES})


@pytest.mark.parametrize(
    ("exporter", "expected"),
    [
        (DcgmExporterSettings(), True),
        (DcgmExporterSettings(install=False, existing=ExistingExporterSettings()), True),
        (DcgmExporterSettings(install=False), False),
    ],
)
def test_gpu_series_are_expected_if_any_exporter_is_configured(
    exporter: DcgmExporterSettings, expected: bool
) -> None:
    settings = MonitoringSettings(prometheus="operator", dcgm_exporter=exporter)
    rules = [rule for group in rule_groups(settings) for rule in group["rules"]]
    (missing,) = [rule for rule in rules if rule.get("alert") == "SeriesMissing"]
    assert ("absent(DCGM_FI_DEV_GPU_UTIL)" in missing["expr"]) is expected
    assert "absent(kube_pod_labels)" in missing["expr"]


def test_alert_annotations_name_the_pod(program: Path, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.alert == "FrequentRestarts")
    test = expression_test(case.fires, case.minutes, "vector(0)", {"labels": "{}", "value": 0})
    labels = {"namespace": "ml", "pod": "p", "severity": "critical", "part_of": "gpu-platform"}
    annotations = {
        "summary": "ml/p restarts repeatedly",
        "description": "Read the pod's last log lines: python -m gitops status, "
        "kubectl logs --previous.",
        "runbook_url": "docs/runbooks.md#frequentrestarts",
    }
    expected = {"exp_labels": labels, "exp_annotations": annotations}
    test["alert_rule_test"] = [
        {"eval_time": "70m", "alertname": case.alert, "exp_alerts": [expected]}
    ]
    assert check(program, tmp_path, test, alerts=[case.alert]) == ""


def test_a_waiting_gang_is_reported_with_its_queue(program: Path, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.alert == "GangPendingTooLong")
    expr = f'ALERTS{{alertname="{case.alert}"}}'
    alert_labels = 'namespace="ml", queue="vision", job_id="digits-1", severity="warning"'
    labels = f'{expr[:-1]}, alertstate="firing", part_of="gpu-platform", {alert_labels}}}'
    test = expression_test(case.fires, case.minutes, expr, {"labels": labels, "value": 1})
    assert check(program, tmp_path, test, alerts=[case.alert]) == ""


def test_alerts_use_the_configured_thresholds() -> None:
    limits = SETTINGS.thresholds.model_copy(update={"latency_seconds": 0.25})
    (latency_alert,) = (each for each in alerts(limits)["serving"] if each.name == "InferenceSlow")
    assert "> 0.25" in latency_alert.expr
    assert "0.25 s" in latency_alert.summary


def test_alerts_use_the_configured_durations() -> None:
    limits = SETTINGS.thresholds.model_copy(update={"memory_minutes": 7, "claim_minutes": 9})
    found = {each.name: each.minutes for topic in alerts(limits).values() for each in topic}
    assert found["GpuMemoryNearlyFull"] == found["MemoryNearLimit"] == 7
    assert found["ClaimNearlyFull"] == 9
