"""The training program under a real mpirun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.programs import free_port
from training.checkpoints import storage
from workload import exit_codes, files

FLAGS = ["--model=digits-net", "--dataset=digits", "--epochs=1"]


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
