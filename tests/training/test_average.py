"""The moving average of the weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.training.custom_models import Deep
from tests.training.programs import start_gang
from tests.training.test_custom_models import held_out_metrics
from training.config import TrainingConfig
from training.optimizer import optimizer
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.export import load_network
from workload.manifest import read_manifest
from workload.models import build

Train = Callable[..., int]
DECAY = 0.9


def exported_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


def saved_weights(run_dir: Path) -> list[dict[str, torch.Tensor]]:
    """Return the weights of all checkpoints, oldest first."""
    saved = []
    for folder in sorted((run_dir / "checkpoints").glob("step-*")):
        tensors: dict[str, torch.Tensor] = {}
        for file in folder.glob("*.safetensors"):
            tensors |= load_file(file)
        prefix = "model/"
        saved.append(
            {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        )
    return saved


def test_export_contains_the_average_of_the_weights_after_each_step(
    train: Train, tmp_path: Path
) -> None:
    settings = {"batch_size": 256, "epochs": 2, "checkpoint_steps": 1, "keep_checkpoints": 100}
    train("plain", **settings, checkpoint_async=False)
    train("averaged", **settings, checkpoint_async=False, ema_decay=DECAY)
    steps = saved_weights(tmp_path / "averaged")
    for with_average, without_average in zip(steps, saved_weights(tmp_path / "plain"), strict=True):
        assert all(
            torch.equal(with_average[name], without_average[name]) for name in without_average
        )
    exported = exported_weights(tmp_path / "averaged")
    expected = initial_weights()
    for number, weights in enumerate(steps, start=1):
        decay = min(DECAY, (1 + number) / (10 + number))
        expected = {name: decay * expected[name] + (1 - decay) * weights[name] for name in weights}
    assert all(torch.allclose(exported[name], expected[name], atol=1e-6) for name in expected)
    assert (
        not torch.equal(exported["0.weight"], steps[-1]["0.weight"])
        if "0.weight" in exported
        else True
    )


def initial_weights() -> dict[str, torch.Tensor]:
    """Return the weights before the first step."""
    torch.manual_seed(0)
    model = build("digits-net", {}, 10, (1, 8, 8))
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_metrics_are_computed_with_the_averaged_weights(train: Train, tmp_path: Path) -> None:
    train(ema_decay=DECAY, epochs=2)
    folder = tmp_path / "run/export"
    manifest = read_manifest(folder)
    metrics = held_out_metrics(load_network(folder, manifest))
    assert manifest.metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    (folder / "manifest.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has the tensor average/.*ema_decay"):
        train(epochs=2)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_resumed_gang_exports_the_same_average_as_an_uninterrupted_one(
    parallel: str, tmp_path: Path
) -> None:
    def start(run: str, epochs: int) -> None:
        flags = ["--dataset=digits", f"--model={Deep.__module__}:Deep", f"--epochs={epochs}"]
        flags += ["--batch-size=256", "--device=cpu"]
        flags += ["--schedule=constant", "--warm-up=0", f"--ema-decay={DECAY}"]
        flags += [f"--parallel={parallel}", f"--run-dir={tmp_path / run}"]
        gang = start_gang(flags, 2, tmp_path / f"{run}-{epochs}")
        assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2

    start("whole", 2)
    start("parts", 1)
    (tmp_path / "parts/export/manifest.json").unlink()
    start("parts", 2)
    uninterrupted, resumed = (
        exported_weights(tmp_path / "whole"),
        exported_weights(tmp_path / "parts"),
    )
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)


def test_betas_are_passed_to_the_optimizer() -> None:
    config = TrainingConfig.model_validate({"betas": "0.8,0.95"})
    assert config.to_args() == ["--betas=0.8,0.95"]
    assert config.result_settings()["betas"] == "0.8,0.95"

    class Wrapped:
        model = torch.nn.Linear(2, 2)

    adamw = optimizer(config, Wrapped())  # `optimizer` reads only the attribute `model`
    assert adamw.defaults["betas"] == (0.8, 0.95)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"betas": [0.9, 1.0]}, "less than 1"),
        ({"betas": [0.9]}, "betas"),
        ({"betas": [0.9, 0.95], "optimizer": "sgd"}, "but only adamw uses it: leave it out"),
        ({"ema_decay": 1}, "less than 1"),
    ],
)
def test_invalid_betas_and_decay_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(settings)
