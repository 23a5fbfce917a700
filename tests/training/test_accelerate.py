"""The training program itself, started by accelerate, and the launcher whose exit code tells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training import exit_codes

PLAIN = ("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
TWO = ("--multi_gpu", "--num_processes=2", "--main_process_port=0", *PLAIN)
ONE = ("--cpu", "--num_processes=1", *PLAIN)
SETTINGS = ("--model=digits-net", "--dataset=digits", "--epochs=2", "--learning-rate=0.01")


def test_accelerate_starts_the_same_program_with_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelerate.commands.launch", *TWO, "-m", "training"]
    command += [*SETTINGS, "--device=cpu", f"--run-dir={tmp_path}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == exit_codes.DONE, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert (said[0]["event"], said[-1]["event"]) == ("start", "finished")
    assert said[0]["processes"] == 2
    assert said[-1]["accuracy"] > 0.5


def launcher(options: tuple[str, ...], script: str) -> list[str]:
    """Starts a shell script in place of a program: accelerate does not look into it."""
    start = (sys.executable, "-m", "training.launch_accelerate")
    return [*start, *options, "--no_python", "sh", "-c", script]


@pytest.mark.parametrize("options", [ONE, TWO])
def test_the_launcher_ends_with_the_code_of_its_processes(options: tuple[str, ...]) -> None:
    done = subprocess.run(launcher(options, "exit 64"), check=False, capture_output=True, text=True)
    assert done.returncode == exit_codes.BAD_INPUT, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [ONE, TWO])
def test_the_launcher_passes_sigterm_on_and_waits(options: tuple[str, ...]) -> None:
    # What torchrun is told while it still starts processes does not reach them.
    saves = "trap 'echo saved; exit 75' TERM; sleep 1; echo ready; while :; do sleep 0.1; done"
    said = []
    with subprocess.Popen(launcher(options, saves), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            said.append(line.strip())
            if said.count("ready") == (2 if options == TWO else 1) and "saved" not in said:
                running.terminate()
    assert running.returncode == exit_codes.INTERRUPTED
    assert said.count("saved") == said.count("ready")


def test_what_accelerate_cannot_do_is_told() -> None:
    command = launcher(("--multi_gpu", "--num_processes=1", *PLAIN), "true")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == exit_codes.BAD_INPUT
    assert "accelerate launch cannot do this: You need to use at least 2" in done.stderr
