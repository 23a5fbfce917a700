"""The program computes the same results in every mode as a plain loop in one process."""

import contextlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

from tests.training import reference
from tests.training.custom_models import Block, Deep, Overflowing
from tests.training.forked_gang import run_gang
from training.config import TrainingConfig
from training.data import Images
from training.data.builtin import digits
from training.gang.distributed import joined
from training.gang.world import World
from training.preparation import prepare
from training.telemetry.metrics import Metrics
from training.train import train
from workload.run import Watchdog

CPU = torch.device("cpu")
TRAINED, HELD_OUT = 53, 37
"""Numbers of samples, chosen so that the last batches of gangs of two and four are uneven."""

SGD = {"optimizer": "sgd", "learning_rate": 0.2, "weight_decay": 0.05}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.02, "weight_decay": 0.5}
FSDP = {"parallel": "fsdp"}
OVERFLOW = {"precision": "fp16", "model": f"{Overflowing.__module__}:Overflowing"}
EXACT = 2e-6
"""Maximum difference of an fp32 weight: the order of summation causes rounding differences."""

Cases = dict[str, tuple[dict[str, Any], float]]
CASES: Cases = {
    "sgd": (SGD, EXACT),
    "adamw": (ADAMW, 1e-5),
    "sgd fsdp": (SGD | FSDP, EXACT),
    "sgd accumulate": (SGD | {"accumulate": 2}, EXACT),
    "sgd fsdp accumulate": (SGD | FSDP | {"accumulate": 2}, EXACT),
    "sgd clip": (SGD | {"clip_norm": 0.3}, EXACT),
    "sgd fsdp clip": (SGD | FSDP | {"clip_norm": 0.3}, EXACT),
    "sgd activation checkpointing": (SGD | {"activation_checkpointing": True}, EXACT),
    "sgd bf16": (SGD | {"precision": "bf16"}, 2e-3),
    "sgd fsdp bf16": (SGD | FSDP | {"precision": "bf16"}, 4e-3),
    "sgd fp16": (SGD | {"precision": "fp16"}, 3e-4),
    "sgd fp16 clip": (SGD | {"precision": "fp16", "clip_norm": 0.3}, 3e-4),
    "sgd loss": (SGD | {"loss": "tests.training.custom_models:smoothed"}, EXACT),
    "sgd fsdp loss": (SGD | FSDP | {"loss": "tests.training.custom_models:smoothed"}, EXACT),
    "sgd compression": (SGD | {"gradient_compression": "bf16"}, 4e-3),
    "sgd fp16 compression": (SGD | {"gradient_compression": "fp16"}, 5e-4),
    "sgd fsdp activation checkpointing": (SGD | FSDP | {"activation_checkpointing": True}, EXACT),
    "sgd fp16 overflow": (SGD | OVERFLOW, 3e-4),
    "sgd fsdp fp16 overflow": (SGD | FSDP | OVERFLOW, 3e-4),
    "adamw fp16 overflow clip": (ADAMW | OVERFLOW | {"clip_norm": 0.3}, 1e-3),
    "adamw accumulate clip": (ADAMW | {"accumulate": 2, "clip_norm": 0.3}, 1e-5),
    "adamw fsdp accumulate clip": (ADAMW | FSDP | {"accumulate": 2, "clip_norm": 0.3}, 1e-5),
    "sgd matrices": (SGD | {"weight_decay_on": "matrices"}, EXACT),
    "adamw fsdp matrices": (ADAMW | FSDP | {"weight_decay_on": "matrices"}, 1e-5),
    "adamw betas": (ADAMW | {"betas": [0.8, 0.9]}, 1e-5),
}
"""Settings, and the maximum difference of a weight from the reference in the same precision."""


@dataclass
class Result:
    """State of one process after a run."""

    weights: dict[str, Tensor]
    evaluation: tuple[float, float]
    epochs: list[tuple[float, int]]
    random: float
    calls: int
    dtypes: tuple[set[torch.dtype], set[torch.dtype]]
    sharded: list[str]
    """Names of the modules that FSDP shards."""


def part(images: Images, count: int) -> Images:
    return Images(images.pixels[:count], images.labels[:count], images.divisor)


def tensors(images: Images) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(images.scaled()), torch.from_numpy(images.labels)


def train_case(world: World, folder: Path, settings: dict[str, Any]) -> Result:
    """Train with the program in a gang that has already joined."""
    batch = reference.GLOBAL_BATCH // world.size // settings.get("accumulate", 1)
    config = TrainingConfig.model_validate(
        {
            "model": f"{Deep.__module__}:Deep",
            "dataset": "digits",
            "epochs": reference.EPOCHS,
            "checkpoint_every": reference.EPOCHS,
            "batch_size": batch,
            "run_dir": str(folder),
            "device": "cpu",
            **settings,
        }
    )
    with Watchdog(0) as watchdog, Metrics(CPU) as metrics:
        run = prepare(config, world, CPU, watchdog, metrics)
        random = float(torch.rand(1))
        train_part, held_out = (
            part(images, count) for images, count in zip(digits(), (TRAINED, HELD_OUT), strict=True)
        )
        run.data = replace(run.data, train=train_part, held_out=held_out)
        epochs: list[tuple[float, int]] = []
        blocks = [module for module in run.model.model.modules() if isinstance(module, Block)]
        for block in blocks:
            # The program has computed two samples to check the model.
            block.forget()
        assert train(run)
        run.saver.close(watchdog.beat)
        run.vote.result()
        assert run.evaluation is not None
        return Result(
            {name: tensor.clone() for name, tensor in run.model.weights().items()},
            (run.evaluation.loss, run.evaluation.accuracy),
            epochs,
            random,
            blocks[0].calls,
            (blocks[0].weights, blocks[0].results),
            [
                name
                for name, module in run.model.model.named_modules()
                if isinstance(module, FSDPModule)
            ],
        )


def train_cases(folder: Path, cases: Cases, world: World) -> dict[str, Result]:
    """Train all cases in one process group."""
    with joined(world, CPU, 60):
        return {
            name: train_case(world, folder / str(world.size) / name.replace(" ", "-"), settings)
            for name, (settings, _) in cases.items()
        }


@pytest.fixture(scope="module", params=[1, 2])
def gang(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Result]]:
    """The results of gangs of one and of two processes, by rank."""
    return trained(request.param, selected_cases(request), tmp_path_factory.mktemp("gang"))


def selected_cases(request: pytest.FixtureRequest) -> Cases:
    """Return the cases that the selected tests in this file use."""
    tests = (item for item in request.session.items if item.path == request.path)
    parameters = [getattr(item, "callspec", None) for item in tests]
    used = [str(value) for spec in parameters if spec for value in spec.params.values()]
    return {name: case for name, case in CASES.items() if name in used}


def trained(size: int, cases: Cases, folder: Path) -> list[dict[str, Result]]:
    """Return the results of all cases in a gang, by rank."""
    results = run_gang(size, partial(train_cases, folder, cases), folder)
    lines = [json.loads(line) for line in (folder / "rank-0").read_text().splitlines()]
    epochs = [(line["loss"], line["samples"]) for line in lines if line["event"] == "epoch"]
    for number, name in enumerate(cases):
        first = number * reference.EPOCHS
        results[0][name].epochs = epochs[first : first + reference.EPOCHS]
    return list(results)


def expected(settings: dict[str, Any]) -> tuple[Deep, list[float]]:
    """Return the model and the losses of the reference."""
    torch.manual_seed(0)
    overflows = "model" in settings
    model = Overflowing(10, (1, 8, 8)) if overflows else Deep(10, (1, 8, 8))
    data = tensors(part(digits()[0], TRAINED))
    skipped = {Overflowing.STEP} if overflows else ()
    return model, reference.train(model, *data, settings, seed=0, skipped=skipped)


def distance(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert actual.keys() == expected.keys()
    return max(float((actual[name] - expected[name]).abs().max()) for name in actual)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_losses_match_the_reference(case: str, gang: list[dict[str, Result]]) -> None:
    check_training(gang, case, *CASES[case])


def check_training(
    gang: list[dict[str, Result]], case: str, settings: dict[str, Any], tolerance: float
) -> None:
    model, losses = expected(settings)
    for results in gang:
        assert distance(results[case].weights, model.state_dict()) < tolerance
    epochs = gang[0][case].epochs
    assert [loss for loss, _ in epochs] == pytest.approx(losses, abs=max(tolerance, 1e-6) * 5)
    assert [samples for _, samples in epochs] == [TRAINED] * reference.EPOCHS


@pytest.mark.parametrize("case", CASES)
def test_evaluation_matches_all_held_out_samples(case: str, gang: list[dict[str, Result]]) -> None:
    model = Deep(10, (1, 8, 8))
    model.load_state_dict(gang[0][case].weights)
    inputs, labels = tensors(part(digits()[1], HELD_OUT))
    precision = CASES[case][0].get("precision")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with (
        torch.no_grad(),
        torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext(),
    ):
        logits = model(inputs).float()
    smoothing = reference.SMOOTHING if "loss" in CASES[case][0] else 0
    held_out_loss = float(cross_entropy(logits, labels, label_smoothing=smoothing))
    expected_accuracy = float((logits.argmax(1) == labels).float().mean())
    for results in gang:
        loss, accuracy = results[case].evaluation
        assert loss == pytest.approx(held_out_loss, abs=2e-3 if dtype else 1e-6)
        assert accuracy == pytest.approx(expected_accuracy, abs=1 / HELD_OUT if dtype else 1e-6)


@pytest.mark.parametrize(
    ("case", "without"),
    [
        ("sgd clip", {"clip_norm": 0}),
        ("sgd fsdp clip", {"clip_norm": 0}),
        ("sgd", {"weight_decay": 0.0}),
        ("adamw", {"weight_decay": 0.0}),
        ("sgd matrices", {"weight_decay_on": "all"}),
        ("adamw fsdp matrices", {"weight_decay_on": "all"}),
        ("adamw betas", {"betas": [0.9, 0.999]}),
        ("adamw accumulate clip", {"clip_norm": 0}),
    ],
)
def test_weights_match_only_a_reference_with_the_same_setting(
    case: str, without: dict[str, Any], gang: list[dict[str, Result]]
) -> None:
    """Compare with a reference that has the setting, and with one that lacks it."""
    settings, _ = CASES[case]
    weights = gang[0][case].weights
    near = distance(weights, expected(settings)[0].state_dict())
    far = distance(weights, expected(settings | without)[0].state_dict())
    assert near < 0.7 * far


@pytest.mark.parametrize(
    ("case", "plain"), [("sgd compression", "sgd"), ("sgd fp16 compression", "sgd")]
)
def test_compressed_gradients_differ_from_uncompressed_ones(
    case: str, plain: str, gang: list[dict[str, Result]]
) -> None:
    assert distance(gang[0][case].weights, gang[0][plain].weights) > 1e-5


@pytest.mark.parametrize(
    ("case", "plain", "dtype"),
    [("sgd bf16", "sgd", torch.bfloat16), ("sgd fp16", "sgd", torch.float16)],
)
def test_blocks_compute_in_the_configured_precision(
    case: str, plain: str, dtype: torch.dtype, gang: list[dict[str, Result]]
) -> None:
    assert dtype in gang[0][case].dtypes[1]
    assert gang[0][plain].dtypes == ({torch.float32}, {torch.float32})


@pytest.mark.parametrize(("case", "unsharded"), [("sgd fsdp bf16", "sgd bf16")])
def test_fsdp_gathers_weights_in_the_configured_precision(
    case: str, unsharded: str, gang: list[dict[str, Result]]
) -> None:
    assert torch.bfloat16 in gang[0][case].dtypes[0]
    assert gang[0][unsharded].dtypes[0] == {torch.float32}


@pytest.mark.parametrize(("case", "unsharded"), [("sgd fsdp", "sgd")])
def test_fsdp_shards_each_block(case: str, unsharded: str, gang: list[dict[str, Result]]) -> None:
    assert gang[0][case].sharded == ["", "blocks.0", "blocks.1"]
    assert gang[0][unsharded].sharded == []


@pytest.mark.parametrize(
    ("case", "plain"),
    [
        ("sgd activation checkpointing", "sgd"),
        ("sgd fsdp activation checkpointing", "sgd fsdp"),
    ],
)
def test_checkpointed_activations_are_computed_twice(
    case: str, plain: str, gang: list[dict[str, Result]]
) -> None:
    steps = reference.EPOCHS * -(-TRAINED // reference.GLOBAL_BATCH)
    assert gang[0][case].calls - gang[0][plain].calls >= steps


@pytest.mark.parametrize("case", ["sgd"])
def test_ranks_have_different_random_numbers(case: str, gang: list[dict[str, Result]]) -> None:
    assert len({results[case].random for results in gang}) == len(gang)
