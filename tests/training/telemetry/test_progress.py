"""Progress of a run with evaluations, as seen by a sweep's controller and in the log."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infra.sweeps import length
from tests.sweeps.test_controller import Stage
from training import train as training
from training.evaluation import evaluate_held_out
from training.objective import Evaluation
from training.run import Run
from training.telemetry import progress
from training.telemetry.progress import ProgressOutputs

Train = Callable[..., int]


def test_sweep_sees_every_evaluation_and_throughput_excludes_evaluations(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An epoch of 1,437 samples has 23 steps of 64.
    settings = {"train_steps": 26, "evaluate_steps": 10, "batch_size": 64}
    sweep = {"job": {"hyperparameters": length(**settings)}, "early_stopping": {"minimum": 10}}
    stage = Stage(tmp_path, sweep)
    stage.step()
    trial, _ = stage.api.jobs
    stage.api.set("Running")
    evaluate, evaluated = evaluate_held_out, ProgressOutputs.evaluated
    paused, evaluated_steps = 0.0, list[int]()

    def evaluate_slowly(run: Run, maximum: int = 0) -> Evaluation | None:
        nonlocal paused
        paused += 1000
        return evaluate(run, maximum)

    def step_after_evaluation(outputs: ProgressOutputs, *arguments: Any) -> None:
        evaluated(outputs, *arguments)
        stage.step(10)
        [row] = (each for each in stage.api.summary["trials"] if each["run"] == trial)
        evaluated_steps.append(row["trained"])

    def clock() -> float:
        return time.perf_counter() + paused

    fake = SimpleNamespace(monotonic=clock, perf_counter=clock, sleep=time.sleep)
    monkeypatch.setattr(training, "evaluate_held_out", evaluate_slowly)
    monkeypatch.setattr(ProgressOutputs, "evaluated", step_after_evaluation)
    monkeypatch.setattr(training, "time", fake)
    monkeypatch.setattr(progress, "time", fake)
    train(trial, epochs=None, log_every=1, **settings)
    assert evaluated_steps == [10, 20, 23, 26]
    assert stage.api.commands[0] == (trial, "AbortJob")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rates = [line["samples_per_second"] for line in lines if line["event"] == "step"]
    assert len(rates) == 26
    assert min(rates) > 64 / 1000
    seconds = [line["seconds"] for line in lines if line["event"] in ("epoch", "evaluation")]
    # The duration of the first epoch includes the evaluation at its end and two earlier ones.
    assert [round(each, -3) for each in seconds] == [1000, 1000, 3000, 1000]
