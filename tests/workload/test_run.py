"""The library for any program, in one process and in a gang."""

import json
import math
import os
import signal
import socket
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

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


def write(folder: Path) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    (folder / f"rank-{rank}").write_text("state")


def never(folder: Path) -> None:
    raise AssertionError(f"unexpected checkpoint {folder}")


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_a_run_resumes_from_its_newest_checkpoint_and_keeps_a_few(tmp_path: Path) -> None:
    with Run(6, tmp_path) as run:
        assert run.resume(never) == 0
        for step in range(1, 6):
            run.step(step, 0.5, write, due=True)
    assert names(tmp_path) == ["step-00000004", "step-00000005"]
    (tmp_path / "checkpoints/.step-00000006.tmp").mkdir()
    loaded: list[Path] = []
    with Run(6, tmp_path) as run:
        assert run.newest == tmp_path / "checkpoints/step-00000005"
        assert run.resume(loaded.append) == run.resume() == 5
    assert loaded == [tmp_path / "checkpoints/step-00000005"]
    assert names(tmp_path) == ["step-00000004", "step-00000005"]


def test_without_progress_lines_the_last_step_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(3, tmp_path, log_every=0) as run:
        for step in range(run.resume() + 1, 4):
            run.step(step, 0.5, never)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == [3]


def test_lines_of_progress_are_those_that_the_platform_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(4, tmp_path, log_every=2) as run:
        run.resume(never)
        for step in range(1, 5):
            # With a graph, which must not outlive the step.
            run.step(step, torch.ones((), requires_grad=True) / 2, write, due=step == 2)
        run.finish(write, {"accuracy": 0.9})
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
def test_a_signal_saves_and_exits_as_interrupted(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)

    def train() -> None:
        with Run(9, tmp_path) as run:
            run.resume(never)
            run.step(1, 0.5, never)
            os.kill(os.getpid(), number)
            run.step(2, 0.5, write)

    with pytest.raises(SystemExit) as ended:
        train()
    assert signal.getsignal(number) is before
    assert ended.value.code == exit_codes.INTERRUPTED
    assert names(tmp_path) == ["step-00000002"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"event": "interrupted", "step": 2}


def test_a_second_ctrl_c_ends_only_a_process_that_torchrun_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        with Run(9, tmp_path) as run:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            run.step(1, 0.5, write)

    with pytest.raises(KeyboardInterrupt):
        train()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == exit_codes.INTERRUPTED


def test_a_finished_run_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run(1, tmp_path) as run:
        run.finish(write, {})
    with pytest.raises(SystemExit) as ended, Run(1, tmp_path):
        pytest.fail("it trained again")
    assert ended.value.code == exit_codes.DONE
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already"] is True


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (FatalError("no data"), exit_codes.BAD_INPUT, "FatalError: no data"),
        (RuntimeError("lost peer"), exit_codes.FAILED, "RuntimeError: lost peer"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: Exception,
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, Run(1, tmp_path):
        raise error
    assert ended.value.code == code
    event = progress.parse(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(event, progress.Failed)
    assert (event.message, event.exit_code) == (message, code)


def test_a_nan_loss_is_fatal_and_not_saved(tmp_path: Path) -> None:
    def train() -> None:
        with Run(9, tmp_path) as run:
            run.step(1, 0.5, write, due=True)
            run.step(2, torch.tensor(torch.nan), never, due=True)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == exit_codes.BAD_INPUT
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["step-00000001"]


def test_a_checkpoint_that_cannot_be_written_replaces_none(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "half").write_text("state")
        raise OSError("No space left on device")

    def train() -> None:
        with Run(9, tmp_path, keep=1) as run:
            run.step(1, 0.5, write, due=True)
            run.step(2, 0.5, full, due=True)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == exit_codes.FAILED
    with Run(9, tmp_path) as run:
        assert run.resume(lambda folder: None) == 1


def test_metrics_have_the_names_of_the_alerts(tmp_path: Path) -> None:
    port = free_port()
    with Run(9, tmp_path / "run-1", metrics_port=port) as run:
        run.resume(never)
        for step in (1, 2):
            run.step(step, torch.tensor(0.25), write, due=step == 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert found['training_info{run="run-1"}'] == "1"
    assert (found["training_step"], found["training_checkpoint_step"]) == ("2.0", "1.0")
    assert (found["training_loss"], found["training_step_seconds_count"]) == ("0.25", "2.0")
    assert 0 < float(found["training_step_seconds_sum"]) < 60


def test_a_client_that_sends_nothing_does_not_block_the_metrics(tmp_path: Path) -> None:
    port = free_port()
    with (
        Run(9, tmp_path, metrics_port=port),
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer,
    ):
        assert answer.status == 200


def test_a_port_in_use_is_fatal(tmp_path: Path) -> None:
    port = free_port()
    with Run(9, tmp_path, metrics_port=port), pytest.raises(SystemExit) as ended:
        Run(9, tmp_path, metrics_port=port).__enter__()
    assert ended.value.code == exit_codes.BAD_INPUT


def test_an_export_is_read_by_the_model_server(tmp_path: Path) -> None:
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
    found = load_network(tmp_path / "mine/export", manifest).state_dict()
    assert all(torch.equal(found[name], value) for name, value in network.state_dict().items())


def exit_of(
    folder: Path, loss: Callable[[int, int], float], log_every: int, world: World
) -> tuple[int, int]:
    """Return the exit code and the last step of a run; `loss` is called with rank and step."""
    code, last = -1, 0

    def leave(number: int) -> None:
        nonlocal code
        code = number
        raise SystemExit

    with joined(world, CPU, 60):
        patched, os._exit = os._exit, leave  # type: ignore[assignment]
        try:
            with Run(9, folder, log_every=log_every) as run:
                for step in range(1, 9):
                    last = step
                    run.step(step, loss(world.rank, step), write)
        except SystemExit:
            pass
        finally:
            os._exit = patched
    return code, last


def signalled_at_step_3(rank: int, step: int) -> float:
    if rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return 0.5


def test_sigterm_to_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    stop = partial(exit_of, tmp_path / "run", signalled_at_step_3, 10)
    assert run_gang(2, stop, tmp_path) == [(exit_codes.INTERRUPTED, 4)] * 2
    [path] = (tmp_path / "run/checkpoints").iterdir()
    assert sorted(file.name for file in path.iterdir()) == ["rank-0", "rank-1"]


def diverged_at_step_3(rank: int, step: int) -> float:
    return math.nan if rank == 0 and step == 3 else 0.5


def test_a_nan_loss_that_rank_0_logs_is_fatal_for_all_ranks_together(tmp_path: Path) -> None:
    diverge = partial(exit_of, tmp_path / "run", diverged_at_step_3, 1)
    assert run_gang(2, diverge, tmp_path) == [(exit_codes.BAD_INPUT, 4)] * 2
    assert not any((tmp_path / "run/checkpoints").glob("step-*"))
    lines = (tmp_path / "rank-0").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event.get("step") for event in events] == [1, 2, None]
    assert "the loss became nan by step 3" in events[-1]["message"]


@pytest.mark.parametrize("value", [math.nan, torch.tensor(torch.inf)])
def test_a_result_that_is_not_finite_is_fatal_and_not_exported(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, Run(1, tmp_path) as run:
        run.finish(never, {"accuracy": 0.9, "perplexity": value})
    assert ended.value.code == exit_codes.BAD_INPUT
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "metric perplexity is " in event["message"]
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("name", ["event", "export", "sha256", "already"])
def test_a_reserved_metric_name_is_fatal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, Run(1, tmp_path) as run:
        run.finish(never, {name: 0.9})
    assert ended.value.code == exit_codes.BAD_INPUT
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["message"]
    assert f"metric name {name} is reserved" in message
    assert not (tmp_path / "export").exists()


def test_results_may_be_tensors(tmp_path: Path) -> None:
    with Run(1, tmp_path) as run:
        run.finish(write, {"accuracy": torch.tensor(0.5)})
    assert json.loads((tmp_path / "export/manifest.json").read_text())["metrics"] == {
        "accuracy": 0.5
    }


def test_a_nan_loss_of_the_last_step_is_fatal(tmp_path: Path) -> None:
    def train() -> None:
        with Run(2, tmp_path) as run:
            run.step(1, 0.5, never)
            run.step(2, math.nan, never)
            run.finish(never, {})

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == exit_codes.BAD_INPUT
