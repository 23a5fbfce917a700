"""Gangs of two real processes with gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.training.programs import Program, free_port, start, start_gang, until
from workload import exit_codes
from workload.manifest import read_manifest

SETTINGS = ["--model=digits-net", "--dataset=synthetic", "--epochs=2", "--batch-size=64"]
SETTINGS += ["--learning-rate=0.01"]
SLOWLY = "--step-delay=0.1"


def arguments(run_dir: Path, *more: str) -> list[str]:
    return [*SETTINGS, f"--run-dir={run_dir}", "--checkpoint-every=1", *more]


def finish(gang: list[Program]) -> list[int]:
    return [program.exit_code() for program in gang]


def digest(run_dir: Path) -> str:
    return read_manifest(run_dir / "export").weights.sha256


@pytest.fixture(scope="module")
def never_interrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the weights of a gang that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(start_gang(arguments(folder / "run"), 2, folder)) == [0, 0]
    return digest(folder / "run")


def test_a_gang_stops_together_when_one_rank_is_asked_to_and_goes_on_exactly(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "first")
    gang[0].says('"event": "start"')
    time.sleep(1)
    gang[1].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    gang[0].says('"event": "interrupted"')
    again = start_gang(arguments(run_dir), 2, tmp_path / "second")
    assert finish(again) == [0, 0]
    again[0].says('"event": "resume"')
    assert digest(run_dir) == never_interrupted


def test_a_killed_rank_ends_the_others_soon_and_the_gang_goes_on_exactly(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    patiently = "--peer-timeout=600"  # it is not by this that the loss is noticed
    gang = start_gang(arguments(run_dir, SLOWLY, patiently), 2, tmp_path / "first")
    gang[0].says('"epoch": 1')
    until(lambda: any((run_dir / "checkpoints").glob("step-*")))
    gang[1].signal(signal.SIGKILL)
    assert gang[0].exit_code(seconds=180) == exit_codes.FAILED
    gang[0].says("lost connection to another rank")
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == never_interrupted


def test_a_silent_rank_ends_the_others_after_the_peer_timeout(tmp_path: Path) -> None:
    gang = start_gang(arguments(tmp_path / "run", SLOWLY, "--peer-timeout=5"), 2, tmp_path)
    gang[0].says('"event": "start"')
    time.sleep(1)
    gang[1].signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        # Less than the default of sixty seconds.
        assert gang[0].exit_code(seconds=50) == exit_codes.FAILED
        assert time.monotonic() - stopped > 3
    finally:
        gang[1].signal(signal.SIGKILL)


def test_a_stopped_step_ends_as_hung_with_all_stacks_and_the_gang_goes_on_exactly(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY, "--hang-timeout=8"), 2, tmp_path / "first")
    gang[0].says('"epoch": 1')
    until(lambda: any((run_dir / "checkpoints").glob("step-*")))
    gang[1].signal(signal.SIGSTOP)
    try:
        assert gang[0].exit_code(seconds=180) == exit_codes.HUNG
    finally:
        gang[1].signal(signal.SIGKILL)
    gang[0].says("no step for 8 seconds")
    assert "Thread 0x" in gang[0].text
    assert "train.py" in gang[0].text
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == never_interrupted


def test_a_gang_of_another_size_goes_on_where_one_stopped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "two")
    gang[0].says('"epoch": 1')
    gang[0].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    [alone] = start_gang(arguments(run_dir), 1, tmp_path / "one")
    assert alone.exit_code() == exit_codes.DONE
    assert read_manifest(run_dir / "export").metrics["accuracy"] > 0.9


def launch(output: Path, *arguments: str) -> Program:
    """Start torchrun; the processes that it starts are new interpreters."""
    return start("training.launch", list(arguments), {}, output)


def test_the_launcher_ends_with_the_code_of_its_processes(tmp_path: Path) -> None:
    saves = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    options = ["--nproc-per-node=2", f"--master-port={free_port()}", "--no-python"]
    launcher = launch(tmp_path / "output", *options, "sh", "-c", saves)
    until(lambda: launcher.text.count("ready\n") == 2)
    for process in psutil.Process(launcher.process.pid).children():
        process.terminate()
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text


def test_a_killed_process_is_started_again_by_the_launcher(tmp_path: Path) -> None:
    once = "--epochs=1"
    [whole] = start_gang(arguments(tmp_path / "whole", once), 1, tmp_path / "alone")
    options = ["--nproc-per-node=1", "--max-restarts=1", f"--master-port={free_port()}"]
    flags = arguments(tmp_path / "run", SLOWLY, once, "--checkpoint-steps=2", "--log-every=1")
    launcher = launch(tmp_path / "output", *options, "-m", "training", *flags)
    until(lambda: launcher.text.count('"event": "step"') >= 6)
    psutil.Process(launcher.process.pid).children()[-1].kill()
    assert launcher.exit_code() == exit_codes.DONE, launcher.text
    said = [json.loads(line) for line in launcher.text.splitlines() if line.startswith("{")]
    [resumed] = [event for event in said if event["event"] == "resume"]
    assert 2 <= resumed["step"] <= 8
    assert whole.exit_code() == exit_codes.DONE
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_an_elastic_gang_goes_on_with_the_nodes_that_are_left(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "training.launch", "--nnodes=1:2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run"]
    command += ["--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=2"]
    command += ["--max-restarts=3", "-m", "training"]
    command += arguments(tmp_path / "run", SLOWLY, "--checkpoint-steps=2", "--peer-timeout=20")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def node(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as output:
            return subprocess.Popen(command, stdout=output, env=environment)

    first = node("first")
    # Who comes first keeps the addresses, and is not the one that is lost.
    until(lambda: reachable(port))
    second = node("second")
    try:
        said = [tmp_path / "first", tmp_path / "second"]
        until(lambda: any('"processes": 2' in path.read_text() for path in said))
        until(lambda: any((tmp_path / "run/checkpoints").glob("step-*")))
        for process in [*psutil.Process(second.pid).children(), psutil.Process(second.pid)]:
            process.kill()
        assert first.wait(180) == exit_codes.DONE
    finally:
        for launcher in (first, second):
            launcher.kill()
            launcher.wait()
    assert '"event": "resume"' in said[0].read_text()
    assert read_manifest(tmp_path / "run" / "export").metrics["accuracy"] > 0.9


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
