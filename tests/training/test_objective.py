"""Custom losses and metrics."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.training import custom_models
from training.config import TrainingConfig
from training.data import load
from training.export.artifacts import spread_samples
from workload.configuration import ConfigurationError
from workload.export import load_network
from workload.manifest import read_manifest

Train = Callable[..., int]
MODULE = "tests.training.custom_models"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"loss": f"{MODULE}:mean"},
            r"loss returned \[\] for 2 samples: .* a tensor of shape \[2\]",
        ),
        ({"loss": f"{MODULE}:constant"}, "without a gradient: compute them from the logits"),
        ({"loss": f"{MODULE}:absent"}, f"loss {MODULE}:absent: {MODULE} has no function"),
        ({"loss": "nowhere:loss"}, "loss nowhere:loss is not importable"),
        (
            {"metrics": [f"{MODULE}:text"]},
            "text returned str for 2 samples: it must return one",
        ),
        (
            {"metrics": [f"{MODULE}:elsewhere"]},
            r"elsewhere returned a tensor on meta, but the logits are on cpu: .*\.to\(logits\.dev",
        ),
        (
            {"metrics": [f"{MODULE}:in_place"]},
            r"metric in_place changes the logits in place, .*: use logits\.clone\(\)",
        ),
        ({"loss": f"{MODULE}:relabeled"}, "loss changes the targets in place"),
        ({"loss": f"{MODULE}:prod"}, "loss failed for logits of .*TypeError"),
    ],
)
def test_errors_in_a_custom_loss_or_metric_are_reported_before_the_first_step(
    settings: dict[str, object], message: str, train: Train
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "mse"}, "use cross-entropy, or a custom function as package.module:function"),
        ({"metrics": ["accuracy"]}, "use package.module:function"),
        (
            {"metrics": ["mine:accuracy"]},
            "another value is already named accuracy: rename",
        ),
        (
            {"metrics": ["a:top", "b:top"]},
            "another value is already named top: rename",
        ),
    ],
)
def test_invalid_names_of_losses_and_metrics_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(settings)


def test_metrics_are_separated_by_commas_in_a_flag() -> None:
    config = TrainingConfig.model_validate({"metrics": "a:one,b:two"})
    assert config.metrics == ("a:one", "b:two")
    assert config.to_args() == ["--metrics=a:one,b:two"]


def test_result_settings_include_a_custom_loss_but_not_metrics() -> None:
    config = TrainingConfig.model_validate({"loss": "a:b", "metrics": ["c:d"]})
    assert config.result_settings()["loss"] == "a:b"
    assert "metrics" not in config.result_settings()
    assert "loss" not in TrainingConfig().result_settings()


def test_custom_metrics_are_means_over_the_held_out_samples(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["confidence", "in_first_three"]
    train(loss=f"{MODULE}:smoothed", metrics=[f"{MODULE}:{name}" for name in names])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last = [line for line in lines if line["event"] == "epoch"][-1]
    export = tmp_path / "run/export"
    manifest = read_manifest(export)
    network = load_network(export, manifest)
    held_out = load("digits", Path("/"), (1, 8, 8), 0).held_out
    inputs, targets = spread_samples(held_out, len(held_out))
    logits = network(inputs).detach()
    for name in names:
        expected = float(getattr(custom_models, name)(logits, targets).double().mean())
        assert last["metrics"][name] == pytest.approx(expected, abs=1e-6)
        assert manifest.metrics[name] == pytest.approx(expected, abs=1e-6)
    smoothed = float(custom_models.smoothed(logits, targets).mean())
    assert manifest.metrics["loss"] == pytest.approx(smoothed, rel=1e-5)
