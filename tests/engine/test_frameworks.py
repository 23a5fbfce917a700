"""Programs of several frameworks with workload.run: stopped, killed, resumed and exported."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.environments import environment
from tests.training.programs import free_port, until
from workload import exit_codes, progress

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/frameworks"
STEPS = {"plain": 3000, "accelerated": 800, "huggingface": 400}
"""Enough to be stopped and killed before the end."""


@dataclass
class Launched:
    """Two processes of an example, started as in a job."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text()

    def exit_code(self) -> int:
        return self.process.wait(timeout=240)

    def says(self, text: str) -> None:
        until(lambda: text in self.text or self.process.poll() is not None)
        assert text in self.text, self.text


def launch(example: str, run_dir: Path, output: Path) -> Launched:
    python = str(environment("hugging-face", inherits=True)) if example == "huggingface" else ""
    options = [f"--master-port={free_port()}", "--nproc-per-node=2"]
    program = [str(EXAMPLES / f"{example}.py"), str(STEPS[example])]
    # PYTHONPATH is as in the training image.
    more = {"RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [python or sys.executable, "-m", "training.launch", *options, *program],
            env={**os.environ, **more},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    return Launched(process, output)


@pytest.fixture
def launched() -> Iterator[list[Launched]]:
    """Everything that a test has launched; what still runs at its end is killed."""
    found: list[Launched] = []
    yield found
    for one in found:
        if one.process.poll() is None:
            for process in psutil.Process(one.process.pid).children(recursive=True):
                process.kill()
            one.process.kill()
            one.process.wait()


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", STEPS)
def test_a_stopped_and_killed_run_has_the_weights_of_an_undisturbed_one(
    example: str, tmp_path: Path, launched: list[Launched]
) -> None:
    def start(run_dir: Path, output: str) -> Launched:
        launched.append(launch(example, run_dir, tmp_path / output))
        return launched[-1]

    whole = start(tmp_path / "whole", "whole-output")
    assert whole.exit_code() == exit_codes.DONE, whole.text

    run_dir = tmp_path / "parts"
    stopped = start(run_dir, "stopped")
    stopped.says('"step": 30,')
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.exit_code() == exit_codes.INTERRUPTED, stopped.text
    stopped.says('"event": "interrupted"')

    killed = start(run_dir, "killed")
    until(
        lambda: any((run_dir / "checkpoints").glob("step-*00")) or killed.process.poll() is not None
    )
    assert killed.process.poll() is None, killed.text
    psutil.Process(killed.process.pid).children()[-1].kill()
    assert killed.exit_code() not in (exit_codes.DONE, exit_codes.INTERRUPTED), killed.text

    resumed = start(run_dir, "resumed")
    assert resumed.exit_code() == exit_codes.DONE, resumed.text
    events = [event for event in map(progress.parse, resumed.text.splitlines()) if event]
    assert isinstance(events[0], progress.Started)
    assert events[0].event == "resume"
    assert events[0].step >= 100
    assert isinstance(events[-1], progress.Finished)
    if example == "huggingface":
        both = [f"rng_state_{rank}.pth" for rank in range(2)]
        assert all(any(run_dir.glob(f"checkpoints/*/{name}")) for name in both), "not in parallel"
    expected, found = weights(tmp_path / "whole"), weights(run_dir)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
