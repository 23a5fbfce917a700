"""Evaluations within an epoch, on a part of the held-out samples."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.custom_models import Dropping
from tests.training.programs import Program, kill, start_gang, until
from training import evaluation
from training import train as training
from training.checkpoints import storage
from training.data import load
from training.evaluation import evaluate_held_out
from training.export.artifacts import evaluate_on_cpu
from training.objective import Evaluation
from training.run import Run
from workload import exit_codes, files
from workload.export import load_network
from workload.manifest import read_manifest

Train = Callable[..., int]
DROPPING = f"--model={Dropping.__module__}:Dropping"
KINDS: dict[str, list[str]] = {
    "dropout": [DROPPING],
    "batch norm and an average": [
        "--model=tests.training.custom_models:Normalized", "--ema-decay=0.9", "--accumulate=2",
    ],
    "fsdp and an average": ["--parallel=fsdp", "--ema-decay=0.9", DROPPING],
    "fp16": [DROPPING, "--precision=fp16"],
}  # fmt: skip


def lines(output: str, event: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line for line in parsed if line["event"] == event]


def untimed(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: each[key] for key in each if key != "seconds"} for each in evaluations]


def digest(run_dir: Path) -> str:
    return read_manifest(run_dir / "export").weights.sha256


def finish(programs: list[Program]) -> str:
    codes = [program.exit_code() for program in programs]
    assert codes == [exit_codes.DONE] * len(programs), programs[0].text
    return programs[0].text


def gang(run_dir: Path, size: int, *more: str) -> list[Program]:
    flags = ["--dataset=digits", "--train-steps=12", "--batch-size=32", f"--run-dir={run_dir}"]
    return start_gang([*flags, *more], size, run_dir.with_suffix(".output"))


def test_an_evaluation_is_the_same_in_batches_of_any_size(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for batch in (512, 50):
        monkeypatch.setattr(evaluation, "BATCH", batch)
        run_dir = f"batches of {batch}"
        train(run_dir=run_dir, epochs=1)
        found.append(read_manifest(tmp_path / run_dir / "export").metrics)
    for name in ("loss", "accuracy"):
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_do_not_change_the_training(kind: str, tmp_path: Path) -> None:
    without = gang(tmp_path / "without", 2, *KINDS[kind])
    often = ["--evaluate-steps=1", "--evaluate-samples=33"]
    evaluated = finish(gang(tmp_path / "with", 2, *KINDS[kind], *often))
    finish(without)
    assert [line["step"] for line in lines(evaluated, "evaluation")] == [*range(1, 12)]
    assert digest(tmp_path / "with") == digest(tmp_path / "without")


def test_a_part_is_the_same_for_every_number_of_processes(tmp_path: Path) -> None:
    found = []
    for size in (1, 2, 4):
        # Always 96 samples a step.
        flags = ["--model=digits-net", f"--batch-size={96 // size}", "--optimizer=sgd"]
        flags += ["--evaluate-steps=5", "--evaluate-samples=33"]
        found.append(lines(finish(gang(tmp_path / str(size), size, *flags)), "evaluation"))
    assert [line["samples"] for line in found[0]] == [33, 33]
    for other in found[1:]:
        for line, same in zip(untimed(found[0]), untimed(other), strict=True):
            del line["event"], same["event"]
            assert line == pytest.approx(same, abs=2e-6)


def test_a_killed_run_has_the_evaluations_of_an_undisturbed_one(tmp_path: Path) -> None:
    flags = [DROPPING, "--evaluate-steps=2", "--evaluate-samples=50", "--log-every=1"]
    undisturbed = gang(tmp_path / "whole", 2, *flags)
    killed = gang(tmp_path / "parts", 2, *flags, "--checkpoint-steps=3", "--step-delay=0.2")
    saved = tmp_path / "parts/checkpoints"
    until(lambda: '"step": 7' in killed[0].text and any(saved.glob("step-*")))
    kill(killed)
    # Both attempts write to the same file. Evaluations since the checkpoint are repeated.
    first = killed[0].text
    before = lines(first, "evaluation")
    resumed = finish(gang(tmp_path / "parts", 2, *flags, "--checkpoint-steps=3"))
    resumed = resumed.removeprefix(first)
    assert lines(resumed, "resume")
    after = lines(resumed, "evaluation")
    expected = untimed(lines(finish(undisturbed), "evaluation"))
    assert [line["step"] for line in expected] == [2, 4, 6, 8, 10]
    by_step = {line["step"]: line for line in untimed(before) + untimed(after)}
    assert [by_step[step] for step in sorted(by_step)] == expected
    assert untimed(after) == expected[-len(after) :]
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


def test_a_run_that_is_interrupted_in_an_evaluation_repeats_it(
    train: Train,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"epochs": 1, "evaluate_steps": 10}
    before, evaluate = signal.getsignal(signal.SIGTERM), evaluation.evaluate

    def stop(*arguments: Any) -> Evaluation | None:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    # All processes agree to stop a batch after the signal.
    monkeypatch.setattr(evaluation, "BATCH", 50)
    try:
        monkeypatch.setattr(evaluation, "evaluate", stop)
        assert train(**settings) == exit_codes.INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    first = capsys.readouterr().out
    [interrupted] = lines(first, "interrupted")
    assert train(**settings) == exit_codes.DONE
    output = capsys.readouterr().out
    assert (interrupted["step"], lines(first, "evaluation")) == (10, [])
    assert [line["step"] for line in lines(output, "evaluation")] == [10, 20]


def test_an_evaluated_checkpoint_is_the_best_one(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = evaluate_held_out
    losses = {4: 3.0, 8: 1.0, 12: 2.0, 16: 4.0, 20: 5.0, 23: 6.0}

    def known(run: Run, maximum: int = 0) -> Evaluation | None:
        found = held_out(run, maximum)
        return found and Evaluation(losses[run.position.step], found.accuracy, found.samples)

    monkeypatch.setattr(training, "evaluate_held_out", known)
    train(epochs=1, checkpoint_steps=4, evaluate_steps=4, keep_checkpoints=2)
    seals = [
        storage.read_seal(path) for path in files.list_checkpoints(tmp_path / "run/checkpoints")
    ]
    found = {seal.position.step: seal.held_out_loss for seal in seals if not isinstance(seal, str)}
    assert found == {8: 1.0, 20: 5.0, 23: 6.0}


def test_a_checkpoint_without_an_evaluation_is_kept_as_it_is(train: Train, tmp_path: Path) -> None:
    train(epochs=1, checkpoint_steps=10, evaluate_steps=4, keep_checkpoints=9)
    seals = [
        storage.read_seal(path) for path in files.list_checkpoints(tmp_path / "run/checkpoints")
    ]
    found = [(seal.position.step, seal.held_out_loss is None) for seal in seals if seal]
    assert found == [(10, True), (20, False), (23, False)]


def test_the_finished_model_is_evaluated_on_all_samples(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(epochs=1, evaluate_samples=20)
    [epoch], [finished] = (
        lines(output, event)
        for output in [capsys.readouterr().out]
        for event in ("epoch", "finished")
    )
    folder = tmp_path / "run/export"
    model = load_network(folder, read_manifest(folder))
    data = load("digits", tmp_path, (1, 8, 8), 0)
    assert finished["loss"] == pytest.approx(
        evaluate_on_cpu(model, data.held_out)["loss"], abs=1e-5
    )
    assert epoch["held_out_loss"] != pytest.approx(finished["loss"], abs=1e-5)
    [path] = files.list_checkpoints(tmp_path / "run/checkpoints")
    seal = storage.read_seal(path)
    assert isinstance(seal, storage.Seal)
    assert seal.held_out_loss == pytest.approx(epoch["held_out_loss"], abs=1e-6)


@pytest.mark.parametrize("maximum", [1, 360, 10**15])
def test_more_samples_than_there_are_mean_all_of_them(
    maximum: int, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(epochs=None, train_steps=3, evaluate_steps=2, evaluate_samples=maximum)
    [line] = lines(capsys.readouterr().out, "evaluation")
    assert (line["step"], line["samples"]) == (2, min(maximum, 360))
