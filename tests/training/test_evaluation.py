"""Evaluations within an epoch, on a subset of the held-out samples."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.custom_models import Dropping
from tests.training.programs import Program, digest, kill, start_gang, until
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
    "batch norm and averaged weights": [
        "--model=tests.training.custom_models:Normalized", "--ema-decay=0.9", "--accumulate=2",
    ],
    "fsdp and averaged weights": ["--parallel=fsdp", "--ema-decay=0.9", DROPPING],
    "fp16": [DROPPING, "--precision=fp16"],
}  # fmt: skip


def events_of(output: str, event: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line for line in parsed if line["event"] == event]


def without_seconds(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: each[key] for key in each if key != "seconds"} for each in evaluations]


def finish(programs: list[Program]) -> str:
    codes = [program.exit_code() for program in programs]
    assert codes == [exit_codes.DONE] * len(programs), programs[0].text
    return programs[0].text


def gang(run_dir: Path, size: int, *options: str) -> list[Program]:
    flags = ["--dataset=digits", "--train-steps=12", "--batch-size=32", f"--run-dir={run_dir}"]
    return start_gang([*flags, *options], size, run_dir.with_suffix(".output"))


def test_batches_of_long_texts_have_fewer_samples() -> None:
    sizes = [evaluation.batch_size(tokens, 512) for tokens in (1, 3000, 100_000)]
    assert sizes == [512, 5, 1]
    assert all(isinstance(size, int) for size in sizes)


def test_evaluation_result_does_not_depend_on_the_batch_size(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = []
    for batch in (512, 50):
        monkeypatch.setattr(evaluation, "MAX_BATCH_SAMPLES", batch)
        run_dir = f"batches of {batch}"
        train(run_dir=run_dir, epochs=1)
        metrics.append(read_manifest(tmp_path / run_dir / "export").metrics)
    for name in ("loss", "accuracy"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_do_not_affect_the_trained_weights(kind: str, tmp_path: Path) -> None:
    not_evaluated = gang(tmp_path / "without", 2, *KINDS[kind])
    evaluations = ["--evaluate-steps=1", "--evaluate-samples=33"]
    evaluated = finish(gang(tmp_path / "with", 2, *KINDS[kind], *evaluations))
    finish(not_evaluated)
    assert [line["step"] for line in events_of(evaluated, "evaluation")] == [*range(1, 12)]
    assert digest(tmp_path / "with") == digest(tmp_path / "without")


def test_partial_evaluation_is_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    evaluations = []
    for size in (1, 2, 4):
        # Every gang has 96 samples per step.
        flags = ["--model=digits-net", f"--batch-size={96 // size}", "--optimizer=sgd"]
        flags += ["--evaluate-steps=5", "--evaluate-samples=33"]
        evaluations.append(
            events_of(finish(gang(tmp_path / str(size), size, *flags)), "evaluation")
        )
    assert [line["samples"] for line in evaluations[0]] == [33, 33]
    for lines in evaluations[1:]:
        for line, expected in zip(
            without_seconds(evaluations[0]), without_seconds(lines), strict=True
        ):
            del line["event"], expected["event"]
            assert line == pytest.approx(expected, abs=2e-6)


def test_killed_and_resumed_run_has_the_evaluations_of_an_uninterrupted_one(tmp_path: Path) -> None:
    flags = [DROPPING, "--evaluate-steps=2", "--evaluate-samples=50", "--log-every=1"]
    uninterrupted = gang(tmp_path / "whole", 2, *flags)
    killed = gang(tmp_path / "parts", 2, *flags, "--checkpoint-steps=3", "--step-delay=0.2")
    saved = tmp_path / "parts/checkpoints"
    until(lambda: '"step": 7' in killed[0].text and any(saved.glob("step-*")))
    kill(killed)
    # Both attempts write to the same file. The second attempt repeats evaluations that followed
    # the checkpoint.
    first = killed[0].text
    before = events_of(first, "evaluation")
    resumed = finish(gang(tmp_path / "parts", 2, *flags, "--checkpoint-steps=3"))
    resumed = resumed.removeprefix(first)
    assert events_of(resumed, "resume")
    after = events_of(resumed, "evaluation")
    expected = without_seconds(events_of(finish(uninterrupted), "evaluation"))
    assert [line["step"] for line in expected] == [2, 4, 6, 8, 10]
    by_step = {line["step"]: line for line in without_seconds(before) + without_seconds(after)}
    assert [by_step[step] for step in sorted(by_step)] == expected
    assert without_seconds(after) == expected[-len(after) :]
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


def test_run_interrupted_during_an_evaluation_repeats_it(
    train: Train,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"epochs": 1, "evaluate_steps": 10}
    handler, evaluate = signal.getsignal(signal.SIGTERM), evaluation.evaluate

    def send_sigterm(*arguments: Any) -> Evaluation | None:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)

    # The processes stop one batch after the signal, so the evaluation needs several batches.
    monkeypatch.setattr(evaluation, "MAX_BATCH_SAMPLES", 50)
    try:
        monkeypatch.setattr(evaluation, "evaluate", send_sigterm)
        assert train(**settings) == exit_codes.INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, handler)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    first = capsys.readouterr().out
    [interrupted] = events_of(first, "interrupted")
    assert train(**settings) == exit_codes.DONE
    output = capsys.readouterr().out
    assert (interrupted["step"], events_of(first, "evaluation")) == (10, [])
    assert [line["step"] for line in events_of(output, "evaluation")] == [10, 20]


def test_best_checkpoint_is_chosen_by_evaluations_within_the_epoch(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = evaluate_held_out
    losses = {4: 3.0, 8: 1.0, 12: 2.0, 16: 4.0, 20: 5.0, 23: 6.0}

    def fixed_losses(run: Run, maximum: int = 0) -> Evaluation | None:
        result = held_out(run, maximum)
        return result and Evaluation(losses[run.position.step], result.accuracy, result.samples)

    monkeypatch.setattr(training, "evaluate_held_out", fixed_losses)
    train(epochs=1, checkpoint_steps=4, evaluate_steps=4, keep_checkpoints=2)
    seals = [
        storage.read_seal(path) for path in files.list_checkpoints(tmp_path / "run/checkpoints")
    ]
    saved_losses = {
        seal.position.step: seal.held_out_loss for seal in seals if not isinstance(seal, str)
    }
    assert saved_losses == {8: 1.0, 20: 5.0, 23: 6.0}


def test_checkpoint_without_an_evaluation_has_no_held_out_loss(
    train: Train, tmp_path: Path
) -> None:
    train(epochs=1, checkpoint_steps=10, evaluate_steps=4, keep_checkpoints=9)
    seals = [
        storage.read_seal(path) for path in files.list_checkpoints(tmp_path / "run/checkpoints")
    ]
    without_loss = [(seal.position.step, seal.held_out_loss is None) for seal in seals if seal]
    assert without_loss == [(10, True), (20, False), (23, False)]


def test_final_model_is_evaluated_on_all_held_out_samples(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(epochs=1, evaluate_samples=20)
    [epoch], [finished] = (
        events_of(output, event)
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
def test_number_of_evaluated_samples_is_limited_to_the_held_out_samples(
    maximum: int, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(epochs=None, train_steps=3, evaluate_steps=2, evaluate_samples=maximum)
    [line] = events_of(capsys.readouterr().out, "evaluation")
    assert (line["step"], line["samples"]) == (2, min(maximum, 360))
