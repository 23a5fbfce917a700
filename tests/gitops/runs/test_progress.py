"""Progress in the log of a training program."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gitops.runs.progress import Progress, failure_text, progress, result
from workload.progress import Finished

START = datetime(2026, 1, 1, tzinfo=UTC)


def line(at: float, event: str, /, **fields: object) -> str:
    time = START + timedelta(seconds=at)
    return f"{time:%Y-%m-%dT%H:%M:%S.000000123Z} {json.dumps({'event': event, **fields})}"


def epoch(seconds: float, number: int, loss: float = 0.5) -> str:
    return line(seconds, "epoch", epoch=number, epochs=10, loss=loss, accuracy=0.9, samples=7)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_the_latest_epoch_and_step_are_reported() -> None:
    lines = [line(0, "start", epochs=10), epoch(60, 1), line(70, "step", step=130, loss=0.25)]
    found = progress(lines, at(70))
    assert found is not None
    assert (found.epoch, found.epochs, found.step, found.loss) == (1, 10, 130, 0.25)
    assert found.completed_fraction == 0.1


def test_remaining_time_is_estimated_from_observed_epochs() -> None:
    lines = [line(0, "start", epochs=10), epoch(60, 1), epoch(120, 2)]
    expected = Progress(2, 10, 0, 0.5, 0.9, pytest.approx(8 * 60), saved=START)
    assert progress(lines, at(120)) == expected
    assert progress(lines, at(150)) == replace(
        expected, remaining_seconds=pytest.approx(8 * 60 - 30)
    )


def test_steps_determine_progress_and_remaining_time() -> None:
    # The newest lines of a run with a single long epoch.
    lines = [
        line(at, "step", step=at * 3, loss=0.5, done_epochs=0.25 + at / 1000, epochs=1)
        for at in range(0, 251, 10)
    ]
    found = progress(lines, at(250))
    assert found is not None
    assert (found.epoch, found.epochs, found.completed_fraction) == (0, 1, 0.5)
    assert found.remaining_seconds == pytest.approx(500)


def test_estimate_for_a_resumed_run_starts_at_its_checkpoint() -> None:
    lines = [epoch(0, 6), line(500, "resume", epochs=10, done_epochs=4, step=40), epoch(530, 5)]
    found = progress(lines, at(530))
    assert found is not None
    assert found.remaining_seconds == pytest.approx(5 * 30)


def test_remaining_time_is_unknown_before_the_first_epoch_ends() -> None:
    found = progress([line(0, "start", epochs=10)], at(500))
    assert found is not None
    assert found.remaining_seconds is None


def test_checkpoint_time_is_when_its_state_was_captured() -> None:
    lines = [
        line(0, "resume", epochs=10, done_epochs=4, step=40),
        line(130, "checkpoint", step=80, seconds=30),
        line(230, "checkpoint", step=120, seconds=30),
    ]
    found = progress(lines, at(300))
    assert found is not None
    assert (found.saved, found.saves_every_seconds) == (at(200), 100)


def test_resumed_attempt_starts_without_unsaved_work() -> None:
    lines = [line(0, "checkpoint", step=1), line(500, "resume", epochs=10, step=40)]
    found = progress(lines, at(530))
    assert found is not None
    assert (found.saved, found.saves_every_seconds) == (at(500), None)


def test_finished_run_has_no_remaining_time() -> None:
    lines = [epoch(60, 9), epoch(66, 10), line(70, "finished", accuracy=0.98, seconds=70)]
    found = progress(lines, at(100))
    assert found is not None
    assert (found.completed_fraction, found.accuracy, found.remaining_seconds) == (1, 0.98, 0)


@pytest.mark.parametrize(
    "text", ["", "no time", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z {", "x {}", "[]"]
)
def test_unrelated_log_lines_are_ignored(text: str) -> None:
    assert progress([text, f"{START.isoformat()} [1, 2]"], at(0)) is None


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("start", {"epochs": math.inf}),
        ("start", {"epochs": -1}),
        ("resume", {"epochs": 3, "done_epochs": math.nan}),
        ("epoch", {"epoch": math.inf, "epochs": 3, "loss": 1}),
        ("checkpoint", {"step": 1, "seconds": 1e300}),
        ("checkpoint", {"step": 1, "seconds": math.nan}),
    ],
)
def test_events_with_implausible_numbers_are_ignored(event: str, fields: dict[str, float]) -> None:
    assert progress([line(0, event, **fields)], START) is None


def test_implausible_numbers_are_reported_as_unknown() -> None:
    lines = [
        line(n, "step", step=n, loss=math.nan, done_epochs=n, epochs=math.inf) for n in range(2)
    ]
    assert progress(lines, at(1)) == Progress(step=1)
    lines = [line(0, "start", epochs=10**10), line(86_400, "step", step=1, loss=-1)]
    lines.append(line(86_400, "epoch", epoch=1, epochs=10**10, loss=math.inf))
    found = progress(lines, at(86_400))
    assert found is not None
    assert (found.loss, found.remaining_seconds) == (None, None)
    finished = json.dumps({"event": "finished", "accuracy": math.nan, "seconds": math.inf})
    assert result([finished]) == Finished(event="finished", accuracy=None, seconds=None)


def test_events_with_non_numeric_values_are_ignored() -> None:
    assert progress([line(0, "epoch", epoch="many", epochs=10, loss=0.1)], at(0)) is None


def test_reported_error_replaces_the_last_log_lines() -> None:
    expected = json.dumps({"event": "error", "message": "no data in /data", "exit_code": 64})
    assert failure_text(expected, ["2026-01-01T00:00:00Z Traceback"]) == ["no data in /data"]
    assert failure_text("OOM\n", []) == ["OOM"]
    assert failure_text("", ["2026-01-01T00:00:00Z one", "2026-01-01T00:00:01Z two"]) == [
        "one",
        "two",
    ]
    assert failure_text("\x1b]0;title\x07\u009b2Jé\t.", []) == ["\\x1b]0;title\\x07\\x9b2Jé\t."]


def test_run_with_fractional_epochs_reports_fractions() -> None:
    lines = [
        line(0, "resume", epochs=0.5, done_epochs=0.1, step=40),
        line(100, "step", step=80, loss=0.5, done_epochs=0.2, epochs=0.5),
    ]
    found = progress(lines, at(100))
    assert found is not None
    assert (found.epoch, found.epochs, found.completed_fraction) == (0.2, 0.5, 0.4)
    assert found.remaining_seconds == pytest.approx(300)
    within = line(200, "evaluation", step=120, done_epochs=0.3, epochs=0.5, accuracy=0.7)
    found = progress([*lines, within], at(200))
    assert found is not None
    assert (found.epoch, found.step, found.loss, found.accuracy) == (0.3, 120, 0.5, 0.7)
    assert found.remaining_seconds == pytest.approx(200)
    end = line(400, "epoch", epoch=0.5, epochs=0.5, loss=0.4, accuracy=0.9)
    found = progress([*lines, end], at(400))
    assert found is not None
    assert (found.epoch, found.completed_fraction, found.remaining_seconds) == (0.5, 1, 0)
