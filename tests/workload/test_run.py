"""The run library for custom programs, in a single process and in a gang."""

import errno
import json
import math
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from tests.training.forked_gang import run_gang
from tests.training.programs import free_port
from training.gang.distributed import joined
from training.gang.world import World
from workload import exit_codes, progress
from workload.export import load_network
from workload.manifest import read_manifest
from workload.models import build
from workload.run import FatalError, Run

CPU = torch.device("cpu")


def write_checkpoint(folder: Path) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    (folder / f"rank-{rank}").write_text("state")


def must_not_be_called(folder: Path) -> None:
    raise AssertionError(f"unexpected checkpoint {folder}")


def checkpoint_names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_run_resumes_from_its_newest_checkpoint_and_deletes_old_ones(tmp_path: Path) -> None:
    with Run(6, tmp_path) as run:
        assert run.resume(must_not_be_called) == 0
        for step in range(1, 6):
            run.step(step, 0.5, write_checkpoint, due=True)
    assert checkpoint_names(tmp_path) == ["step-00000004", "step-00000005"]
    (tmp_path / "checkpoints/.step-00000006.tmp").mkdir()
    loaded: list[Path] = []
    with Run(6, tmp_path) as run:
        assert run.newest == tmp_path / "checkpoints/step-00000005"
        assert run.resume(loaded.append) == run.resume() == 5
    assert loaded == [tmp_path / "checkpoints/step-00000005"]
    assert checkpoint_names(tmp_path) == ["step-00000004", "step-00000005"]


def test_last_step_is_reported_even_if_progress_lines_are_disabled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(3, tmp_path, log_every=0) as run:
        for step in range(run.resume() + 1, 4):
            run.step(step, 0.5, must_not_be_called)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == [3]


def test_progress_lines_can_be_parsed_by_the_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(4, tmp_path, log_every=2) as run:
        run.resume(must_not_be_called)
        for step in range(1, 5):
            # The autograd graph of the loss must be released after the step.
            run.step(step, torch.ones((), requires_grad=True) / 2, write_checkpoint, due=step == 2)
        run.finish(write_checkpoint, {"accuracy": 0.9})
    lines = capsys.readouterr().out.splitlines()
    events = [progress.parse(line) for line in lines]
    assert [event.event for event in events if event] == [
        "start",
        "step",
        "checkpoint",
        "step",
        "finished",
    ]
    assert isinstance(events[1], progress.Step)
    assert (events[1].step, events[1].done_epochs, events[1].epochs) == (2, 0.5, 1)
    assert isinstance(events[-1], progress.Finished)
    assert events[-1].accuracy == 0.9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_a_checkpoint_and_exits_as_interrupted(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(number)

    def train() -> None:
        with Run(9, tmp_path) as run:
            run.resume(must_not_be_called)
            run.step(1, 0.5, must_not_be_called)
            os.kill(os.getpid(), number)
            run.step(2, 0.5, write_checkpoint)

    with pytest.raises(SystemExit) as exit_info:
        train()
    assert signal.getsignal(number) is handler
    assert exit_info.value.code == exit_codes.INTERRUPTED
    assert checkpoint_names(tmp_path) == ["step-00000002"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"event": "interrupted", "step": 2}


def test_second_ctrl_c_kills_the_process_unless_torchrun_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        with Run(9, tmp_path) as run:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            run.step(1, 0.5, write_checkpoint)

    with pytest.raises(KeyboardInterrupt):
        train()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(SystemExit) as exit_info:
        train()
    assert exit_info.value.code == exit_codes.INTERRUPTED


def test_finished_run_exits_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(1, tmp_path) as run:
        run.finish(write_checkpoint, {})
    with pytest.raises(SystemExit) as exit_info, Run(1, tmp_path):
        pytest.fail("the finished run was trained again")
    assert exit_info.value.code == exit_codes.DONE
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already"] is True


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (FatalError("no data"), exit_codes.BAD_INPUT, "FatalError: no data"),
        (RuntimeError("lost peer"), exit_codes.FAILED, "RuntimeError: lost peer"),
    ],
)
def test_error_is_reported_in_one_line_and_sets_the_exit_code(
    error: Exception,
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info, Run(1, tmp_path):
        raise error
    assert exit_info.value.code == code
    event = progress.parse(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(event, progress.Failed)
    assert (event.message, event.exit_code) == (message, code)


@pytest.mark.parametrize(("steps", "keep"), [(0, 2), (5, 0), (5, -1)])
def test_a_run_without_steps_or_checkpoints_is_fatal(
    steps: int, keep: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info, Run(steps, tmp_path, keep=keep) as run:
        run.resume()
    assert exit_info.value.code == exit_codes.BAD_INPUT
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert message == f"FatalError: steps {steps} and keep {keep} must both be at least 1"


def test_a_nan_loss_is_fatal_and_not_saved(tmp_path: Path) -> None:
    def train() -> None:
        with Run(9, tmp_path) as run:
            run.step(1, 0.5, write_checkpoint, due=True)
            run.step(2, torch.tensor(torch.nan), must_not_be_called, due=True)

    with pytest.raises(SystemExit) as exit_info:
        train()
    assert exit_info.value.code == exit_codes.BAD_INPUT
    assert [name for name in checkpoint_names(tmp_path) if not name.startswith(".")] == [
        "step-00000001"
    ]


def test_failed_checkpoint_does_not_replace_the_previous_one(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("state")
        raise OSError("No space left on device")

    def train() -> None:
        with Run(9, tmp_path, keep=1) as run:
            run.step(1, 0.5, write_checkpoint, due=True)
            run.step(2, 0.5, fail, due=True)

    with pytest.raises(SystemExit) as exit_info:
        train()
    assert exit_info.value.code == exit_codes.FAILED
    with Run(9, tmp_path) as run:
        assert run.resume(lambda folder: None) == 1


def test_metrics_have_the_names_used_by_the_alerts(tmp_path: Path) -> None:
    port = free_port()
    with Run(9, tmp_path / "run-1", metrics_port=port) as run:
        run.resume(must_not_be_called)
        for step in (1, 2):
            run.step(step, torch.tensor(0.25), write_checkpoint, due=step == 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            text = response.read().decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert samples['training_info{run="run-1"}'] == "1"
    assert (samples["training_step"], samples["training_checkpoint_step"]) == ("2.0", "1.0")
    assert (samples["training_loss"], samples["training_step_seconds_count"]) == ("0.25", "2.0")
    assert 0 < float(samples["training_step_seconds_sum"]) < 60


def test_idle_client_does_not_block_the_metrics_server(tmp_path: Path) -> None:
    port = free_port()
    with (
        Run(9, tmp_path, metrics_port=port),
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize("in_use", [True, False])
def test_metrics_port_that_is_in_use_or_invalid_is_fatal(
    in_use: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port() if in_use else 65_536
    server = Run(9, tmp_path, metrics_port=port if in_use else 0)
    with server, pytest.raises(SystemExit) as exit_info:
        Run(9, tmp_path, metrics_port=port).__enter__()
    assert exit_info.value.code == exit_codes.BAD_INPUT
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert message.startswith(f"FatalError: metrics_port {port}: ")
    assert message.endswith("; use another port")


def test_export_can_be_loaded_by_the_model_server(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    network = build("digits-net", {}, 10, (1, 8, 8))
    with Run(1, tmp_path / "mine") as run:
        run.finish(
            lambda folder: save_file(network.state_dict(), folder / "model.safetensors"),
            {"accuracy": 0.5},
            model="digits-net",
            input_shape=[1, 8, 8],
            outputs=10,
        )
    manifest = read_manifest(tmp_path / "mine/export")
    assert (manifest.run, manifest.metrics) == ("mine", {"accuracy": 0.5})
    loaded = load_network(tmp_path / "mine/export", manifest).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in network.state_dict().items())


def run_until_exit(
    folder: Path, loss: Callable[[int, int], float], log_every: int, world: World
) -> tuple[int, int]:
    """Return the exit code and the last step of a run; `loss` is called with the rank and step."""
    code, last = -1, 0

    def record_exit(number: int) -> None:
        nonlocal code
        code = number
        raise SystemExit

    with joined(world, CPU, 60):
        patched, os._exit = os._exit, record_exit  # type: ignore[assignment]
        try:
            with Run(9, folder, log_every=log_every) as run:
                for step in range(1, 9):
                    last = step
                    run.step(step, loss(world.rank, step), write_checkpoint)
        except SystemExit:
            pass
        finally:
            os._exit = patched
    return code, last


def test_directory_that_is_not_writable_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    error = PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/checkpoints/new")
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=error))
    with pytest.raises(SystemExit) as exit_info, Run(9, tmp_path):
        pytest.fail("the run was started")
    assert exit_info.value.code == exit_codes.FAILED
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert message.startswith("PermissionError: ")
    assert str(error.filename) in message


class UploadError(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, message: str, *, response: int) -> None:
        super().__init__(message)
        self.response = response


def fail_on_rank_1(folder: Path) -> None:
    if dist.get_rank() == 1:
        raise UploadError("503 Service Unavailable", response=503)


def save_with_error(folder: Path, world: World) -> None:
    patched, os._exit = os._exit, sys.exit  # type: ignore[assignment]
    with joined(world, CPU, 60):
        try:
            with Run(9, folder) as run:
                run.save(1, fail_on_rank_1)
        except SystemExit:
            pass
        finally:
            os._exit = patched


def test_every_rank_reports_an_error_and_where_it_occurred(tmp_path: Path) -> None:
    run_gang(2, partial(save_with_error, tmp_path / "run"), tmp_path)
    for rank in range(2):
        *trace, last = (tmp_path / f"rank-{rank}").read_text().splitlines()
        assert "Raised on rank 1:" in trace
        assert any("in fail_on_rank_1" in line for line in trace)
        assert json.loads(last)["message"] == "RuntimeError: UploadError: 503 Service Unavailable"


def sigterm_at_step_3(rank: int, step: int) -> float:
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return 0.5


def test_sigterm_to_one_rank_stops_all_ranks_after_the_same_step(tmp_path: Path) -> None:
    stop = partial(run_until_exit, tmp_path / "run", sigterm_at_step_3, 10)
    assert run_gang(2, stop, tmp_path) == [(exit_codes.INTERRUPTED, 4)] * 2
    [path] = (tmp_path / "run/checkpoints").iterdir()
    assert sorted(file.name for file in path.iterdir()) == ["rank-0", "rank-1"]


def nan_loss_at_step_3(rank: int, step: int) -> float:
    return math.nan if rank == 0 and step == 3 else 0.5


def test_nan_loss_logged_by_rank_0_stops_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    diverge = partial(run_until_exit, tmp_path / "run", nan_loss_at_step_3, 1)
    assert run_gang(2, diverge, tmp_path) == [(exit_codes.BAD_INPUT, 4)] * 2
    assert not any((tmp_path / "run/checkpoints").glob("step-*"))
    lines = (tmp_path / "rank-0").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event.get("step") for event in events] == [1, 2, None]
    assert "the loss became nan at or before step 3" in events[-1]["message"]


@pytest.mark.parametrize("value", [math.nan, torch.tensor(torch.inf)])
def test_non_finite_result_is_fatal_and_not_exported(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info, Run(1, tmp_path) as run:
        run.finish(must_not_be_called, {"accuracy": 0.9, "perplexity": value})
    assert exit_info.value.code == exit_codes.BAD_INPUT
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "metric perplexity is " in event["message"]
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("name", ["event", "export", "sha256", "already"])
def test_a_reserved_metric_name_is_fatal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info, Run(1, tmp_path) as run:
        run.finish(must_not_be_called, {name: 0.9})
    assert exit_info.value.code == exit_codes.BAD_INPUT
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert f"metric name {name} is reserved" in message
    assert not (tmp_path / "export").exists()


def test_a_metric_may_have_the_name_of_a_parameter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(1, tmp_path) as run:
        run.finish(write_checkpoint, {"self": 0.5, "text": 1})
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["self"], last["text"]) == (0.5, 1)


def test_manifest_of_the_program_is_replaced_and_not_listed(tmp_path: Path) -> None:
    with Run(1, tmp_path) as run:
        run.finish(lambda folder: (folder / "manifest.json").write_text("{}"), {})
    assert json.loads((tmp_path / "export/manifest.json").read_text())["files"] == []


def test_results_may_be_tensors(tmp_path: Path) -> None:
    with Run(1, tmp_path) as run:
        run.finish(write_checkpoint, {"accuracy": torch.tensor(0.5)})
    assert json.loads((tmp_path / "export/manifest.json").read_text())["metrics"] == {
        "accuracy": 0.5
    }


def test_nan_loss_in_the_last_step_is_fatal(tmp_path: Path) -> None:
    def train() -> None:
        with Run(2, tmp_path) as run:
            run.step(1, 0.5, must_not_be_called)
            run.step(2, math.nan, must_not_be_called)
            run.finish(must_not_be_called, {})

    with pytest.raises(SystemExit) as exit_info:
        train()
    assert exit_info.value.code == exit_codes.BAD_INPUT
