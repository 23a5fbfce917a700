"""Failures and interruptions in gangs of two real processes with gloo."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.training.custom_data import Squares
from tests.training.custom_models import Frozen
from tests.training.programs import (
    SAVING,
    SLOWLY,
    Program,
    arguments,
    digest,
    free_port,
    saved,
    start,
    start_gang,
    until,
)
from workload import exit_codes
from workload.manifest import read_manifest


def await_step(gang: list[Program]) -> None:
    """Wait until a gang that logs every step has completed its first step."""
    gang[0].await_output('"event": "step"')


def finish(gang: list[Program]) -> list[int]:
    return [program.exit_code() for program in gang]


@pytest.fixture(scope="module")
def uninterrupted_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights of an uninterrupted gang."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(start_gang(arguments(folder / "run"), 2, folder)) == [0, 0]
    return digest(folder / "run")


def test_gang_stopped_by_sigterm_to_one_rank_resumes_with_equal_weights(
    tmp_path: Path, uninterrupted_digest: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "first")
    await_step(gang)
    gang[1].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    gang[0].await_output('"event": "interrupted"')
    resumed = start_gang(arguments(run_dir), 2, tmp_path / "second")
    assert finish(resumed) == [0, 0]
    resumed[0].await_output('"event": "resume"')
    assert digest(run_dir) == uninterrupted_digest


def test_gang_ends_when_a_rank_is_killed_and_resumes_with_equal_weights(
    tmp_path: Path, uninterrupted_digest: str
) -> None:
    run_dir = tmp_path / "run"
    peer_timeout = "--peer-timeout=600"  # the lost connection is detected earlier
    gang = start_gang(arguments(run_dir, SLOWLY, SAVING, peer_timeout), 2, tmp_path / "first")
    until(lambda: saved(run_dir))
    gang[1].signal(signal.SIGKILL)
    assert gang[0].exit_code(seconds=180) == exit_codes.FAILED
    gang[0].await_output("lost connection to another rank")
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == uninterrupted_digest


def test_other_ranks_end_after_the_peer_timeout_when_a_rank_is_stopped(tmp_path: Path) -> None:
    gang = start_gang(arguments(tmp_path / "run", SLOWLY, "--peer-timeout=3"), 2, tmp_path)
    await_step(gang)
    stopped = time.monotonic()
    gang[1].signal(signal.SIGSTOP)
    try:
        # Less than the default peer timeout of 60 seconds.
        assert gang[0].exit_code(seconds=50) == exit_codes.FAILED
        assert time.monotonic() - stopped > 2
    finally:
        gang[1].signal(signal.SIGKILL)


def test_hung_gang_dumps_all_stacks_and_resumes_with_equal_weights(
    tmp_path: Path, uninterrupted_digest: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY, SAVING, "--hang-timeout=4"), 2, tmp_path / "first")
    until(lambda: saved(run_dir))
    gang[1].signal(signal.SIGSTOP)
    try:
        assert gang[0].exit_code(seconds=180) == exit_codes.HUNG
    finally:
        gang[1].signal(signal.SIGKILL)
    gang[0].await_output("no step for 4 seconds")
    assert "Thread 0x" in gang[0].text
    assert "train.py" in gang[0].text
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == uninterrupted_digest


def test_run_resumes_with_a_different_number_of_processes(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "two")
    await_step(gang)
    gang[0].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    [single] = start_gang(arguments(run_dir), 1, tmp_path / "one")
    assert single.exit_code() == exit_codes.DONE
    assert read_manifest(run_dir / "export").metrics["accuracy"] > 0.9


def test_fsdp_run_with_fewer_rows_than_processes_is_saved_and_resumed(tmp_path: Path) -> None:
    """Train a classifier of two classes with three processes, one of which has none of its rows."""
    model, data = f"{Frozen.__module__}:Frozen", f"{Squares.__module__}:Squares"
    flags = [f"--model={model}", f"--dataset={data}", "--parallel=fsdp", "--preflight=off"]
    flags.append(f"--run-dir={tmp_path / 'run'}")
    for epochs in (1, 2):
        gang = start_gang([*flags, f"--epochs={epochs}"], 3, tmp_path / str(epochs))
        assert finish(gang) == [exit_codes.DONE] * 3, gang[0].text
    gang[0].await_output('"event": "resume"')


def test_launcher_exits_with_the_exit_code_of_its_processes(tmp_path: Path) -> None:
    saves = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    options = ["--nproc-per-node=2", f"--master-port={free_port()}", "--no-python"]
    options += ["sh", "-c", saves]
    launcher = start("training.launch", options, {}, tmp_path / "output")
    until(lambda: launcher.text.count("ready\n") == 2)
    for process in psutil.Process(launcher.process.pid).children():
        process.terminate()
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text
