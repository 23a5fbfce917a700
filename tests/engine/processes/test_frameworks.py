"""Programs of several frameworks with workload.run: stopped, killed, resumed and exported."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.training.programs import Program, free_port, start_gang, until
from tools.environments import environment
from workload import exit_codes, progress

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples/frameworks"
STEPS = {"plain": 1200, "accelerated": 400, "huggingface": 220, "with_lightning": 800}
"""Number of steps; enough for a run to be stopped and killed before its end."""

ENVIRONMENTS = {"huggingface": "hugging-face", "with_lightning": "lightning"}
"""Examples with additional packages, which tests/operators/test_frameworks.py runs."""


class Gang(Protocol):
    """Two processes of an example."""

    @property
    def text(self) -> str: ...

    def exit_code(self) -> int: ...

    def stop(self) -> None: ...

    def kill_one(self) -> None: ...


@dataclass
class Launched:
    """Processes in a separate environment, started by the launcher as in a job."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text()

    def exit_code(self) -> int:
        return self.process.wait(timeout=800)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill_one(self) -> None:
        psutil.Process(self.process.pid).children()[-1].kill()

    def end(self) -> None:
        """Kill the remaining processes."""
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
            self.process.kill()
            self.process.wait()


@dataclass
class Forked:
    """Processes forked from a server that has already imported the test's packages."""

    ranks: list[Program]

    @property
    def text(self) -> str:
        return self.ranks[0].text

    def exit_code(self) -> int:
        codes = [rank.exit_code() for rank in self.ranks]
        return codes[0]

    def stop(self) -> None:
        for rank in self.ranks:
            rank.signal(signal.SIGTERM)

    def kill_one(self) -> None:
        self.ranks[1].signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the remaining processes."""
        for rank in self.ranks:
            rank.process.kill()


def launch(example: str, run_dir: Path, output: Path) -> Launched:
    python = str(environment(ENVIRONMENTS[example], inherits=True))
    options = [f"--master-port={free_port()}", "--nproc-per-node=2"]
    program = [str(EXAMPLES / f"{example}.py"), str(STEPS[example])]
    # PYTHONPATH is as in the training image.
    more = {"RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [python, "-m", "training.launch", *options, *program],
            env={**os.environ, **more},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    return Launched(process, output)


def fork(example: str, run_dir: Path, output: Path) -> Forked:
    program, steps = f"examples.frameworks.{example}", [str(STEPS[example])]
    output.mkdir()
    return Forked(start_gang(steps, 2, output, program, {"RUN_DIR": str(run_dir)}))


Started = list[Launched | Forked]


@pytest.fixture
def started() -> Iterator[Started]:
    """List of the processes that a test has started; they are killed at its end."""
    found: Started = []
    yield found
    for gang in found:
        gang.end()


def await_output(gang: Gang, text: str) -> None:
    until(lambda: text in gang.text)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


@pytest.mark.parametrize("example", sorted(STEPS.keys() - ENVIRONMENTS.keys()))
def test_stopped_and_killed_run_ends_with_the_weights_of_an_undisturbed_run(
    example: str, tmp_path: Path, started: Started
) -> None:
    check_resumption(example, tmp_path, started)


def check_resumption(example: str, tmp_path: Path, started: Started) -> None:
    """Check that a stopped, killed and resumed example has the weights of an undisturbed run."""

    def start(run_dir: Path, output: str) -> Gang:
        begin = launch if example in ENVIRONMENTS else fork
        gang = begin(example, run_dir, tmp_path / output)
        started.append(gang)
        return gang

    whole = start(tmp_path / "whole", "whole-output")
    assert whole.exit_code() == exit_codes.DONE, whole.text

    run_dir = tmp_path / "parts"
    stopped = start(run_dir, "stopped")
    await_output(stopped, '"step": 30,')
    stopped.stop()
    assert stopped.exit_code() == exit_codes.INTERRUPTED, stopped.text
    assert '"event": "interrupted"' in stopped.text

    killed = start(run_dir, "killed")
    until(lambda: any((run_dir / "checkpoints").glob("step-*00")))
    killed.kill_one()
    assert killed.exit_code() not in (exit_codes.DONE, exit_codes.INTERRUPTED), killed.text

    resumed = start(run_dir, "resumed")
    assert resumed.exit_code() == exit_codes.DONE, resumed.text
    events = [event for event in map(progress.parse, resumed.text.splitlines()) if event]
    assert isinstance(events[0], progress.Started)
    assert events[0].event == "resume"
    assert events[0].step >= 100
    assert isinstance(events[-1], progress.Finished)

    # A process can also be killed between its last step and the end of the export.
    shutil.rmtree(run_dir / "export")
    exporting = start(run_dir, "exporting")
    assert exporting.exit_code() == exit_codes.DONE, exporting.text
    assert '"event": "step"' not in exporting.text
    assert '"event": "checkpoint"' not in exporting.text
    if example == "huggingface":
        both = [f"rng_state_{rank}.pth" for rank in range(2)]
        assert all(any(run_dir.glob(f"checkpoints/*/{name}")) for name in both), "not in parallel"
    expected, found = weights(tmp_path / "whole"), weights(run_dir)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
