"""The launcher for accelerate, which preserves exit codes."""

import signal
from pathlib import Path

import pytest

from tests.training.programs import Program, start, until
from workload import exit_codes

PLAIN = ("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
TWO = ("--multi_gpu", "--num_processes=2", "--main_process_port=0", *PLAIN)
ONE = ("--cpu", "--num_processes=1", *PLAIN)


def launch(options: tuple[str, ...], script: str, output: Path) -> Program:
    """Launch a shell script, which accelerate treats like any other program."""
    arguments = [*options, "--no_python", "sh", "-c", script]
    return start("training.launch_accelerate", arguments, {}, output)


@pytest.mark.parametrize("options", [ONE, TWO])
def test_launcher_exits_with_the_exit_code_of_its_processes(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    launcher = launch(options, "exit 64", tmp_path / "output")
    assert launcher.exit_code() == exit_codes.BAD_INPUT, launcher.text
    assert "Traceback" not in launcher.text


@pytest.mark.parametrize("options", [ONE, TWO])
def test_launcher_forwards_sigterm_and_waits_for_its_processes(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    # torchrun does not forward a signal to processes that it is still starting.
    saves = "trap 'echo saved; exit 75' TERM; sleep 1; echo ready; while :; do sleep 0.1; done"
    launcher = launch(options, saves, tmp_path / "output")
    processes = 2 if options == TWO else 1
    until(lambda: launcher.text.count("ready\n") == processes)
    launcher.signal(signal.SIGTERM)
    assert launcher.exit_code() == exit_codes.INTERRUPTED, launcher.text
    assert launcher.text.count("saved\n") == processes


def test_unsupported_accelerate_options_are_reported(tmp_path: Path) -> None:
    launcher = launch(("--multi_gpu", "--num_processes=1", *PLAIN), "true", tmp_path / "output")
    assert launcher.exit_code() == exit_codes.BAD_INPUT
    assert "accelerate launch rejected its options: You need to use at least 2" in launcher.text
