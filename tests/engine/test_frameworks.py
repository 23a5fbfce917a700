"""Programs of several frameworks with workload.run: stopped, killed, resumed and exported."""

import os
import signal
import subprocess
import sys
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
STEPS = {"plain": 6000, "accelerated": 1500, "huggingface": 400}
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


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", STEPS)
def test_a_stopped_and_killed_run_has_the_weights_of_an_undisturbed_one(
    example: str, tmp_path: Path
) -> None:
    whole = launch(example, tmp_path / "whole", tmp_path / "whole-output")
    assert whole.exit_code() == exit_codes.DONE, whole.text

    run_dir = tmp_path / "parts"
    stopped = launch(example, run_dir, tmp_path / "stopped")
    stopped.says('"step": 30,')
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.exit_code() == exit_codes.INTERRUPTED, stopped.text
    stopped.says('"event": "interrupted"')

    killed = launch(example, run_dir, tmp_path / "killed")
    until(lambda: any((run_dir / "checkpoints").glob("step-*00")))
    psutil.Process(killed.process.pid).children()[-1].kill()
    assert killed.exit_code() not in (exit_codes.DONE, exit_codes.INTERRUPTED), killed.text

    resumed = launch(example, run_dir, tmp_path / "resumed")
    assert resumed.exit_code() == exit_codes.DONE, resumed.text
    events = [event for event in map(progress.parse, resumed.text.splitlines()) if event]
    assert isinstance(events[0], progress.Started)
    assert events[0].event == "resume"
    assert events[0].step >= 100
    assert isinstance(events[-1], progress.Finished)
    expected, found = weights(tmp_path / "whole"), weights(run_dir)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
