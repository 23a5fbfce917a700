"""The training program itself, started by accelerate."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from training import exit_codes

TWO = ("--multi_gpu", "--num_processes=2", "--num_machines=1", "--main_process_port=0")
PLAIN = ("--mixed_precision=no", "--dynamo_backend=no")
SETTINGS = (
    "--model=digits-net",
    "--dataset=digits",
    "--epochs=2",
    "--device=cpu",
    "--learning-rate=0.01",
)


def launch(launcher: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The launcher's exit code, and what its processes said."""
    command = [sys.executable, "-m", launcher, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_accelerate_starts_the_same_program_with_two_processes(tmp_path: Path) -> None:
    program = ("-m", "training", *SETTINGS, f"--run-dir={tmp_path}")
    code, said = launch("accelerate.commands.launch", *TWO, *PLAIN, *program)
    assert (code, said[0]["event"], said[-1]["event"]) == (0, "start", "finished")
    assert said[0]["processes"] == 2
    assert said[-1]["accuracy"] > 0.5


def test_a_wish_that_only_accelerate_would_fulfil_is_refused_and_the_code_says_so(
    tmp_path: Path,
) -> None:
    program = ("-m", "training", *SETTINGS, f"--run-dir={tmp_path}")
    precision = ("--mixed_precision=bf16", "--dynamo_backend=no", "--cpu", "--num_processes=1")
    code, said = launch("training.launch_accelerate", *precision, "--num_machines=1", *program)
    assert code == exit_codes.BAD_INPUT
    assert "write --precision" in said[0]["message"]
