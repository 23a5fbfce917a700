from typing import Any

import pytest

from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.training.job import TrainingJobSettings
from kube.shared_memory import default_shm, shm_problem

HOW_TO_FIX = "set shm to at most 819Mi, or increase memory"


def test_shared_memory_within_the_memory_limit_is_accepted() -> None:
    assert shm_problem("819Mi", "1Gi") is None


def test_error_states_both_sizes_and_the_largest_valid_size() -> None:
    problem = shm_problem("900Mi", "1Gi")
    assert problem is not None
    assert problem.startswith("has shm 900Mi, but memory 1Gi")
    assert problem.endswith(HOW_TO_FIX)


@pytest.mark.parametrize("memory", ["64Mi", "1Gi", "7Gi", "512Gi"])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_default_shared_memory_always_fits_into_the_memory_limit(gpus: int, memory: str) -> None:
    assert shm_problem(default_shm(gpus, memory), memory) is None


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (InferenceServiceSettings, {"job": "digits"}),
        (TrainingJobSettings, {"queue": "research", "command": ["train"]}),
    ],
)
def test_settings_of_jobs_and_services_reject_too_much_shared_memory(
    kind: type[TrainingJobSettings | InferenceServiceSettings], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=HOW_TO_FIX):
        kind.model_validate({**fields, "cpu": "1", "memory": "1Gi", "shm": "900Mi"})
