"""Custom data sets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.training.custom_data import SIZES, Squares
from tests.training.programs import start_gang
from training.config import TrainingConfig
from training.data import DataError, load
from training.data.samples import Dataset
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.manifest import read_manifest

Train = Callable[..., int]
MODULE = "tests.training.custom_data"


def loaded(name: str) -> Dataset:
    return load(f"{MODULE}:{name}", Path("/data"), None, 0)


@pytest.mark.parametrize(("name", "divisor"), [("Squares", 1), ("Bytes", 255), ("Array", 1)])
def test_samples_are_read_from_the_custom_data_set(name: str, divisor: int) -> None:
    data = loaded(name)
    assert (data.shape, data.outputs, data.classes) == ((1, 8, 8), 2, ("left", "right"))
    assert (len(data.train), len(data.held_out)) == (SIZES[True], SIZES[False])
    inputs, targets = data.held_out.batch(np.array([3, 0]))
    expected = torch.stack([Squares(Path("/"), train=False)[index][0] for index in (3, 0)])
    assert data.held_out.divisor == divisor
    assert np.abs(inputs / divisor - expected.numpy()).max() < 1 / 200
    assert targets.tolist() == [1, 0]


def test_order_contains_every_sample_once() -> None:
    order = loaded("Squares").train.order(np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(SIZES[True]))


def test_identity_depends_on_the_targets_or_the_custom_digest() -> None:
    assert loaded("Squares").identity == loaded("Bytes").identity
    assert loaded("Squares").identity != loaded("Digested").identity
    assert loaded("Digested").identity == loaded("Digested").identity


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Nameless", ConfigurationError, "has no valid `classes` attribute: set it to the list of"),
        ("Numbered", ConfigurationError, r"Numbered has no valid `classes` attribute: set it to"),
        ("Counted", ConfigurationError, r"Counted has no valid `classes` attribute: set it to"),
        ("refuses", ConfigurationError, "failed with data_dir=/data and train=True: TypeError"),
        ("Absent", ConfigurationError, f"{MODULE} has no function or class named Absent"),
        ("Empty", DataError, "has no samples with data_dir=/data and train=True"),
        ("Doubles", DataError, "inputs of .* are float64: return uint8 or float32"),
        (
            "HeldOutBytes",
            DataError,
            "sample 0 of .*, train=False is uint8 .*, but the first is float32",
        ),
        ("Fractions", DataError, r"sample 0 of .* cannot be read: ValueError: its class is \d.75"),
        ("Unreadable", DataError, "sample 0 of .* cannot be read: OSError: disk failed"),
    ],
)
def test_errors_in_a_custom_data_set_are_reported_when_it_is_loaded(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loaded(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Ragged", r"sample 1 of .* is float32 \[1, 7, 8\], but the first is float32 \["),
        ("FromOne", "has class 2, but there are 2 classes, counted from 0"),
    ],
)
def test_error_describes_the_invalid_sample(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loaded(name).train.batch(np.arange(2))


def test_byte_images_are_enlarged_and_other_inputs_must_fit_the_model() -> None:
    assert load(f"{MODULE}:Bytes", Path("/data"), (3, 16, 16), 0).shape == (3, 16, 16)
    with pytest.raises(DataError, match=r"inputs of .* are 1x8x8, but the model takes 3x16x16"):
        load(f"{MODULE}:Squares", Path("/data"), (3, 16, 16), 0)
    with pytest.raises(DataError, match=r"inputs of .*Flat are 8x8, but the model takes 1x16x16"):
        load(f"{MODULE}:Flat", Path("/data"), (1, 16, 16), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "imagenet"}, "or a custom data set as package.module:factory"),
        ({"dataset": "mine:Data", "model": "gpt"}, "set dataset to text or tokens"),
    ],
)
def test_invalid_data_set_names_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(settings)


def test_model_learns_from_a_custom_data_set(train: Train, tmp_path: Path) -> None:
    train(dataset=f"{MODULE}:Squares", epochs=6, batch_size=8, learning_rate=0.02)
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.classes == ("left", "right")
    assert manifest.metrics["accuracy"] > 0.9


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "export/model.safetensors")


@pytest.mark.parametrize("name", ["Squares", "Digested"])
def test_resumed_gang_has_the_same_weights_as_an_uninterrupted_one(
    name: str, tmp_path: Path
) -> None:
    """Include data sets with random transformations, whose generators are saved in checkpoints."""

    def start(run: str, *options: str) -> None:
        flags = [f"--dataset={MODULE}:{name}", "--model=digits-net", "--device=cpu"]
        flags += ["--schedule=constant", "--warm-up=0", f"--run-dir={tmp_path / run}", *options]
        gang = start_gang(flags, 2, tmp_path / f"{run}-{len(options)}-{options[-1][-1]}")
        assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2

    start("whole", "--epochs=2")
    start("parts", "--epochs=1")
    (tmp_path / "parts/export/manifest.json").unlink()
    start("parts", "--epochs=2")
    uninterrupted, resumed = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(uninterrupted[key], resumed[key]) for key in uninterrupted)
