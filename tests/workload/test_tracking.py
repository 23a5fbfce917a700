"""The queue between a run and a tracking service."""

import errno
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from workload import exit_codes, report, tracking
from workload.files import write_atomically
from workload.run import FatalError, Run
from workload.tracking import Line, Mlflow, RejectedError, Service, Tracker, Wandb, track


class RecordingService(Service):
    """A tracking service that records steps; tests can delay its writes and make them fail."""

    name = "recorded"

    def __init__(self, directory: Path, *errors: Exception) -> None:
        super().__init__(directory)
        self.errors, self.steps, self.calls = list(errors), list[object](), 0
        self.allowed, self.called = threading.Event(), threading.Event()

    def write(self, lines: list[Line]) -> None:
        self.calls += 1
        self.called.set()
        self.allowed.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.steps += [line.content["step"] for line in lines]


@pytest.fixture(autouse=True)
def clear_listeners() -> Iterator[None]:
    yield
    report.listeners.clear()


def send(tracker: Tracker, steps: range) -> None:
    for step in steps:
        tracker.receive({"event": "step", "step": step, "loss": 0.5})


def test_unresponsive_service_does_not_delay_the_run_and_lost_lines_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "QUEUE_CAPACITY", 5)
    monkeypatch.setenv("RUN_TRACK_SECONDS", "0.01")
    service = RecordingService(tmp_path)
    tracker = Tracker(service)
    send(tracker, range(1))
    assert service.called.wait(60)
    send(tracker, range(1, 9))
    assert tracker.dropped == 3
    tracker.close()
    message = json.loads(capsys.readouterr().out)["message"]
    assert message.startswith("recorded did not receive 9 progress lines: it took longer than 0.01")
    service.allowed.set()


def test_failed_lines_are_retried_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "_PAUSES", (0.01, 0.01))
    service = RecordingService(tmp_path, ConnectionError("refused"), ConnectionError("refused"))
    service.allowed.set()
    tracker = Tracker(service)
    send(tracker, range(1))
    assert service.called.wait(60)
    send(tracker, range(1, 300))
    while len(service.steps) < 300:
        service.called.clear()
        service.called.wait(0.1)
    tracker.close()
    assert service.steps == [*range(300)]
    assert capsys.readouterr().out == ""


def test_lines_rejected_by_the_service_are_not_retried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = RecordingService(tmp_path, RejectedError("the name is too long"))
    tracker = Tracker(service)
    send(tracker, range(1))
    assert service.called.wait(60)
    send(tracker, range(1, 4))
    service.allowed.set()
    tracker.close()
    assert service.steps == [1, 2, 3]
    message = json.loads(capsys.readouterr().out)["message"]
    assert message == "recorded did not receive 1 progress lines: the name is too long"


def test_unreachable_service_is_retried_once_at_the_end_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = RecordingService(tmp_path, *[ConnectionError("refused")] * 9)
    service.allowed.set()
    tracker = Tracker(service)
    send(tracker, range(1))
    assert service.called.wait(60)
    tracker.close()
    assert service.calls == 2
    message = json.loads(capsys.readouterr().out)["message"]
    assert message == "recorded did not receive 1 progress lines: ConnectionError: refused"


def test_tracking_warning_is_written_before_the_last_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = RecordingService(tmp_path, *[ConnectionError("refused")] * 9)
    service.allowed.set()
    report.listeners.append(Tracker(service))
    report.conclude("finished", step=3)
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events == ["warning", "finished"]
    assert report.listeners == []


def test_stored_run_ids_are_kept_while_they_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = RecordingService(tmp_path)
    service._store_id("first")
    with monkeypatch.context() as unavailable:
        error = OSError(errno.ESTALE, "Stale file handle")
        unavailable.setattr(Path, "read_bytes", Mock(side_effect=error))
        with pytest.raises(OSError, match="Stale file handle"):
            service._stored_ids()
    assert service._stored_ids() == {"recorded": "first"}


def test_services_that_store_their_run_ids_at_the_same_time_keep_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Mlflow(tmp_path), Wandb(tmp_path)
    other = threading.Thread(target=second._store_id, args=("b",))

    def write_slowly(path: Path, content: bytes) -> None:
        if threading.current_thread() is not other:
            other.start()
            other.join(0.5)
        write_atomically(path, content)

    monkeypatch.setattr(tracking, "write_atomically", write_slowly)
    first._store_id("a")
    other.join()
    assert first._stored_ids() == {"mlflow": "a", "wandb": "b"}


def test_id_of_a_created_run_is_stored_after_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Mock()
    client.create_run.return_value.info.run_id = "first"
    client.get_run.return_value.data.params = {}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", Mock())
    exceptions = SimpleNamespace(MlflowException=type("MlflowException", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    service, lines = Mlflow(tmp_path), [Line({"event": "start", "model": "gpt"})]
    with monkeypatch.context() as full:
        error = OSError(errno.ENOSPC, "No space left on device")
        full.setattr(tracking, "write_atomically", Mock(side_effect=error))
        with pytest.raises(OSError, match="No space left on device"):
            service.write(lines)
    service.write(lines)
    assert service._stored_ids() == {"mlflow": "first"}
    assert client.create_run.call_count == 1


def test_metric_names_start_with_the_name_of_the_event() -> None:
    line = Line(
        {"event": "epoch", "epoch": 2, "epochs": 3, "step": 8, "loss": 0.5, "metrics": {"top5": 1}}
    )
    assert line.metrics == {"epoch/loss": 0.5, "epoch/top5": 1.0}
    assert line.parameters == {}
    start = Line({"event": "resume", "step": 8, "done_epochs": 1, "seed": 0, "model": "gpt"})
    assert (start.metrics, start.parameters) == ({}, {"seed": "0", "model": "gpt"})
    finished_line = Line(
        {"event": "finished", "accuracy": 0.5, "export": "/run/export", "already": False}
    )
    assert finished_line.metrics == {"finished/accuracy": 0.5}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["comet"], "track contains 'comet': use mlflow or wandb"),
        (["mlflow"], "track contains mlflow, but the package cannot be imported"),
        (["wandb"], "track contains wandb, but the package cannot be imported"),
    ],
)
def test_error_names_the_unusable_tracking_service(
    names: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FatalError, match=problem):
        track(tmp_path, names)
    assert report.listeners == []


def test_mlflow_requires_a_tracking_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", sys)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(FatalError, match="but MLFLOW_TRACKING_URI is not set"):
        track(tmp_path, ["mlflow"])


@pytest.mark.parametrize("seconds", ["10s", "", "-1", "inf", "nan", "1e9"])
def test_invalid_time_limit_is_rejected_at_the_start(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", sys)
    monkeypatch.setenv(tracking.SECONDS_VARIABLE, seconds)
    with pytest.raises(FatalError, match=f"{tracking.SECONDS_VARIABLE} is '{seconds}'"):
        track(tmp_path, ["wandb"])
    assert report.listeners == []


def test_run_with_an_unusable_service_exits_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("RUN_TRACK", "wandb")
    with pytest.raises(SystemExit) as exit_error, Run(1, tmp_path / "mine"):
        pytest.fail("the run was trained")
    assert exit_error.value.code == exit_codes.BAD_INPUT


def test_no_service_is_imported_by_default(tmp_path: Path) -> None:
    with Run(1, tmp_path) as run:
        run.resume(print)
        assert report.listeners == []
    code = "import sys, workload.tracking; sys.exit(bool({'mlflow', 'wandb'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
