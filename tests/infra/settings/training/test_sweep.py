"""Settings of sweeps: mistakes are reported with their key, value and remedy."""

from typing import Any

import pytest

from tests.infra.examples import problems
from tests.infra.sweeps import SPACE, length, stack_settings, values

STEPS: dict[str, Any] = {"job": {"hyperparameters": length(train_steps=900, evaluate_steps=50)}}
SAMPLES: dict[str, Any] = {"job": {"hyperparameters": length(train_samples=9000)}}


def problem(**changes: Any) -> str:
    (found,) = problems(values(**changes))
    return found


def test_error_for_a_misspelled_hyperparameter_suggests_the_closest_one() -> None:
    found = problem(space={"lerning_rate": {"min": 0.1, "max": 0.2}})
    assert "gpu-platform:training.sweeps.digits.space.lerning_rate" in found
    assert "did you mean 'learning_rate'?" in found


@pytest.mark.parametrize("name", ["epochs", "log_every", "init_from"])
def test_hyperparameters_that_do_not_affect_the_result_cannot_be_searched(name: str) -> None:
    assert "set it in job.hyperparameters" in problem(space={name: {"min": 1, "max": 2}})


@pytest.mark.parametrize(
    ("name", "parameter", "message"),
    [
        ("learning_rate", {"min": 0.1, "max": 20}, "learning_rate must be at most 10"),
        ("optimizer", {"choices": ["adamw", "adam"]}, "optimizer must be 'adamw' or 'sgd'"),
        ("optimizer", {"min": 1, "max": 2}, "space.optimizer, whose values are not numbers"),
        ("batch_size", {"min": 1.5, "max": 2}, "space.batch_size, which is an integer"),
        ("learning_rate", {"min": 0, "max": 1, "log": True}, "which has no logarithm"),
        ("learning_rate", {"min": 0.2, "max": 0.1}, "max must be larger"),
        ("learning_rate", {"min": 0.2}, "must set min and max, or choices"),
        ("learning_rate", {"choices": [0.1, 0.1]}, "has a duplicate choice"),
        ("learning_rate", {"choices": [0.1], "log": True}, "keep one of them"),
    ],
)
def test_space_must_contain_only_valid_hyperparameter_values(
    name: str, parameter: dict[str, Any], message: str
) -> None:
    assert message in problem(space={name: parameter})


@pytest.mark.parametrize(
    ("parameter", "key", "message"),
    [
        ({"min": "0.1", "max": 1}, "min", '"0.1", but must be an integer or a number'),
        ({"choices": [0.1, None]}, "choices[1]", "null, but must be a string, a boolean"),
    ],
)
def test_value_with_an_invalid_type_is_reported_once(
    parameter: dict[str, Any], key: str, message: str
) -> None:
    found = problem(space={"learning_rate": parameter})
    assert f"gpu-platform:training.sweeps.digits.space.learning_rate.{key} is {message}" in found


def test_error_for_an_unknown_model_lists_the_valid_models() -> None:
    found = problem(space={"model": {"choices": ["digits-net", "resnet9000"]}})
    assert "combination model resnet9000, which is not valid for a job" in found
    assert "which is not valid for a job: model: use digits-net," in found


def test_combinations_of_hyperparameters_are_checked() -> None:
    space = {"optimizer": SPACE["optimizer"], "betas": {"choices": ["0.9,0.95", "0.9,0.99"]}}
    found = problem(space=space)
    assert "which is not valid for a job: betas is set, but only adamw uses it" in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": 9}, "sets parallel to 9, more than trials (8)"),
        ({"objective": {"metric": "acuracy"}}, "use held_out_loss or accuracy"),
        ({"objective": {"metric": "accuracy"}}, "goal is 'minimize', but the metric is 'accuracy'"),
        ({"objective": {"goal": "maximize"}}, "set goal to minimize"),
        ({"early_stopping": {"minimum": 9}}, "the job ends after 9 epochs"),
        ({"early_stopping": {"minimum": 3, "maximum": 2}}, "maximum to 2, less than minimum (3)"),
        (STEPS | {"early_stopping": {"minimum": 900}}, "the job ends after 900 steps"),
        (SAMPLES, "but the length of the job is set by train_samples"),
        ({"job": {"retries": 2}}, "set at least 3"),
        ({"job": {"kind": "indexed"}}, "use a kind that creates a Volcano Job"),
        ({"job": {"state": "stopped"}}, "sets job.state"),
        ({"job": {"run": "digits-1"}}, "sets job.run"),
        ({"budget": {"hours": 3}}, "must set gpu_hours, money or both"),
        ({"budget": {"money": 0}}, "budget.money is 0, but must be greater than 0"),
        ({"budget": {"gpu_hours": 0.1}}, "so no trial would start: set a larger budget"),
        ({"job": {"queue": "nowhere"}}, "training.sweeps.digits.job.queue is 'nowhere'"),
    ],
)
def test_contradictory_sweep_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    assert message in problem(**changes)


def serving_winner(service: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a stack with a service for the sweep's winner."""
    found = values(winner="serve", **changes)
    found["inference"]["services"]["digits"] |= service or {}
    return found


def test_the_winner_of_a_sweep_is_served_from_its_claim() -> None:
    assert problems(serving_winner()) == []


def test_winner_that_no_service_serves_is_rejected() -> None:
    configuration = serving_winner()
    configuration["inference"]["services"] = {}
    (found,) = problems(configuration)
    assert "training.sweeps.digits.winner is 'serve', but no service has `sweep: digits`" in found


def test_service_for_a_sweep_without_a_winner_is_rejected() -> None:
    configuration = serving_winner()
    del configuration["training"]["sweeps"]["digits"]["winner"]
    (found,) = problems(configuration)
    assert "gpu-platform:inference.services.digits.sweep is 'digits'" in found
    assert "set gpu-platform:training.sweeps.digits.winner: serve" in found


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"sweep": "digit"}, "services.digits.sweep is 'digit', which is not declared"),
        ({"run": "digits-12345678"}, "but sets sweep and run"),
        ({"checkpoints": "datasets"}, "but sweep 'digits' exports to 'checkpoints'"),
        ({"runtime": "vllm", "gpus": 1}, "sweep is 'digits', which trains the model digits-net"),
    ],
)
def test_service_that_cannot_serve_the_winner_is_rejected(
    service: dict[str, Any], message: str
) -> None:
    assert any(message in found for found in problems(serving_winner(service)))


def test_sweep_controller_requires_an_image() -> None:
    configuration = values()
    del configuration["images"]["workloads"]["sweeps"]
    (found,) = problems(configuration)
    assert "training.sweep_controller.image is 'sweeps', which is not declared" in found


def test_claim_of_a_sweep_must_allow_its_controller_to_mount_it() -> None:
    configuration = values(job={"nodes": 1})
    configuration["storage"]["claims"]["checkpoints"]["access_modes"] = ["ReadWriteOnce"]
    (found,) = problems(configuration)
    assert "training.sweeps.digits.job.checkpoints" in found
    assert "ReadWriteMany" in found


@pytest.mark.parametrize(
    ("changes", "rungs"),
    [
        ({"early_stopping": {"minimum": 2, "factor": 2}}, [2, 4, 8]),
        ({"early_stopping": {"minimum": 2, "factor": 2, "maximum": 4}}, [2, 4]),
        ({"early_stopping": {"minimum": 3, "factor": 3, "maximum": 99}}, [3]),
        (STEPS | {"early_stopping": {"minimum": 100}}, [100, 300]),
    ],
)
def test_rungs_grow_by_the_factor_and_end_before_the_job(
    changes: dict[str, Any], rungs: list[int]
) -> None:
    (sweep,) = stack_settings(**changes).training.sweeps.values()
    assert sweep.rungs == rungs


def test_expected_share_is_smallest_without_a_maximum() -> None:
    """One third of the trials train for three of nine epochs, and one ninth for all."""
    (sweep,) = stack_settings(early_stopping={"minimum": 1, "factor": 3}).training.sweeps.values()
    assert sweep.expected_share == pytest.approx((1 + 2 / 3 + 6 / 9) / 9)
    bounded = {"minimum": 1, "factor": 3, "maximum": 1}
    (sweep,) = stack_settings(early_stopping=bounded).training.sweeps.values()
    assert sweep.expected_share == pytest.approx((1 + 8 / 3) / 9)


def test_trial_equals_a_job_with_explicit_hyperparameters() -> None:
    (sweep,) = stack_settings().training.sweeps.values()
    trial = sweep.trial({"learning_rate": 0.01})
    assert trial.hyperparameters is not None
    assert trial.hyperparameters.learning_rate == 0.01
    assert trial.model_fields_set == sweep.job.model_fields_set
