"""Workloads that exceed limits of the namespace, or of the GPUs."""

from typing import Any

import pytest

from tests.infra import sweeps
from tests.infra.examples import good, problems
from tests.infra.jobs import configuration, job

MAXIMUM = "gpu-platform:tenancy.limits.max_memory"


def limited(values: dict[str, Any], maximum: str) -> list[str]:
    """Return the problems if the namespace has a maximum memory per container."""
    values["tenancy"]["limits"] = {"max_memory": maximum}
    return problems(values)


@pytest.mark.parametrize("kind", ["mpi", "ray"])
@pytest.mark.parametrize(
    ("launcher", "maximum", "refused"),
    [
        (None, "1Gi", "2Gi"),
        (None, "2Gi", None),
        ({"memory": "1Gi"}, "1Gi", None),
        ({"memory": "3Gi"}, "2Gi", "3Gi"),
    ],
)
def test_a_launcher_may_not_exceed_the_maximum(
    kind: str, launcher: dict[str, Any] | None, maximum: str, refused: str | None
) -> None:
    values = configuration(job(kind, memory="1Gi", shm="64Mi", launcher=launcher))
    expected = (
        f"gpu-platform:training.jobs.job.launcher.memory is {refused}, more than {MAXIMUM} "
        f"({maximum}): the pods would be rejected."
    )
    assert limited(values, maximum) == ([expected] if refused else [])


def test_a_job_without_a_launcher_is_admitted() -> None:
    values = configuration(job("volcano", memory="1Gi", shm="64Mi"))
    assert limited(values, "1Gi") == []


def test_the_pod_that_starts_scheduled_runs_may_not_exceed_the_maximum() -> None:
    schedule = {"cron": "0 3 * * *", "time_zone": "Etc/UTC", "image": "training", "memory": "2Gi"}
    values = configuration(job("volcano", memory="1Gi", shm="64Mi", schedule=schedule))
    assert limited(values, "2Gi") == []
    [sentence] = limited(values, "1Gi")
    assert sentence.startswith("gpu-platform:training.jobs.job.schedule.memory is 2Gi, more than")


def test_the_programs_of_the_stack_may_not_exceed_the_maximum() -> None:
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
    assert limited(values, "102Gi") == []
    assert [each.split(", ")[0] for each in limited(values, "99Gi")] == [
        "gpu-platform:inference.services.digits.canary.rollback.memory is 102Gi",
        "gpu-platform:logs.recorder.memory is 101Gi",
        "gpu-platform:training.sweep_controller.memory is 100Gi",
    ]


@pytest.mark.parametrize("refuse", [True, False])
def test_the_plugin_rejects_every_pod_with_several_shares_of_gpus(refuse: bool) -> None:
    values = good()
    values["gpu"] = {"time_slicing": {"replicas": 4, "refuse_more_than_one": refuse}}
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
        if refuse
        else []
    )
