import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import training.train
from tests.training import custom_models
from tests.training.custom_models import Dropping
from tests.training.programs import all_events, digest, events
from training.checkpoints import storage
from training.config import TrainingConfig
from training.data import DataError
from training.export import artifacts
from training.run import DivergedError, Run
from training.telemetry.progress import ProgressOutputs
from workload import exit_codes, files
from workload.catalog import checked_options
from workload.configuration import ConfigurationError
from workload.exit_codes import FatalError
from workload.manifest import UnavailableExportError, checked_file, read_manifest
from workload.progress import PROGRESS_FILE

Train = Callable[..., int]
DEV = {"epochs": 15, "batch_size": 64, "learning_rate": 0.01}
"""Settings of the dev stack, whose two processes share the batch."""

DROPPING = f"{Dropping.__module__}:Dropping"
NORMALIZED = f"{Dropping.__module__}:Normalized"


def text_settings(folder: Path, repetitions: int = 600) -> dict[str, Any]:
    """Write text files and return the settings of a small model that is trained on them."""
    (folder / "text").mkdir()
    text = "one two three four five six seven " * repetitions
    (folder / "text/counting.txt").write_text(text)
    options = {"context": 32, "layers": 1, "heads": 1, "width": 8}
    return {"model": "gpt", "model_options": options, "dataset": "text", "data_dir": str(folder)}


def test_digits_are_learned_and_the_export_states_the_accuracy(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(**DEV) == exit_codes.DONE
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.metrics["accuracy"] >= 0.97
    assert manifest.input_shape == (1, 8, 8)
    assert manifest.metrics["seconds"] > 0
    assert manifest.settings["epochs"] == 15
    assert checked_file(tmp_path / "run/export", manifest.weights).is_file()
    first, *between, last = all_events(capsys)
    assert first["event"] == "start"
    epochs = [event for event in between if event["event"] == "epoch"]
    assert [event["epoch"] for event in epochs] == list(range(1, 16))
    assert epochs[-1]["accuracy"] == round(manifest.metrics["accuracy"], 6)
    assert (last["event"], last["sha256"]) == ("finished", manifest.weights.sha256)
    # The best checkpoint is kept in addition to the newest three if it is older.
    kept_steps = {int(path.name[-8:]) for path in (tmp_path / "run/checkpoints").iterdir()}
    assert len(kept_steps) in (3, 4)
    saved = [event["step"] for event in between if event["event"] == "checkpoint"]
    assert len(saved) == 15
    assert kept_steps <= set(saved)


def test_larger_model_learns_digits(train: Train, tmp_path: Path) -> None:
    train(model="mnist-net", epochs=1, batch_size=32, learning_rate=0.003)
    assert read_manifest(tmp_path / "run/export").metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("model", "dataset", "steps", "accuracy"),
    [("mnist-net", "glyphs", 50, 0.1), ("simple-cnn", "synthetic", 40, 0.9)],
)
def test_models_learn_images_of_their_input_shape(
    model: str, dataset: str, steps: int, accuracy: float, train: Train, tmp_path: Path
) -> None:
    length = {"epochs": None, "train_steps": steps}
    train(model=model, dataset=dataset, batch_size=32, learning_rate=0.003, **length)
    assert read_manifest(tmp_path / "run/export").metrics["accuracy"] > accuracy


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_gpt_learns_to_predict_the_next_token(
    parallel: str, train: Train, tmp_path: Path
) -> None:
    settings = text_settings(tmp_path, 300) | {"batch_size": 8, "learning_rate": 0.05}
    settings["model_options"] = {"context": 32, "layers": 2, "heads": 2, "width": 32}
    train(parallel=parallel, activation_checkpointing=True, **settings)
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.metrics["accuracy"] > 0.6
    assert manifest.outputs == 256


def test_a_run_interrupted_within_an_epoch_resumes_with_equal_losses(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Losses with dropout are equal only if the random number generator is restored.
    settings = {"model": DROPPING, "epochs": 2, "batch_size": 128}
    train("whole", **settings)
    handler, check = signal.getsignal(signal.SIGTERM), Run.check_step

    def send_sigterm(run: Run, *arguments: Any) -> None:
        check(run, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        monkeypatch.setattr(Run, "check_step", send_sigterm)
        assert train("parts", **settings) == exit_codes.INTERRUPTED
        monkeypatch.setattr(Run, "check_step", check)
        assert not (tmp_path / "parts/export").exists()
        assert train("parts", **settings) == exit_codes.DONE
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    reported = events(capsys)
    [resumed] = [event for event in reported if event["event"] == "resume"]
    assert isinstance(resumed["step"], int)
    assert 0 < resumed["step"] < 24
    losses = [event["loss"] for event in reported if event["event"] == "epoch"]
    assert losses[2:] == losses[:2]
    # Sweeps compare epochs of runs that were paused and resumed.
    for name in ("whole", "parts"):
        lines = (tmp_path / name / PROGRESS_FILE).read_text().splitlines()
        assert [json.loads(line)["loss"] for line in lines] == losses[:2]


def test_an_interrupted_epoch_counts_its_samples_exactly(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 2**24 + 1
    with monkeypatch.context() as patch:
        patch.setattr(Run, "should_stop", lambda run: setattr(run, "samples", many) or True)
        assert train(epochs=1, batch_size=437) == exit_codes.INTERRUPTED
    assert train(epochs=1, batch_size=437) == exit_codes.DONE
    [epoch] = [event for event in events(capsys) if event["event"] == "epoch"]
    assert epoch["samples"] == many + 1000


def test_batch_norm_can_be_trained_if_one_sample_remains_for_the_last_batch(train: Train) -> None:
    # 1,437 samples leave a last batch of one sample.
    assert train(model=NORMALIZED, epochs=1, batch_size=718) == exit_codes.DONE


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_batch_may_be_larger_than_the_data_set(train: Train) -> None:
    settings = {"batch_size": 10**9, "loader_workers": 1}
    assert train(epochs=1, **settings) == exit_codes.DONE
    # Resume the run.
    assert train(epochs=2, **settings) == exit_codes.DONE


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loader_workers_do_not_change_the_weights(train: Train, tmp_path: Path) -> None:
    settings = {"model": DROPPING, "epochs": 2, "batch_size": 128}
    train("alone", **settings)
    train("ahead", loader_workers=2, **settings)
    assert digest(tmp_path / "ahead") == digest(tmp_path / "alone")


def test_a_run_resumes_from_the_last_intact_checkpoint(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("run", epochs=4)
    expected = digest(tmp_path / "run")
    newest = sorted((tmp_path / "run/checkpoints").iterdir())[-1]
    [tensors] = newest.glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-100])
    (tmp_path / "run/export/manifest.json").unlink()
    capsys.readouterr()
    assert train("run", epochs=4) == exit_codes.DONE
    warning, resumed, *epochs, _ = events(capsys)
    assert str(newest) in str(warning["message"])
    assert resumed["done_epochs"] == 3
    assert [event["epoch"] for event in epochs] == [4]
    assert digest(tmp_path / "run") == expected


def test_an_epoch_is_evaluated_before_the_checkpoint_of_its_last_step(
    train: Train, tmp_path: Path
) -> None:
    # An epoch of 1,437 samples has 23 steps of 64.
    train(epochs=3, batch_size=64, checkpoint_every=3, checkpoint_steps=23)
    folder = tmp_path / "run/checkpoints"
    seals = [storage.read_seal(path) for path in files.list_checkpoints(folder)]
    saved = [
        (seal.position.step, seal.position.epoch, seal.position.seen, seal.held_out_loss is None)
        for seal in seals
        if isinstance(seal, storage.Seal)
    ]
    assert saved == [(23, 1, 0, False), (46, 2, 0, False), (69, 3, 0, False)]


def test_restarted_finished_run_reports_that_it_is_finished_and_exits(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    modified = (tmp_path / "run/export/manifest.json").stat().st_mtime_ns
    first = events(capsys)[-1]
    assert train() == exit_codes.DONE
    assert events(capsys) == [first | {"already": True}]
    assert (tmp_path / "run/export/manifest.json").stat().st_mtime_ns == modified


def test_finished_run_does_not_wait_for_free_space(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(epochs=1)
    waited = Mock()
    monkeypatch.setattr(training.train, "await_free_space", waited)
    assert train(epochs=1) == exit_codes.DONE
    waited.assert_not_called()
    train(epochs=2)
    waited.assert_called_once()


def test_finished_run_continues_if_more_epochs_are_configured(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare with an uninterrupted run. A constant rate makes the first epochs equal."""
    constant = {"schedule": "constant", "warm_up": 0}
    train("extended", **constant)
    train("whole", epochs=4, **constant)
    capsys.readouterr()
    assert train("extended", epochs=4, **constant) == exit_codes.DONE
    reported = events(capsys)
    assert [line["event"] for line in reported] == ["resume", "epoch", "epoch", "finished"]
    assert (reported[0]["done_epochs"], reported[0]["epochs"], reported[1]["epoch"]) == (2, 4, 3)
    extended, reference = (tmp_path / name / "export" for name in ("extended", "whole"))
    assert read_manifest(extended).settings["epochs"] == 4
    assert (extended / "model.safetensors").read_bytes() == (
        reference / "model.safetensors"
    ).read_bytes()
    assert train("extended", epochs=4, **constant) == exit_codes.DONE
    assert events(capsys)[-1]["already"] is True


def test_finished_run_without_checkpoints_is_not_trained_again(
    train: Train, tmp_path: Path
) -> None:
    train()
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(ConfigurationError, match="without a checkpoint to continue from: choose"):
        train(epochs=3)
    assert read_manifest(tmp_path / "run/export").settings["epochs"] == 2


def test_a_finished_run_whose_weights_are_damaged_is_exported_again(
    train: Train, tmp_path: Path
) -> None:
    train()
    weights = tmp_path / "run/export/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert train() == exit_codes.DONE
    assert weights.read_bytes() == content


def test_a_finished_run_writes_artifacts_and_metrics_that_are_requested_later(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run/export"
    train()
    before = read_manifest(folder)
    requested: dict[str, Any] = {
        "metrics": [f"{custom_models.__name__}:confidence"],
        "export_formats": ["pt2"],
        "prune": 0.5,
    }
    capsys.readouterr()
    assert train(**requested) == exit_codes.DONE
    assert [line["event"] for line in events(capsys)] == ["resume", "finished"]
    after = read_manifest(folder)
    assert [artifact.kind for artifact in after.artifacts] == ["pt2", "pruned"]
    assert after.weights == before.weights
    assert after.metrics["accuracy"] == before.metrics["accuracy"]
    assert 0 < after.metrics["confidence"] <= 1
    for settings in (requested, {}):
        assert train(**settings) == exit_codes.DONE
        assert events(capsys)[-1]["already"] is True
    assert train(**requested | {"prune": 0.75}) == exit_codes.DONE
    assert read_manifest(folder).artifact("pruned").zeros == pytest.approx(0.75, abs=1e-3)
    with pytest.raises(ConfigurationError, match="finished run with different settings"):
        train(seed=1, quantize="dynamic")
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(
        ConfigurationError,
        match="finished run without the result of quantize dynamic, and without a checkpoint",
    ):
        train(quantize="dynamic")


def test_a_finished_run_does_not_repeat_a_skipped_artifact(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not supported")

    monkeypatch.setattr(artifacts, "write_program", fail)
    assert train(export_formats=["pt2"]) == exit_codes.DONE
    assert train(export_formats=["pt2"]) == exit_codes.DONE
    assert events(capsys)[-1]["already"] is True


def test_artifact_for_which_the_disk_is_full_is_exported_after_a_restart(
    train: Train, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        error = OSError(errno.ENOSPC, "No space left on device")
        patched.setattr(artifacts, "write_program", Mock(side_effect=error))
        with pytest.raises(OSError, match="No space left"):
            train(export_formats=["pt2"])
    assert not any(path.is_dir() for path in (tmp_path / "run").glob(".*"))
    assert train(export_formats=["pt2"]) == exit_codes.DONE
    assert (tmp_path / "run/export/model.pt2").exists()


def test_run_is_not_started_again_if_its_checkpoints_cannot_be_read(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(epochs=2)
    with monkeypatch.context() as patched:
        error = OSError(errno.EIO, "Input/output error")
        patched.setattr(storage, "sha256_of", Mock(side_effect=error))
        with pytest.raises(OSError, match="Input/output error"):
            train(epochs=3)
    train(epochs=3)
    assert [event["step"] for event in all_events(capsys) if event["event"] == "resume"] == [46]


def test_finished_run_is_not_exported_again_if_its_export_cannot_be_read(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(epochs=1)
    path = tmp_path / "run/export/manifest.json"
    before = files.stamp_of(path)
    with monkeypatch.context() as patched:
        error = OSError(errno.EIO, "Input/output error")
        patched.setattr("workload.manifest.sha256_of", Mock(side_effect=error))
        with pytest.raises(UnavailableExportError, match="Input/output error"):
            train(epochs=1)
    assert files.stamp_of(path) == before


def test_run_directory_with_different_settings_is_rejected(train: Train, tmp_path: Path) -> None:
    train()
    with pytest.raises(
        ConfigurationError, match=r"finished run with different settings \(epochs: 2, now 1"
    ):
        train(epochs=1)
    with pytest.raises(ConfigurationError, match=r"seed: 0, now 1\): choose"):
        train(epochs=3, seed=1)
    (tmp_path / "run/export/manifest.json").unlink()
    with pytest.raises(
        ConfigurationError, match=r"run with different settings \(dataset: digits, now synth"
    ):
        train(dataset="synthetic")


def test_nan_loss_ends_the_run_before_it_is_saved(train: Train, tmp_path: Path) -> None:
    train(epochs=1)
    folder = tmp_path / "run/checkpoints"
    [path] = folder.iterdir()
    [file] = path.glob("*.safetensors")
    tensors = load_file(file)
    with safe_open(file, "pt") as stored:
        info = stored.metadata()
    tensors["model/fc2.bias"][0] = torch.nan
    save_file(tensors, file, info)
    seal = storage.read_seal(path)
    assert isinstance(seal, storage.Seal)
    new_seal = seal.model_copy(update={"files": (storage.file_entry(file),)})
    (path / storage.SEAL_FILE).write_text(new_seal.model_dump_json())
    (tmp_path / "run/export/manifest.json").unlink()
    with pytest.raises(DivergedError, match="lower learning_rate"):
        train(epochs=2)
    assert list(folder.iterdir()) == [path]


def test_a_run_that_cannot_be_saved_does_not_start(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written: Not a directory"):
        train("file/run")


def test_missing_data_is_reported_before_the_run_starts(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match="train-images-idx3-ubyte is missing"):
        train(model="mnist-net", dataset="mnist", data_dir=str(tmp_path))
    assert not events(capsys)


def test_step_event_contains_learning_rate_gradient_norm_and_throughput(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(epochs=1, log_every=5, **text_settings(tmp_path))
    start, step, *_ = events(capsys)
    assert start["precision"] == "fp32"
    assert isinstance(step["samples_per_second"], float)
    assert step["tokens_per_second"] == pytest.approx(32 * step["samples_per_second"], rel=0.01)
    assert 0 < float(str(step["gradient_norm"])) < 100
    assert 1e-4 < float(str(step["learning_rate"])) <= 1e-3


def test_step_event_of_a_skipped_step_is_valid_json(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = f"{Dropping.__module__}:undefined_gradient"
    train(loss=loss, precision="fp16", epochs=None, train_steps=1, log_every=1)
    [step] = [event for event in events(capsys) if event["event"] == "step"]
    assert step["loss"] > 0
    assert "gradient_norm" not in step


@pytest.mark.parametrize("change", ["seed", "data"])
def test_checkpoint_with_a_different_seed_or_data_set_is_rejected(
    change: str, train: Train, tmp_path: Path
) -> None:
    settings = text_settings(tmp_path)
    train(epochs=1, **settings)
    (tmp_path / "run/export/manifest.json").unlink()
    if change == "data":
        file = tmp_path / "text/counting.txt"
        file.write_text(file.read_text().replace("seven", "seveN"))
    seed, message = (1, "seed: 0, now 1") if change == "seed" else (0, "data_sha256")
    with pytest.raises(ConfigurationError, match=message):
        train(epochs=2, seed=seed, **settings)


def test_explicit_default_options_describe_the_same_model(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = text_settings(tmp_path, 200) | {"epochs": 1}
    options = settings["model_options"]
    train(**settings)
    settings["model_options"] = checked_options("gpt", options)
    assert settings["model_options"] != options
    capsys.readouterr()
    assert train(**settings) == exit_codes.DONE
    assert events(capsys)[-1]["already"] is True
    assert train("second", init_from=str(tmp_path / "run"), **settings) == exit_codes.DONE
    (tmp_path / "run/export/manifest.json").unlink()
    capsys.readouterr()
    assert train(**settings) == exit_codes.DONE
    assert events(capsys)[0]["event"] == "resume"
    (tmp_path / "run/export/manifest.json").unlink()
    settings["model_options"] |= {"context": 16}
    with pytest.raises(ConfigurationError, match="model_options: "):
        train(**settings)


def test_duplicate_ctrl_c_forwarded_by_torchrun_saves_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_sigint_twice(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressOutputs, "stepped", send_sigint_twice)
    with pytest.raises(KeyboardInterrupt):
        train()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert train() == exit_codes.INTERRUPTED


def test_run_ends_before_training_if_the_package_of_a_tracking_service_is_missing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FatalError, match="install it in the image, or leave wandb out"):
        train("run", track=["wandb"])
    assert not (tmp_path / "run/checkpoints").exists()
    assert train("run", epochs=1, track=[]) == exit_codes.DONE
    assert "track" not in TrainingConfig.model_validate({"track": "mlflow,wandb"}).result_settings()
