from typing import Any

import pytest

from infra.settings.inference import InferenceServiceSettings
from infra.settings.training.job import TrainingJobSettings
from kube.shared_memory import default_shm, shm_problem

REFUSED = "set shm to at most 819Mi, or increase memory"


def test_fitting_shared_memory_is_accepted() -> None:
    assert shm_problem("819Mi", "1Gi") is None


def test_a_problem_names_both_sizes_and_the_largest_that_fits() -> None:
    problem = shm_problem("900Mi", "1Gi")
    assert problem is not None
    assert problem.startswith("has shm 900Mi, but memory 1Gi")
    assert problem.endswith(REFUSED)


@pytest.mark.parametrize("memory", ["64Mi", "1Gi", "7Gi", "512Gi"])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_the_default_always_fits(gpus: int, memory: str) -> None:
    assert shm_problem(default_shm(gpus, memory), memory) is None


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (InferenceServiceSettings, {"job": "digits"}),
        (TrainingJobSettings, {"queue": "research", "command": ["train"]}),
    ],
)
def test_jobs_and_services_are_refused_before_the_policies_would_refuse_them(
    kind: type[TrainingJobSettings | InferenceServiceSettings], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        kind.model_validate({**fields, "cpu": "1", "memory": "1Gi", "shm": "900Mi"})
