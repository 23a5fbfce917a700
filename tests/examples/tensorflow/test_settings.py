import pytest

from examples.tensorflow import settings
from examples.tensorflow.settings import check, problems
from infra.settings.training import checks
from training.config import TrainingConfig
from workload.configuration import ConfigurationError

FITTING = {"model": "digits-net", "dataset": "digits"}


def test_supported_settings_are_accepted() -> None:
    config = TrainingConfig.model_validate({**FITTING, "epochs": 2, "seed": 3, "batch_size": 8})
    check(config)
    assert problems(config) == []


def test_ignored_settings_are_refused_by_name() -> None:
    config = TrainingConfig.model_validate({**FITTING, "weight_decay": 0.1})
    with pytest.raises(ConfigurationError, match="weight_decay is not supported"):
        check(config)


def test_another_model_is_refused() -> None:
    (problem,) = problems(
        TrainingConfig.model_validate({"model": "mnist-net", "dataset": "digits"})
    )
    assert "write model digits-net" in problem


def test_the_stack_knows_what_the_program_supports() -> None:
    assert checks.TENSORFLOW_SETTINGS == settings.SUPPORTED
    assert checks.TENSORFLOW_MODEL == settings.MODEL
    assert checks.TENSORFLOW_DATASET == settings.DATASET
    config = TrainingConfig.model_validate({"model": "mnist-net", "weight_decay": 0.1})
    assert checks.unsupported_hyperparameters(config) == problems(config)
