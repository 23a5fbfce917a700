"""Lengths of runs in steps, samples and tokens."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.custom_models import Dropping
from tests.training.programs import digest, events, start_gang
from training.checkpoints.storage import Position
from training.config import TrainingConfig
from training.run import Length, Run
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.manifest import read_manifest

Train = Callable[..., int]
CONSTANT = {"schedule": "constant", "warm_up": 0}
STEPS = 23
"""Steps per epoch of digits, which have 1,437 samples, in batches of 64."""


def steps_of_run(length: Length) -> tuple[list[int], list[Position]]:
    """Return the number of samples in each step of a run, and the position after each step."""
    position, sizes, positions = Position(), [], []
    while not length.is_reached(position):
        assert 0 <= length.progress(position) < 1
        size = min(length.step_samples, length.end(position) - position.seen)
        position = Position(position.epoch, position.seen + size, position.step + 1)
        if position.seen == length.epoch_samples:
            position = Position(position.epoch + 1, 0, position.step)
        sizes.append(size)
        positions.append(position)
    return sizes, positions


@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 50))
def test_a_run_has_exactly_as_many_steps_as_configured(epoch: int, step: int, steps: int) -> None:
    length = Length(epoch, step, steps=steps)
    sizes, positions = steps_of_run(length)
    assert len(sizes) == steps
    assert {length.total(position) for position in (Position(), *positions)} == {sum(sizes)}
    assert length.progress(positions[-1]) == 1


@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 200))
def test_a_run_has_exactly_as_many_samples_as_configured(
    epoch: int, step: int, samples: int
) -> None:
    length = Length(epoch, step, samples)
    sizes, positions = steps_of_run(length)
    assert sum(sizes) == samples
    assert min(sizes) > 0
    assert length.progress(positions[-1]) == 1


def test_very_long_runs_are_counted_exactly() -> None:
    length = Length(7, 2, steps=2**53)
    # An epoch has 4 steps.
    assert length.total(Position()) == 2**51 * 7
    assert 0 < length.progress(Position(0, 2, 1)) < 1e-15
    assert length.end(Position()) == 7


def test_train_steps_can_end_a_run_within_an_epoch(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(epochs=None, train_steps=30, log_every=10) == exit_codes.DONE
    reported = events(capsys)
    assert [line["event"] for line in reported] == [
        "start", "step", "step", "epoch", "step", "epoch", "finished",
    ]  # fmt: skip
    length = float(f"{1 + 7 * 64 / 1437:.6g}")
    assert {line["epochs"] for line in reported[:-1]} == {length}
    assert [line["epoch"] for line in reported if line["event"] == "epoch"] == [1, length]
    assert reported[-2]["samples"] == 7 * 64
    assert reported[4]["learning_rate"] < 1e-5
    settings = read_manifest(tmp_path / "run/export").settings
    assert (settings["train_steps"], "epochs" in settings) == (30, False)
    assert train(epochs=None, train_steps=30) == exit_codes.DONE
    assert events(capsys)[-1]["already"] is True


def test_equal_lengths_in_epochs_samples_and_steps_give_the_same_weights(
    train: Train, tmp_path: Path
) -> None:
    train("epochs", **CONSTANT)
    train("samples", epochs=None, train_samples=2 * 1437, **CONSTANT)
    train("steps", epochs=None, train_steps=2 * STEPS, **CONSTANT)
    assert len({digest(tmp_path / run) for run in ("epochs", "samples", "steps")}) == 1


def test_train_tokens_is_rounded_up_to_whole_samples(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("one two three four five six seven " * 40)
    options = {"context": 16, "layers": 1, "heads": 2, "width": 16}
    data = {"model": "gpt", "dataset": "text", "data_dir": str(tmp_path), "model_options": options}
    train(epochs=None, train_tokens=16 * 20 + 1, batch_size=8, accumulate=2, **data)
    [epoch] = [line for line in events(capsys) if line["event"] == "epoch"]
    assert epoch["samples"] == 21


def test_an_interrupted_run_ends_after_the_same_step(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = f"{Dropping.__module__}:Dropping"
    settings = {"model": model, "epochs": None, "train_steps": 9, "log_every": 1}
    train("whole", batch_size=256, **settings)
    handler, check = signal.getsignal(signal.SIGTERM), Run.check_step

    def send_sigterm(run: Run, *arguments: Any) -> None:
        check(run, *arguments)
        if run.position.step in (2, 8):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Run, "check_step", send_sigterm)
    try:
        for code in (exit_codes.INTERRUPTED, exit_codes.INTERRUPTED, exit_codes.DONE):
            assert train("parts", batch_size=256, **settings) == code
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    reported = events(capsys)
    resumed = [line for line in reported if line["event"] == "resume"]
    steps = [line["done_epochs"] for line in reported if line["event"] == "step"]
    assert resumed[0]["done_epochs"] in steps
    assert {line["epochs"] for line in reported if "epochs" in line} == {resumed[0]["epochs"]}


@pytest.mark.parametrize(
    ("setting", "short", "long"), [("train_steps", 10, 30), ("train_samples", 640, 30 * 64 - 27)]
)
def test_a_finished_run_continues_within_its_epoch(
    setting: str, short: int, long: int, train: Train, tmp_path: Path
) -> None:
    train("extended", epochs=None, **{setting: short}, **CONSTANT)
    train("extended", epochs=None, **{setting: long}, **CONSTANT)
    train("whole", epochs=None, **{setting: long}, **CONSTANT)
    assert digest(tmp_path / "extended") == digest(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"epochs": None, "train_steps": 5}, r"has already trained for 10 steps \(0.445372 epochs\)"
         ", which is more than train_steps 5: increase train_steps"),
        ({"epochs": None, "train_samples": 639}, "which is more than train_samples 639"),
    ],
)  # fmt: skip
def test_run_that_trained_longer_than_configured_is_not_resumed(
    settings: dict[str, object], problem: str, train: Train, tmp_path: Path
) -> None:
    train(epochs=None, train_steps=10)
    (tmp_path / "run/export/manifest.json").unlink()
    with pytest.raises(ConfigurationError, match=problem):
        train(**settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"epochs": None, "train_steps": 5}, "train_steps: 10, now 5"),
        ({"epochs": 3}, "epochs: none, now 3; train_steps: 10, now none"),
        ({"epochs": None, "train_steps": 12, "seed": 1}, "seed: 0, now 1"),
    ],
)
def test_finished_run_with_a_different_length_is_refused(
    settings: dict[str, object], problem: str, train: Train
) -> None:
    train(epochs=None, train_steps=10)
    with pytest.raises(ConfigurationError, match=problem):
        train(**settings)


def test_run_is_refused_if_a_setting_returns_to_its_default(train: Train) -> None:
    train(clip_norm=1)
    with pytest.raises(ConfigurationError, match=r"clip_norm: 1[.]0, now none"):
        train()


@pytest.mark.parametrize("size", [1, 2])
def test_gangs_of_any_size_train_on_the_configured_number_of_samples(
    size: int, tmp_path: Path
) -> None:
    # 301 is not a multiple of the step size, the batch size or the number of processes.
    flags = ["--model=digits-net", "--dataset=synthetic", "--train-samples=301"]
    flags += ["--batch-size=16", "--accumulate=2", f"--run-dir={tmp_path / 'run'}"]
    gang = start_gang(flags, size, tmp_path / "gang")
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * size, gang[0].text
    [epoch] = [line for line in gang[0].text.splitlines() if '"epoch",' in line]
    assert json.loads(epoch)["samples"] == 301


def test_to_args_includes_the_length_only_if_it_is_configured() -> None:
    assert TrainingConfig().to_args() == []
    assert TrainingConfig(train_steps=7).to_args() == ["--train-steps=7"]
