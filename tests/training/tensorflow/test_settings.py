import pytest

from training.config import ConfigurationError, TrainingConfig
from training.tensorflow.settings import check, problems

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
