import pytest

from examples.tensorflow import settings
from examples.tensorflow.settings import check, problems
from infra.settings.jobs import tensorflow
from training.config import TrainingConfig
from workload.configuration import ConfigurationError

FITTING = {"model": "digits-net", "dataset": "digits"}


def test_what_is_followed_may_be_set() -> None:
    config = TrainingConfig.model_validate({**FITTING, "epochs": 2, "seed": 3, "batch_size": 8})
    check(config)
    assert problems(config) == []


def test_what_would_be_ignored_is_refused_by_name() -> None:
    config = TrainingConfig.model_validate({**FITTING, "weight_decay": 0.1})
    with pytest.raises(ConfigurationError, match="weight_decay is not followed"):
        check(config)


def test_another_model_is_refused() -> None:
    (problem,) = problems(
        TrainingConfig.model_validate({"model": "mnist-net", "dataset": "digits"})
    )
    assert "write model digits-net" in problem


def test_the_stack_knows_what_the_program_follows() -> None:
    for name in ("FOLLOWED", "MODEL", "DATASET"):
        assert getattr(tensorflow, name) == getattr(settings, name)
    config = TrainingConfig.model_validate({"model": "mnist-net", "weight_decay": 0.1})
    assert tensorflow.unfollowed(config) == problems(config)
