"""Runs that diverge. Weights that are infinite or NaN are never saved."""

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.training.custom_models import BadInEvaluation
from tests.training.forked_gang import run_gang
from tests.training.programs import events
from training import evaluation
from training.checkpoints import storage
from training.config import TrainingConfig
from training.gang.world import World
from training.run import DivergedError, Run
from training.train import run
from workload import exit_codes, files

Train = Callable[..., int]
SETTINGS = {"model": "simple-cnn", "optimizer": "sgd", "batch_size": 32}
DIVERGING = {"learning_rate": 10, "weight_decay": 1, "warm_up": 0.3, "checkpoint_steps": 2}
STOPPED = f"{BadInEvaluation.__module__}:StoppedInEvaluation"


def is_finite(path: Path) -> bool:
    tensors = [tensor for file in path.glob("*.safetensors") for tensor in load_file(file).values()]
    return all(bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point())


def test_diverged_weights_do_not_replace_a_good_checkpoint(train: Train, tmp_path: Path) -> None:
    train(epochs=1, **SETTINGS)
    (tmp_path / "run/export/manifest.json").unlink()
    with pytest.raises(DivergedError, match="lower learning_rate"):
        train(epochs=3, **SETTINGS, **DIVERGING)
    paths = files.list_checkpoints(tmp_path / "run/checkpoints")
    assert paths
    assert all(map(is_finite, paths))
    # The best checkpoint is kept, so that the user can restore it.
    assert storage.read_seal(paths[0]).held_out_loss is not None
    for path in paths[1:]:
        shutil.rmtree(path)
    assert train(epochs=2, **SETTINGS) == exit_codes.DONE


def test_nan_gradient_is_detected_before_the_weights_are_saved(
    train: Train, tmp_path: Path
) -> None:
    """Make a gradient NaN in the fourth step, in which the loss is still finite."""
    model = f"{BadInEvaluation.__module__}:BadGradient"
    with pytest.raises(DivergedError, match="a gradient became infinite or NaN"):
        train(model=model, model_options={"step": 4}, checkpoint_steps=1, keep_checkpoints=9)
    saved = files.list_checkpoints(tmp_path / "run/checkpoints")
    assert [path.name for path in saved] == ["step-00000001", "step-00000002", "step-00000003"]
    assert all(map(is_finite, saved))


def test_nan_gradients_in_all_steps_are_detected_with_fp16(train: Train, tmp_path: Path) -> None:
    """Skipping a step with a NaN gradient and reducing the loss scale does not help here."""
    loss = f"{BadInEvaluation.__module__}:undefined_gradient"
    with pytest.raises(DivergedError, match="a gradient became infinite or NaN"):
        train(loss=loss, precision="fp16", batch_size=16, epochs=1)
    assert not files.list_checkpoints(tmp_path / "run/checkpoints")


@pytest.mark.parametrize("checkpoint_async", [False, True])
def test_infinite_weights_are_not_saved(
    train: Train, tmp_path: Path, checkpoint_async: bool
) -> None:
    """Make a weight infinite in the only step, whose loss and gradients are finite."""
    model = f"{BadInEvaluation.__module__}:BadWeight"
    with pytest.raises(
        DivergedError, match="a weight became infinite or NaN in epoch 1, at or before step 1"
    ):
        train(model=model, batch_size=1437, checkpoint_async=checkpoint_async)
    assert not any((tmp_path / "run/checkpoints").glob("step-*"))
    assert not (tmp_path / "run/export").exists()


def test_run_that_diverges_and_is_interrupted_keeps_its_newest_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the run after a step with NaN, while the previous checkpoint is being written."""
    seal = storage.seal_checkpoint

    def save_slowly(*arguments: Any) -> Path:
        time.sleep(1)
        return seal(*arguments)

    monkeypatch.setattr(storage, "seal_checkpoint", save_slowly)
    monkeypatch.setattr(Run, "should_stop", lambda run: run.position.step == 4)
    model = f"{BadInEvaluation.__module__}:BadGradient"
    with pytest.raises(DivergedError):
        train(model=model, model_options={"step": 4}, checkpoint_steps=3)
    [path] = files.list_checkpoints(tmp_path / "run/checkpoints")
    assert path.name == "step-00000003"


def test_nan_held_out_loss_ends_the_run(train: Train, tmp_path: Path) -> None:
    model = f"{BadInEvaluation.__module__}:BadInEvaluation"
    for _ in range(2):
        with pytest.raises(DivergedError, match="the held-out loss became nan in epoch 1"):
            train(model=model)
    assert not (tmp_path / "run/export").exists()


def test_sigterm_during_an_evaluation_keeps_the_trained_epoch(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupt the evaluation after the first of two epochs, between two of its batches."""
    monkeypatch.setattr(evaluation, "MAX_BATCH_SAMPLES", 64)
    settings = {"model": STOPPED, "checkpoint_every": 2, "epochs": 2}
    (tmp_path / "never").touch()
    options = {"flag": str(tmp_path / "never")}
    train("whole", model_options=options, **settings)
    capsys.readouterr()
    options = {"flag": str(tmp_path / "stopped")}
    assert train("parts", model_options=options, **settings) == exit_codes.INTERRUPTED
    [path] = files.list_checkpoints(tmp_path / "parts/checkpoints")
    seal = storage.read_seal(path)
    assert isinstance(seal, storage.Seal)
    assert (seal.position.epoch, seal.position.seen, seal.held_out_loss) == (0, 1437, None)
    assert train("parts", model_options=options, **settings) == exit_codes.DONE
    *_, resumed, first_epoch, second_epoch, _ = events(capsys)
    assert (resumed["step"], first_epoch["epoch"], second_epoch["epoch"]) == (23, 1, 2)
    uninterrupted, interrupted = (
        load_file(tmp_path / name / "export/model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(uninterrupted[name], interrupted[name]) for name in uninterrupted)


def test_an_epoch_is_saved_before_its_evaluation(train: Train, tmp_path: Path) -> None:
    model = f"{BadInEvaluation.__module__}:BadInEvaluation"
    with pytest.raises(DivergedError):
        train(model=model, epochs=1)
    assert len(files.list_checkpoints(tmp_path / "run/checkpoints")) == 1


def test_nan_metric_ends_the_run_and_keeps_the_trained_epoch(train: Train, tmp_path: Path) -> None:
    metric = f"{BadInEvaluation.__module__}:undefined_in_evaluation"
    for _ in range(2):
        with pytest.raises(DivergedError, match="metric undefined_in_evaluation became"):
            train(metrics=[metric])
    assert not (tmp_path / "run/export").exists()
    assert len(files.list_checkpoints(tmp_path / "run/checkpoints")) == 1
    assert train() == exit_codes.DONE


def run_and_return_error(config: TrainingConfig, world: World) -> str:
    try:
        return str(run(config, world))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_all_ranks_end_if_the_loss_on_rank_0_is_infinite(
    tmp_path: Path,
) -> None:
    """Diverge early in an epoch, long before the regular check on all ranks."""
    config = TrainingConfig.model_validate(
        {
            "model": f"{BadInEvaluation.__module__}:Frozen",
            "loss": f"{BadInEvaluation.__module__}:bad_on_rank_0",
            "batch_size": 4,
            "log_every": 1,
            "device": "cpu",
            "run_dir": str(tmp_path / "run"),
        }
    )
    errors = run_gang(2, partial(run_and_return_error, config), tmp_path)
    expected = "DivergedError: the loss became inf in epoch 1, at or before step 2"
    assert [error[: len(expected)] for error in errors] == [expected] * 2
    assert not any((tmp_path / "run/checkpoints").glob("step-*"))
    lines = (tmp_path / "rank-0").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start"]
