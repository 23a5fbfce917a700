"""The program under mpirun, torchrun and accelerate, which start new interpreters."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.training.programs import SAVING, SLOWLY, arguments, digest, free_port, saved, until
from tests.training.test_accelerate import TWO
from training.checkpoints import storage
from workload import exit_codes, files
from workload.manifest import read_manifest

FLAGS = ["--model=digits-net", "--dataset=digits", "--epochs=1"]


@contextmanager
def running(output: Path, module: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, and kill it at the end."""
    command = [sys.executable, "-m", module, *options]
    with output.open("wb") as file, subprocess.Popen(command, stdout=file) as process:
        try:
            yield process
        finally:
            process.kill()


def test_torchrun_restarts_a_killed_process(tmp_path: Path) -> None:
    once, output = "--epochs=1", tmp_path / "output"
    options = ["--nproc-per-node=1", "--max-restarts=1", f"--master-port={free_port()}"]
    options += ["-m", "training", *arguments(tmp_path / "run", SLOWLY, once, SAVING)]
    undisturbed = arguments(tmp_path / "whole", once)
    with (
        running(output, "training.launch", *options) as launcher,
        running(tmp_path / "other", "training", *undisturbed) as undisturbed_run,
    ):
        until(lambda: output.read_text().count('"event": "step"') >= 6)
        psutil.Process(launcher.pid).children()[-1].kill()
        assert launcher.wait(800) == exit_codes.DONE, output.read_text()
        assert undisturbed_run.wait(800) == exit_codes.DONE
    lines = (line for line in output.read_text().splitlines() if line.startswith("{"))
    [resumed] = [event for event in map(json.loads, lines) if event["event"] == "resume"]
    assert resumed["step"] >= 2
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_an_elastic_gang_continues_with_the_remaining_nodes(tmp_path: Path) -> None:
    port, run_dir = free_port(), tmp_path / "run"
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run"]
    options += ["--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=2"]
    options += ["-m", "training", *arguments(run_dir, SLOWLY, SAVING, "--peer-timeout=20")]
    outputs = [tmp_path / "one", tmp_path / "other"]
    # Both nodes start at the same time, to import PyTorch and join before last_call_timeout.
    with (
        running(outputs[0], "training.launch", *options) as first,
        running(outputs[1], "training.launch", *options) as second,
    ):
        until(lambda: any('"processes": 2' in output.read_text() for output in outputs))
        until(lambda: saved(run_dir))
        # One node hosts the rendezvous; the other node is killed.
        launchers = [first, second]
        (kept,) = (place for place, each in enumerate(launchers) if listens(each.pid, port))
        lost = psutil.Process(launchers[1 - kept].pid)
        for process in [*lost.children(), lost]:
            process.kill()
        assert launchers[kept].wait(800) == exit_codes.DONE
    assert '"event": "resume"' in outputs[kept].read_text()
    assert read_manifest(run_dir / "export").metrics["accuracy"] > 0.9


def listens(pid: int, port: int) -> bool:
    connections = psutil.Process(pid).net_connections("tcp")
    return any(one.laddr.port == port and one.status == "LISTEN" for one in connections)


def test_accelerate_starts_the_same_program_with_two_processes(tmp_path: Path) -> None:
    options = [*TWO, "-m", "training", *arguments(tmp_path / "run"), "--device=cpu"]
    output = tmp_path / "output"
    with running(output, "accelerate.commands.launch", *options) as launcher:
        assert launcher.wait(800) == exit_codes.DONE, output.read_text()
    events = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    assert (events[0]["event"], events[-1]["event"]) == ("start", "finished")
    assert events[0]["processes"] == 2
    assert events[-1]["accuracy"] > 0.5


@pytest.mark.parametrize("wrapper", ["no wrapper", "script that sets the ranks"])
def test_gang_started_by_mpirun_trains(wrapper: str, tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun of Open MPI is not installed (Debian: openmpi-bin)")
    program = [sys.executable, "-m", "training", *FLAGS, f"--run-dir={tmp_path / 'run'}"]
    if wrapper != "no wrapper":
        ranks = "export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
        program = ["sh", "-c", f'{ranks}; exec "$@"', "sh", *program]
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ended = subprocess.run(
        [mpirun, *options, *program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ended.returncode == exit_codes.DONE, ended.stdout + ended.stderr
    [path] = files.list_checkpoints(tmp_path / "run/checkpoints")
    seal = storage.read_seal(path)
    assert isinstance(seal, storage.Seal)
    assert seal.processes == 2
