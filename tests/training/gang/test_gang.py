"""Gangs of two real processes with gloo."""

import json
import signal
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
SAVING = "--checkpoint-steps=2"


def stepping(gang: list[Program]) -> None:
    """Wait until a gang that logs every step has computed one."""
    gang[0].says('"event": "step"')


def saved(run_dir: Path) -> bool:
    """Return whether there is a complete checkpoint."""
    return any((run_dir / "checkpoints").glob("step-*"))


def arguments(run_dir: Path, *more: str) -> list[str]:
    return [*SETTINGS, f"--run-dir={run_dir}", "--log-every=1", *more]


def finish(gang: list[Program]) -> list[int]:
    return [program.exit_code() for program in gang]


def digest(run_dir: Path) -> str:
    return read_manifest(run_dir / "export").weights.sha256


@pytest.fixture(scope="module")
def never_interrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the weights of a gang that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(start_gang(arguments(folder / "run"), 2, folder)) == [0, 0]
    return digest(folder / "run")


def test_sigterm_to_one_rank_stops_the_gang_which_resumes_with_equal_weights(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "first")
    stepping(gang)
    gang[1].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    gang[0].says('"event": "interrupted"')
    again = start_gang(arguments(run_dir), 2, tmp_path / "second")
    assert finish(again) == [0, 0]
    again[0].says('"event": "resume"')
    assert digest(run_dir) == never_interrupted


def test_a_killed_rank_ends_the_gang_which_resumes_with_equal_weights(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    unused = "--peer-timeout=600"  # the loss of the connection is noticed earlier
    gang = start_gang(arguments(run_dir, SLOWLY, SAVING, unused), 2, tmp_path / "first")
    until(lambda: saved(run_dir))
    gang[1].signal(signal.SIGKILL)
    assert gang[0].exit_code(seconds=180) == exit_codes.FAILED
    gang[0].says("lost connection to another rank")
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == never_interrupted


def test_a_stopped_rank_ends_the_others_after_the_peer_timeout(tmp_path: Path) -> None:
    gang = start_gang(arguments(tmp_path / "run", SLOWLY, "--peer-timeout=3"), 2, tmp_path)
    stepping(gang)
    gang[1].signal(signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        # Less than the default of sixty seconds.
        assert gang[0].exit_code(seconds=50) == exit_codes.FAILED
        assert time.monotonic() - stopped > 2
    finally:
        gang[1].signal(signal.SIGKILL)


def test_a_hanging_step_dumps_all_stacks_and_the_gang_resumes_with_equal_weights(
    tmp_path: Path, never_interrupted: str
) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY, SAVING, "--hang-timeout=4"), 2, tmp_path / "first")
    until(lambda: saved(run_dir))
    gang[1].signal(signal.SIGSTOP)
    try:
        assert gang[0].exit_code(seconds=180) == exit_codes.HUNG
    finally:
        gang[1].signal(signal.SIGKILL)
    gang[0].says("no step for 4 seconds")
    assert "Thread 0x" in gang[0].text
    assert "train.py" in gang[0].text
    assert finish(start_gang(arguments(run_dir), 2, tmp_path / "second")) == [0, 0]
    assert digest(run_dir) == never_interrupted


def test_a_run_resumes_with_another_number_of_processes(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    gang = start_gang(arguments(run_dir, SLOWLY), 2, tmp_path / "two")
    stepping(gang)
    gang[0].signal(signal.SIGTERM)
    assert finish(gang) == [exit_codes.INTERRUPTED] * 2
    [alone] = start_gang(arguments(run_dir), 1, tmp_path / "one")
    assert alone.exit_code() == exit_codes.DONE
    assert read_manifest(run_dir / "export").metrics["accuracy"] > 0.9


def launch(output: Path, *arguments: str) -> Program:
    """Start torchrun; the processes that it starts are new interpreters."""
    return start("training.launch", list(arguments), {}, output)


def test_the_launcher_exits_with_the_code_of_its_processes(tmp_path: Path) -> None:
    saves = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    options = ["--nproc-per-node=2", f"--master-port={free_port()}", "--no-python"]
    launcher = launch(tmp_path / "output", *options, "sh", "-c", saves)
    until(lambda: launcher.text.count("ready\n") == 2)
    for process in psutil.Process(launcher.process.pid).children():
        process.terminate()
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text


def test_the_launcher_restarts_a_killed_process(tmp_path: Path) -> None:
    once = "--epochs=1"
    [whole] = start_gang(arguments(tmp_path / "whole", once), 1, tmp_path / "alone")
    options = ["--nproc-per-node=1", "--max-restarts=1", f"--master-port={free_port()}"]
    flags = arguments(tmp_path / "run", SLOWLY, once, SAVING)
    launcher = launch(tmp_path / "output", *options, "-m", "training", *flags)
    until(lambda: launcher.text.count('"event": "step"') >= 6)
    psutil.Process(launcher.process.pid).children()[-1].kill()
    assert launcher.exit_code() == exit_codes.DONE, launcher.text
    said = [json.loads(line) for line in launcher.text.splitlines() if line.startswith("{")]
    [resumed] = [event for event in said if event["event"] == "resume"]
    assert 2 <= resumed["step"] <= 8
    assert whole.exit_code() == exit_codes.DONE
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_an_elastic_gang_continues_with_the_remaining_nodes(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "training.launch", "--nnodes=1:2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run"]
    command += ["--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=2"]
    command += ["--max-restarts=3", "-m", "training"]
    command += arguments(tmp_path / "run", SLOWLY, SAVING, "--peer-timeout=20")

    def node(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as output:
            return subprocess.Popen(command, stdout=output)

    outputs = [tmp_path / "one", tmp_path / "other"]
    # Started at once, both take as long to import PyTorch, and meet before the last call ends.
    launchers = [node(output.name) for output in outputs]
    try:
        until(lambda: any('"processes": 2' in output.read_text() for output in outputs))
        until(lambda: saved(tmp_path / "run"))
        # One of them serves the rendezvous, and is not the one that is lost.
        (kept,) = (place for place, one in enumerate(launchers) if listens(one.pid, port))
        lost = psutil.Process(launchers[1 - kept].pid)
        for process in [*lost.children(), lost]:
            process.kill()
        assert launchers[kept].wait(180) == exit_codes.DONE
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert '"event": "resume"' in outputs[kept].read_text()
    assert read_manifest(tmp_path / "run" / "export").metrics["accuracy"] > 0.9


def listens(pid: int, port: int) -> bool:
    connections = psutil.Process(pid).net_connections("tcp")
    return any(one.laddr.port == port and one.status == "LISTEN" for one in connections)
