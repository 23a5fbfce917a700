from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from tests.training.custom_models import Deep
from tests.training.programs import start_gang
from tests.training.test_custom_models import held_out_metrics
from training.config import TrainingConfig
from training.optimizer import learning_rate, optimizer, state_bytes
from training.parallel import Parallel
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.export import load_network
from workload.manifest import read_manifest
from workload.models import build

Train = Callable[..., int]
DECAY = 0.9


def rates(**settings: object) -> list[float]:
    config = TrainingConfig.model_validate({"learning_rate": 0.5, **settings})
    return [learning_rate(config, step / 1000) for step in range(1001)]


@pytest.mark.parametrize("schedule", ["one-cycle", "linear"])
def test_the_learning_rate_warms_up_and_decays_to_nearly_zero(schedule: str) -> None:
    learning_rates = rates(schedule=schedule)
    peak = learning_rates.index(max(learning_rates))
    assert max(learning_rates) == pytest.approx(0.5)
    assert peak == 200
    assert learning_rates[: peak + 1] == sorted(learning_rates[: peak + 1])
    assert learning_rates[peak:] == sorted(learning_rates[peak:], reverse=True)
    assert 0 < learning_rates[-1] < 0.005


def test_constant_schedule_is_constant_after_the_warm_up() -> None:
    learning_rates = rates(schedule="constant", warm_up=0.1)
    assert learning_rates[0] == pytest.approx(0.05)
    assert set(learning_rates[100:]) == {0.5}


def test_learning_rate_starts_at_its_peak_without_warm_up() -> None:
    assert rates(warm_up=0)[0] == 0.5


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_estimated_size_of_a_checkpoint_equals_the_size_of_its_tensors(
    name: str, average: float
) -> None:
    network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    network[2].requires_grad_(False)
    trained = [each for each in network.parameters() if each.requires_grad]
    optimizer = (
        torch.optim.AdamW(trained) if name == "adamw" else torch.optim.SGD(trained, momentum=0.9)
    )
    network(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    slots = [each for state in optimizer.state.values() for each in state.values()]
    stored = [*network.parameters(), *network.buffers(), *(each for each in slots if each.dim())]
    averages = trained if average else []
    config = TrainingConfig.model_validate({"optimizer": name, "ema_decay": average})
    assert state_bytes(network, config) == sum(each.nbytes for each in (*stored, *averages))


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


def test_adamw_is_fused_unless_weights_are_complex() -> None:
    def fused(dtype: torch.dtype) -> bool:
        model = cast(Parallel, SimpleNamespace(model=nn.Linear(2, 2, dtype=dtype)))
        return bool(optimizer(TrainingConfig(), model).defaults["fused"])

    assert fused(torch.float32)
    assert not fused(torch.complex64)


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


@pytest.mark.parametrize(("applied_to", "decays"), [("all", [0.5]), ("matrices", [0.5, 0.0])])
def test_weight_decay_applies_to_scalars_unless_limited_to_matrices(
    applied_to: str, decays: list[float]
) -> None:
    network = nn.Module()
    network.scale = nn.Parameter(torch.tensor(1.0))
    network.weight = nn.Parameter(torch.ones(2, 2))
    config = TrainingConfig.model_validate({"weight_decay": 0.5, "weight_decay_on": applied_to})
    built = optimizer(config, cast(Parallel, SimpleNamespace(model=network)))
    assert [group["weight_decay"] for group in built.param_groups] == decays
