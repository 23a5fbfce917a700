"""Progress of a run: events for sweeps, the log, event files of TensorBoard and traces."""

import errno
import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.infra.sweeps import length
from tests.sweeps.test_controller import Stage
from training import train as training
from training.evaluation import evaluate_held_out
from training.objective import Evaluation
from training.run import Run
from training.telemetry import progress
from training.telemetry.progress import LOSSES_PER_COPY, EventFiles, ProgressOutputs, Tracer
from workload.configuration import ConfigurationError

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


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder)).Reload().Scalars(name)
    return [(event.step, round(event.value, 4)) for event in events]


def write_steps(files: EventFiles, first: int, last: int, loss: float) -> None:
    for step in range(first, last + 1):
        files.stepped(step, torch.tensor(loss + step), 0.001 * step)


def test_curves_contain_every_step_and_epoch(tmp_path: Path) -> None:
    count = LOSSES_PER_COPY + 5
    with EventFiles(tmp_path) as files:
        write_steps(files, 1, count, loss=0.5)
        files.add_scalars(count, accuracy=0.75, held_out_loss=1.5)
    assert curve(tmp_path, "loss") == [(step, step + 0.5) for step in range(1, count + 1)]
    assert curve(tmp_path, "learning_rate")[-1] == (count, 0.001 * count)
    assert curve(tmp_path, "accuracy") == [(count, 0.75)]


def test_resumed_run_replaces_the_curve_after_its_checkpoint(tmp_path: Path) -> None:
    killed = EventFiles(tmp_path)
    write_steps(killed, 1, 7, loss=0.1)
    killed.flush()
    with EventFiles(tmp_path, step=4) as files:
        write_steps(files, 5, 9, loss=0.2)
    expected = [(step, step + (0.1 if step <= 4 else 0.2)) for step in range(1, 10)]
    assert curve(tmp_path, "loss") == expected
    killed.close()


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigurationError, match="install tensorboard in the image"):
        EventFiles(tmp_path)


def train(tracer: Tracer, steps: int) -> None:
    """Run steps that can be told apart: step n multiplies a matrix with n rows."""
    with tracer:
        for step in range(1, steps + 1):
            torch.ones(step, 64) @ torch.ones(64, 64)
            tracer.stepped()


def rows_multiplied(trace: Path) -> list[int]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    dims = [e["args"]["Input Dims"] for e in events if e.get("name") == "aten::matmul"]
    return [shapes[0][0] for shapes in dims]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_trace_contains_only_the_configured_steps(tmp_path: Path, after: int) -> None:
    train(Tracer(tmp_path / "profile", 1, steps=3, after=after, before=100), 12)
    [written] = (tmp_path / "profile").iterdir()
    assert written.name == f"rank-1-step-{100 + after + 1:08d}.json.gz"
    assert rows_multiplied(written) == [after + 1, after + 2, after + 3]


def test_trace_that_cannot_be_written_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", write)
    with pytest.raises(OSError, match="No space left"):
        train(Tracer(tmp_path, 0, steps=1, after=0, before=0), 2)
    write.assert_called_once()


def test_trace_is_written_if_the_run_ends_during_the_profile(tmp_path: Path) -> None:
    train(Tracer(tmp_path, 0, steps=10, after=2, before=0), 4)
    [written] = tmp_path.iterdir()
    assert rows_multiplied(written) == [3, 4]


def test_profile_is_not_written_if_profile_steps_is_zero(tmp_path: Path) -> None:
    train(Tracer(tmp_path / "profile", 0, steps=0, after=2, before=0), 4)
    assert not (tmp_path / "profile").exists()


def test_profile_is_not_written_if_the_run_ends_before_it_starts(tmp_path: Path) -> None:
    train(Tracer(tmp_path / "profile", 0, steps=2, after=9, before=0), 3)
    assert not (tmp_path / "profile").exists()
