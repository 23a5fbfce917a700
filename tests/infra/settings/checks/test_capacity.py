"""Workloads that exceed the limits of the namespace or of its GPUs."""

from typing import Any

import pytest

from infra.settings import SettingsError, validate
from tests.infra import sweeps
from tests.infra.examples import good, problems
from tests.infra.jobs import configuration, job

MAXIMUM = "gpu-platform:tenancy.limits.max_memory"


def problems_with_maximum(values: dict[str, Any], maximum: str) -> list[str]:
    """Return the problems with a maximum memory per container in the namespace."""
    values["tenancy"]["limits"] = {"max_memory": maximum}
    return problems(values)


@pytest.mark.parametrize("kind", ["mpi", "ray"])
@pytest.mark.parametrize(
    ("launcher", "maximum", "rejected_memory"),
    [
        (None, "1Gi", "2Gi"),
        (None, "2Gi", None),
        ({"memory": "1Gi"}, "1Gi", None),
        ({"memory": "3Gi"}, "2Gi", "3Gi"),
    ],
)
def test_launcher_above_the_maximum_memory_is_rejected(
    kind: str, launcher: dict[str, Any] | None, maximum: str, rejected_memory: str | None
) -> None:
    values = configuration(job(kind, memory="1Gi", shm="64Mi", launcher=launcher))
    expected = (
        f"gpu-platform:training.jobs.job.launcher.memory is {rejected_memory}, more than {MAXIMUM} "
        f"({maximum}): the pods would be rejected."
    )
    assert problems_with_maximum(values, maximum) == ([expected] if rejected_memory else [])


def test_job_without_a_launcher_is_accepted() -> None:
    values = configuration(job("volcano", memory="1Gi", shm="64Mi"))
    assert problems_with_maximum(values, "1Gi") == []


def test_schedule_pod_above_the_maximum_memory_is_rejected() -> None:
    schedule = {"cron": "0 3 * * *", "time_zone": "Etc/UTC", "image": "training", "memory": "2Gi"}
    values = configuration(job("volcano", memory="1Gi", shm="64Mi", schedule=schedule))
    assert problems_with_maximum(values, "2Gi") == []
    [sentence] = problems_with_maximum(values, "1Gi")
    assert sentence.startswith("gpu-platform:training.jobs.job.schedule.memory is 2Gi, more than")


def test_system_programs_above_the_maximum_memory_are_rejected() -> None:
    values = sweeps.values()
    images = values["images"]["workloads"]
    images["recorder"] = images["training"]
    values["training"]["sweep_controller"] = {"memory": "100Gi"}
    values["logs"] = {"recorder": {"memory": "101Gi"}}
    values["inference"]["services"]["digits"] = {
        **good()["inference"]["services"]["digits"],
        "job": None,
        "run": "digits-01234567",
        "route": {"gateway": {"name": "public"}},
        "canary": {
            "weight": 10,
            "run": "digits-12345678",
            "rollback": {"prometheus": "http://prometheus:9090", "memory": "102Gi"},
        },
    }
    assert problems_with_maximum(values, "102Gi") == []
    assert [each.split(", ")[0] for each in problems_with_maximum(values, "99Gi")] == [
        "gpu-platform:inference.services.digits.canary.rollback.memory is 102Gi",
        "gpu-platform:logs.recorder.memory is 101Gi",
        "gpu-platform:training.sweep_controller.memory is 100Gi",
    ]


@pytest.mark.parametrize("refuses_shares", [True, False])
def test_pods_with_several_gpu_shares_are_rejected_if_the_plugin_refuses_them(
    refuses_shares: bool,
) -> None:
    values = good()
    values["gpu"] = {"time_slicing": {"replicas": 4, "refuse_more_than_one": refuses_shares}}
    values["training"]["jobs"]["digits"] |= {
        "gpus_per_node": 1,
        "steps": {"evaluate": {"command": ["./evaluate"], "gpus": 2}},
    }
    values["inference"]["services"]["digits"]["gpus"] = 3
    found = [sentence.partition(", but GPUs are shared")[0] for sentence in problems(values)]
    assert found == (
        [
            "gpu-platform:training.jobs.digits.steps.evaluate.gpus is 2",
            "gpu-platform:inference.services.digits.gpus is 3",
        ]
        if refuses_shares
        else []
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_quota_must_cover_the_rdma_devices_of_a_gang(devices: int) -> None:
    values = good()
    values["training"]["jobs"]["digits"]["rdma"] = {"resource": "rdma/hca", "interface": "eth0"}
    values["tenancy"]["quota"]["devices"] = {"rdma/hca": devices}
    found = [sentence.partition(", more than ")[::2] for sentence in problems(values)]
    assert [(start.split(") ")[-1], end.split(" ")[0]) for start, end in found] == (
        [("needs 2 rdma/hca", "gpu-platform:tenancy.quota.devices.rdma/hca")] if devices < 2 else []
    )


SCHEDULE = {"cron": "0 3 * * *", "image": "training", "cpu": "10m"}


@pytest.mark.parametrize(
    ("quota", "changes", "expected"),
    [
        ({"pods": 3}, {}, None),
        ({"pods": 2}, {}, "needs 2 pods, and the stack's own programs need 1."),
        ({"pods": 3}, {"schedule": SCHEDULE}, "needs 2 pods, and the stack's own programs need 2."),
        ({"cpu": "16050m"}, {}, None),
        ({"cpu": "16"}, {}, "needs 16 cpu, and the stack's own programs need 0.05."),
    ],
)
def test_quota_must_cover_a_gang_and_the_stacks_programs(
    quota: dict[str, Any], changes: dict[str, Any], expected: str | None
) -> None:
    values = good()
    values["inference"] = {}
    values["images"]["workloads"]["recorder"] = values["images"]["workloads"]["training"]
    values["logs"] = {"recorder": {"cpu": "50m"}}
    values["tenancy"]["quota"] |= quota
    values["training"]["jobs"]["digits"] |= changes
    found = problems(values)
    assert len(found) == (expected is not None)
    assert all(expected is not None and expected in sentence for sentence in found)


@pytest.mark.parametrize(
    ("version", "rejected_settings"),
    [("1.9.0", ["steps", "schedule", "network_topology"]), ("1.10.0", ["network_topology"])],
)
def test_volcano_release_must_support_the_job_settings(
    version: str, rejected_settings: list[str]
) -> None:
    found = []
    for setting, value in {
        "steps": {"evaluate": {"command": ["./evaluate"]}},
        "schedule": SCHEDULE,
        "network_topology": {"mode": "soft"},
    }.items():
        values = good()
        values["volcano"]["version"] = version
        values["training"]["jobs"]["digits"][setting] = value
        if setting == "schedule":
            values["inference"] = {}
        found += [sentence.split(" is set, but ") for sentence in problems(values)]
    assert [start.rpartition(".")[2] for start, _ in found] == rejected_settings
    assert all(end.startswith(f"gpu-platform:volcano.version is {version}") for _, end in found)


def test_elastic_job_needs_capacity_only_for_its_minimum_size() -> None:
    values = configuration(job("volcano", nodes=8, min_nodes=2))
    values["tenancy"]["quota"] = {"gpus": 8}
    validate(values)
    values["tenancy"]["quota"] = {"gpus": 7}
    with pytest.raises(SettingsError, match="would never start"):
        validate(values)


def test_step_pod_must_fit_the_quota_and_the_queue() -> None:
    values = configuration(
        job("volcano", steps={"score": {"command": ["a"], "gpus": 16, "memory": "1Ti"}})
    )
    values["tenancy"]["quota"] = {"gpus": 8}
    with pytest.raises(
        SettingsError, match=r"steps\.score\.gpus is 16: the step 'score' \(one pod with 16 nvidia"
    ):
        validate(values)
    values["tenancy"]["quota"] = {"gpus": 16}
    validate(values)
    values["volcano"]["queues"]["research"] = {"capability": {"memory": "512Gi"}}
    with pytest.raises(SettingsError, match=r"memory is 512Gi, but the step 'score' needs"):
        validate(values)


@pytest.mark.parametrize(("gpus", "fits"), [(16, True), (15, False)])
def test_gang_must_fit_the_parents_of_its_queue(gpus: int, fits: bool) -> None:
    values = configuration(job("volcano", nodes=2, gpus_per_node=8))
    values["volcano"]["scheduler"] = {"share": "capacity"}
    values["volcano"]["queues"] |= {
        "company": {"capability": {"nvidia.com/gpu": gpus}},
        "science": {"parent": "company"},
        "research": {"parent": "science"},
    }
    if fits:
        validate(values)
        return
    message = r"'research', below 'company', whose capability for nvidia\.com/gpu is 15, but"
    with pytest.raises(SettingsError, match=message):
        validate(values)


@pytest.mark.parametrize(("guarantee", "fits"), [(8, True), (9, False)])
def test_gang_must_fit_next_to_the_guarantees_of_other_queues(guarantee: int, fits: bool) -> None:
    values = configuration(job("volcano", nodes=2, gpus_per_node=8))
    values["volcano"]["scheduler"] = {"share": "capacity"}
    values["volcano"]["queues"] |= {
        "company": {"capability": {"nvidia.com/gpu": 25}},
        "science": {"parent": "company"},
        "research": {"parent": "science", "guarantee": {"nvidia.com/gpu": 1}},
        "vision": {"parent": "science", "guarantee": {"nvidia.com/gpu": 1}},
        "language": {"parent": "company", "guarantee": {"nvidia.com/gpu": guarantee}},
        "elsewhere": {"guarantee": {"nvidia.com/gpu": 100}},
    }
    if fits:
        validate(values)
        return
    message = r"is 25 \(10 are guaranteed to other child queues\), but the gang needs 16"
    with pytest.raises(SettingsError, match=message):
        validate(values)


@pytest.mark.parametrize(("cpu", "fits"), [("20", True), ("19", False)])
def test_queue_must_have_capacity_for_gang_and_launcher(cpu: str, fits: bool) -> None:
    values = configuration(job("mpi", nodes=2, cpu="8", launcher={"cpu": "4"}))
    values["volcano"]["queues"]["research"] = {"capability": {"cpu": cpu}}
    if fits:
        validate(values)
        return
    with pytest.raises(
        SettingsError, match=r"the gang needs 20 \(.*a pod with cpu 4 and memory 2Gi\)"
    ):
        validate(values)
