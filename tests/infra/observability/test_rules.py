"""GPU-hours, cost, goodput and waiting times, evaluated by promtool."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.observability.rules import hours, recordings
from recorder.node_decisions import Policy
from recorder.node_health import xid_query
from tests.infra.observability.promtool import check, expression_test, promtool

REQUEST = 'resource="nvidia_com_gpu", container="training"'
APT = "#!/bin/sh\nsleep 0.2\ntouch prometheus.deb\n"
DPKG = '#!/bin/sh\nmkdir -p "$3/usr/bin"\ntouch "$3/usr/bin/promtool"\n'


def pod(name: str, run: str, queue: str, gpus: int, phase: str = "Running") -> dict[str, str]:
    labels = f'namespace="ml", pod="{name}"'
    return {
        f'kube_pod_container_resource_requests{{{labels}, node="n", {REQUEST}}}': f"{gpus}x130",
        f'kube_pod_container_resource_requests{{{labels}, node="n", resource="cpu"}}': "32x130",
        f'kube_pod_status_phase{{{labels}, phase="{phase}"}}': "1x130",
        f'kube_pod_labels{{{labels}, label_gpu_platform_dev_run="{run}", '
        f'label_volcano_sh_queue_name="{queue}"}}': "1x130",
    }


def annotated(name: str, run: str, queue: str, gpus: int) -> dict[str, str]:
    """Return the series for a pod that has its queue in an annotation instead of a label."""
    labels = f'namespace="ml", pod="{name}"'
    annotation = f'annotation_scheduling_volcano_sh_queue_name="{queue}"'
    return {
        f'kube_pod_container_resource_requests{{{labels}, node="n", {REQUEST}}}': f"{gpus}x130",
        f'kube_pod_status_phase{{{labels}, phase="Running"}}': "1x130",
        f'kube_pod_labels{{{labels}, label_gpu_platform_dev_run="{run}"}}': "1x130",
        f"kube_pod_annotations{{{labels}, {annotation}}}": "1x130",
    }


NODE = {'kube_node_labels{node="n", label_nvidia_com_gpu_product="NVIDIA-L4"}': "1x130"}
SERIES = {
    **pod("a-0", "a", "vision", 8),
    **pod("a-1", "a", "vision", 8),
    **pod("b-0", "b", "language", 4),
    **pod("c-0", "c", "language", 4, phase="Succeeded"),
    **NODE,
}


@pytest.fixture(scope="module")
def program() -> Path:
    return promtool()


def test_prices_are_recorded_exactly() -> None:
    (price,) = [
        rule.expr
        for rule in recordings({"NVIDIA-L4": 12345.678}, 30)
        if rule.record == "gpu_platform:node_gpu_price"
    ]
    assert price.endswith("* 12345.678)")


def sample(labels: str, value: float) -> dict[str, Any]:
    return {"labels": labels, "value": value}


GPUS: list[tuple[str, list[tuple[str, float]]]] = [
    (
        "gpu_platform:run_gpus",
        [
            ('{namespace="ml", queue="vision", run="a"}', 16),
            ('{namespace="ml", queue="language", run="b"}', 4),
        ],
    ),
    ("gpu_platform:queue_gpus", [('{queue="vision"}', 16), ('{queue="language"}', 4)]),
    ("gpu_platform:team_gpus", [('{namespace="ml"}', 20)]),
    (
        "gpu_platform:run_cost_per_hour",
        [
            ('{namespace="ml", queue="vision", run="a"}', 12),
            ('{namespace="ml", queue="language", run="b"}', 3),
        ],
    ),
    ("gpu_platform:team_cost_per_hour", [('{namespace="ml"}', 15)]),
]


def reported_by(instance: str) -> dict[str, str]:
    """Return the series as one of several replicas of kube-state-metrics reports them."""
    return {name.replace("{", f'{{instance="{instance}", '): SERIES[name] for name in SERIES}


@pytest.mark.parametrize(
    "series",
    [SERIES, {**reported_by("a"), **reported_by("b")}],
    ids=["one replica", "two replicas"],
)
def test_gpus_and_cost_count_only_pods_that_hold_gpus(
    program: Path, tmp_path: Path, series: dict[str, str]
) -> None:
    tests = (
        expression_test(
            series, 10, name, *(sample(f"{name}{labels}", value) for labels, value in samples)
        )
        for name, samples in GPUS
    )
    assert check(program, tmp_path, *tests) == ""


XIDS = [
    ("0 0 0 79 79", 79),
    # A later error hides the listed one.
    ("0 0 79 31 31", 79),
    ("0 48 79 31 31", 48),
    # The listed error is too old.
    ("79 79 31 31 31 31 31 31", 31),
    # The exporter restarted after a GPU reset.
    ("0 0 79 31 0", 0),
    ("0 0 31 31 31", 31),
]


@pytest.mark.parametrize("listed", [(), (48, 79)])
def test_listed_xid_error_stays_visible_until_the_gpu_is_reset(
    program: Path, tmp_path: Path, listed: tuple[int, ...]
) -> None:
    labels = 'Hostname="gpu-node-0", modelName="NVIDIA H100"'
    query = xid_query(Policy(fault_seconds=120, xids=frozenset(listed)))

    def test(errors: str, expected: int) -> dict[str, Any]:
        series = {
            f'DCGM_FI_DEV_XID_ERRORS{{{labels}, gpu="0", pod="worker-0"}}': errors,
            f'DCGM_FI_DEV_XID_ERRORS{{{labels}, gpu="1"}}': "0x8",
        }
        first = expected if listed else int(errors.split()[-1])
        samples = [
            sample(f'{{Hostname="gpu-node-0", gpu="{gpu}"}}', xid)
            for gpu, xid in ((0, first), (1, 0))
        ]
        return expression_test(series, errors.count(" "), query, *samples)

    assert check(program, tmp_path, *(test(*case) for case in XIDS)) == ""


def test_queue_comes_from_a_label_or_annotation_or_is_empty(program: Path, tmp_path: Path) -> None:
    series_of_d = annotated("d-0", "d", "nowhere", 1).items()
    unknown = {name: value for name, value in series_of_d if "annotations" not in name}
    series = SERIES | annotated("e-0", "e", "vision", 2) | unknown
    expected = [
        sample('gpu_platform:queue_gpus{queue="vision"}', 18),
        sample('gpu_platform:queue_gpus{queue="language"}', 4),
        sample("gpu_platform:queue_gpus", 1),
    ]
    assert (
        check(program, tmp_path, expression_test(series, 10, "gpu_platform:queue_gpus", *expected))
        == ""
    )


DEVICES = {
    "amd_com_gpu": True,
    "nvidia_com_mig_1g_10gb": True,
    "gpu_intel_com_i915": True,
    "rdma_hca_shared_devices_a": False,
    "vpc_amazonaws_com_efa": False,
    "attachable_volumes_csi_ebs_csi_aws_com": False,
    "ephemeral_storage": False,
    "hugepages_2Mi": False,
}
"""Resource names, and whether they are accelerators."""


def test_only_accelerators_are_counted_for_every_vendor(program: Path, tmp_path: Path) -> None:
    def test(resource: str, is_accelerator: bool) -> dict[str, Any]:
        series = {
            name.replace("nvidia_com_gpu", resource): value
            for name, value in pod("a-0", "a", "vision", 8).items()
        }
        expected = [sample('gpu_platform:team_gpus{namespace="ml"}', 8)] if is_accelerator else []
        return expression_test(series, 10, "gpu_platform:team_gpus", *expected)

    assert check(program, tmp_path, *(test(*device) for device in DEVICES.items())) == ""


def test_gpu_hours_are_summed_over_time(program: Path, tmp_path: Path) -> None:
    expr = f"round({hours('gpu_platform:queue_gpus', '1h', 30)})"
    expected = [sample('{queue="vision"}', 16), sample('{queue="language"}', 4)]
    assert check(program, tmp_path, expression_test(SERIES, 120, expr, *expected)) == ""


def steps(values: str) -> dict[str, str]:
    """Return the seconds by activity for run `a`; `values` is the time in steps."""
    labels = 'namespace="ml", pod="a-0", run="a"'
    return {
        f'training_seconds_total{{{labels}, activity="step"}}': values,
        f'training_seconds_total{{{labels}, activity="data"}}': "0+10x20",
        f'training_seconds_total{{{labels}, activity="checkpoint"}}': "0+5x20",
    }


LAUNCHER = 'namespace="ml", pod="a-launcher"'
UNPLACED = {
    name.replace('node="n"', 'node=""'): value
    for name, value in pod("a-1", "a", "vision", 8, phase="Pending").items()
}


GOODPUT: list[tuple[dict[str, str], float]] = [
    (pod("a-0", "a", "vision", 8) | steps("0+45x20"), 0.75),
    # The other pod has no metrics: it is pulling its image, or its process has exited.
    (pod("a-0", "a", "vision", 8) | pod("a-1", "a", "vision", 8) | steps("0+45x20"), 0.375),
    # The other pod has no node yet.
    (pod("a-0", "a", "vision", 8) | UNPLACED | steps("0+45x20"), 0.75),
    # The other pod has ended.
    (
        pod("a-0", "a", "vision", 8)
        | pod("a-1", "a", "vision", 8, phase="Succeeded")
        | steps("0+45x20"),
        0.75,
    ),
    # A launcher has no GPU.
    (
        pod("a-0", "a", "vision", 8)
        | {
            f'kube_pod_labels{{{LAUNCHER}, label_gpu_platform_dev_run="a"}}': "1x20",
            f'kube_pod_status_phase{{{LAUNCHER}, phase="Running"}}': "1x20",
        }
        | steps("0+45x20"),
        0.75,
    ),
    # The run does not make progress.
    (pod("a-0", "a", "vision", 8) | steps("45x20"), 0),
]


def test_goodput_is_the_share_of_pod_time_spent_in_steps(program: Path, tmp_path: Path) -> None:
    name = "gpu_platform:run_goodput"
    tests = (
        expression_test(series, 15, name, sample(f'{name}{{namespace="ml", run="a"}}', share))
        for series, share in GOODPUT
    )
    assert check(program, tmp_path, *tests) == ""


def test_time_to_gang_ends_when_the_last_pod_has_a_node(program: Path, tmp_path: Path) -> None:
    series = {
        **SERIES,
        'kube_pod_created{namespace="ml", pod="a-0"}': "100x20",
        'kube_pod_created{namespace="ml", pod="a-1"}': "101x20",
        'kube_pod_status_scheduled_time{namespace="ml", pod="a-0"}': "130x20",
        'kube_pod_status_scheduled_time{namespace="ml", pod="a-1"}': "190x20",
    }
    name = "gpu_platform:run_seconds_to_gang"
    expected = sample(f'{name}{{namespace="ml", run="a"}}', 90)
    assert check(program, tmp_path, expression_test(series, 10, name, expected)) == ""


def test_time_to_gang_ignores_pods_of_earlier_attempts(program: Path, tmp_path: Path) -> None:
    series = {
        **pod("a-0", "a", "vision", 8, phase="Failed"),
        **pod("a-1", "a", "vision", 8),
        'kube_pod_created{namespace="ml", pod="a-0"}': "100x20",
        'kube_pod_created{namespace="ml", pod="a-1"}': "500x20",
        'kube_pod_status_scheduled_time{namespace="ml", pod="a-0"}': "130x20",
        'kube_pod_status_scheduled_time{namespace="ml", pod="a-1"}': "520x20",
    }
    name = "gpu_platform:run_seconds_to_gang"
    expected = sample(f'{name}{{namespace="ml", run="a"}}', 20)
    assert check(program, tmp_path, expression_test(series, 10, name, expected)) == ""


def gang(start: str, milliseconds: str, missing: str) -> dict[str, str]:
    """Return Volcano's metrics for the gang `g`, scraped in Volcano's namespace."""
    labels = 'namespace="volcano-system", job_name="g", job_namespace="ml", queue="vision"'
    return {
        f"volcano_e2e_job_scheduling_start_time{{{labels}}}": start,
        f"volcano_e2e_job_scheduling_duration{{{labels}}}": milliseconds,
        'volcano_unschedule_task_count{namespace="volcano-system", job_id="g"}': missing,
    }


WAITS: list[tuple[dict[str, str], int, float]] = [
    # No pod of the gang has ever had a node.
    (gang("60x20", "_x20", "4x20"), 10, 540),
    # One pod repeatedly gets and loses a node.
    (gang("60x20", "0+60000x20", "3x20"), 10, 540),
    # The gang was complete after 90 seconds; later, a pod is replaced.
    (gang("0x40", "30000 90000x19 1500000x20", "1 0x19 2x5 0x15"), 39, 90),
    (gang("0x40", "30000 90000x19 1500000x20", "1 0x19 2x5 0x15"), 22, 90),
    # The scheduler restarts.
    (gang("0x40", "30000 90000x9", "1 0x39"), 39, 90),
]


def test_wait_of_a_gang_ends_when_it_is_complete(program: Path, tmp_path: Path) -> None:
    name = "gpu_platform:queue_wait_seconds"
    gangs = f'{name}{{namespace="ml", queue="vision", gang="g"}}'
    tests = (
        expression_test(series, minutes, name, sample(gangs, seconds))
        for series, minutes, seconds in WAITS
    )
    assert check(program, tmp_path, *tests) == ""


def test_deleted_gang_has_no_wait(program: Path, tmp_path: Path) -> None:
    name = "gpu_platform:queue_wait_seconds"
    test = expression_test(gang("0x10 stale", "90000x10 stale", "0x10 stale"), 20, name)
    assert check(program, tmp_path, test) == ""


def test_waiting_gangs_are_counted_by_queue(program: Path, tmp_path: Path) -> None:
    name = "gpu_platform:queue_pending_gangs"
    series = {'volcano_queue_pod_group_pending_count{queue_name="vision"}': "3x10"}
    expected = sample(f'{name}{{queue="vision"}}', 3)
    assert check(program, tmp_path, expression_test(series, 5, name, expected)) == ""


def test_concurrent_callers_unpack_promtool_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("GPU_PLATFORM_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: promtool(), range(3)))
    assert all(program.exists() for program in found)
