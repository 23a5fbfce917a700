"""Arguments from other languages: number types, and key names in errors."""

from typing import Any

import pytest
from pulumi.errors import InputPropertiesError

from gpu_platform.platform_stack import Problem
from gpu_platform.plugin.checking import unsupported, validate
from infra.settings.cluster import GpuSettings
from infra.settings.training import TrainingSettings

JOB: dict[str, Any] = {
    "queue": "research",
    "cpu": "1",
    "memory": "4Gi",
    "nodes": 2.0,
    "hyperparameters": {"epochs": 3.0, "learning_rate": 0.5},
}


def rejected(values: dict[str, Any], key: str = "digits") -> InputPropertiesError:
    with pytest.raises(InputPropertiesError) as found:
        validate(TrainingSettings, values, "jobs", key)
    return found.value


def problems(values: dict[str, Any], key: str = "digits") -> dict[str, str]:
    errors = rejected(values, key).errors
    return {detail["property_path"]: detail["reason"] for detail in errors or []}


def test_integers_remain_integers() -> None:
    job = validate(TrainingSettings, JOB, "jobs", "digits").jobs["digits"]
    assert job.nodes == 2
    assert job.hyperparameters is not None
    assert job.hyperparameters.epochs == 3
    assert job.hyperparameters.learning_rate == 0.5


def test_each_error_contains_the_key_path_in_camel_case() -> None:
    wrong = {
        **JOB,
        "gpus_per_node": 0.0,
        "nodes": 1.5,
        "hyperparameters": {"epochs": -1.0, "learning_rate": 20.0},
    }
    found = problems(wrong)
    assert found.keys() == {
        "gpusPerNode",
        "nodes",
        "hyperparameters.epochs",
        "hyperparameters.learningRate",
    }
    assert found["gpusPerNode"] == "must be at least 1"
    assert found["nodes"] == "must be an integer"


def test_keys_of_mappings_are_unchanged_in_errors() -> None:
    found = problems({**JOB, "env": {"NCCL_DEBUG": True}, "env_from": {"WANDB_KEY": {"key": "k"}}})
    assert found.keys() == {"env.NCCL_DEBUG", "envFrom.WANDB_KEY"}
    assert problems({**JOB, "my_key": 1.0}) == {"my_key": "is not a known argument"}


def test_missing_and_misspelled_arguments_are_reported() -> None:
    found = problems({"queue": "research", "cpu": "1", "gpusPerNodes": 1.0})
    assert found == {
        "memory": "is missing",
        "gpusPerNodes": "is not a known argument: did you mean 'gpusPerNode'?",
    }


def test_the_name_of_the_resource_is_checked() -> None:
    (path,) = problems(JOB, key="Digits")
    assert path == "name"


def test_problems_of_several_arguments_are_part_of_the_message_in_camel_case() -> None:
    error = rejected({**JOB, "min_nodes": 3.0})
    assert error.message == "it sets minNodes to 3, more than nodes (2): set it to at most 2"
    assert error.errors == []


def test_remedies_name_arguments_in_camel_case_even_if_they_are_not_set() -> None:
    found = problems({**JOB, "volumes": {"my_data": {"path": "/data"}}})
    assert found["volumes.my_data"].startswith("must set exactly one of claim, secret, configMap")
    with pytest.raises(InputPropertiesError) as raised:
        unsupported(
            [Problem("gpus_per_node", "is 2: use 1"), Problem("image", "pass canary_image")]
        )
    assert raised.value.errors == [
        {"property_path": "gpusPerNode", "reason": "is 2: use 1"},
        {"property_path": "image", "reason": "pass canaryImage"},
    ]


def test_problem_of_a_component_without_a_name_in_its_settings_is_part_of_the_message() -> None:
    values = {"provider": "gpu-operator", "runtime_class": {"name": "nvidia", "create": True}}
    with pytest.raises(InputPropertiesError, match=r"it has a runtimeClass with create: true, but"):
        validate(GpuSettings, values)
