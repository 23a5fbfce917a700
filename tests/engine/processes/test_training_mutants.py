"""Mistakes in the mathematics of training are found by the unit tests of the mathematics."""

import os
import sys
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import pytest
import torch

from tools.bench.mutant_tests import copy_checkout

ROOT = Path(__file__).parents[3]
TESTS = ["tests/training/test_mathematics.py", "tests/training/test_parallel.py"]
PARALLEL, TRAIN = "training/parallel.py", "training/train.py"
AUTOCAST = "torch.autocast(self._device.type, self._dtype, self._dtype != torch.float32)"
MUTANTS = {
    "gradients are not clipped": (PARALLEL, "        if max_norm:", "        if False:"),
    "computes in fp32": (PARALLEL, AUTOCAST, "torch.autocast(self._device.type, enabled=False)"),
    "fsdp gathers fp32": (
        PARALLEL,
        "        if self._dtype != torch.float32:\n",
        "        if False:\n",
    ),
    "keeps all activations": (PARALLEL, "if config.activation_checkpointing:", "if False:"),
    "compiles nothing": (PARALLEL, "if config.compile:", "if False:"),
    "fsdp has one unit": (PARALLEL, "if unit is not self.model:", "if False:"),
    "compresses no gradients": (PARALLEL, 'if config.gradient_compression != "none":', "if False:"),
    "gradients are divided by the processes": (
        TRAIN,
        "(run.world.size / batch.total)",
        "(1 / batch.total)",
    ),
    "all ranks have the same dropout": (
        "training/preparation.py",
        "(config.seed, world.rank)",
        "(config.seed, 0)",
    ),
    "ignores weight decay": ("training/optimizer.py", "decay = config.weight_decay", "decay = 0.0"),
    "padding is trained on": (TRAIN, "loaded.targets)[: batch.real]", "loaded.targets)"),
    "padding is evaluated": (
        "training/evaluation.py",
        "real = loaded.batch.real",
        "real = len(loaded.batch.indices)",
    ),
}
"""The file of each mistake, the correct text and the wrong one."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the program and its tests."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    copy_checkout(ROOT, copy)
    return copy


def status(checkout: Path, output: Path) -> int:
    """Run the tests in a fork that imports the copy; return pytest's exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 3
    try:
        descriptor = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # OpenMP's threads do not exist after a fork, and the first parallel loop waits for them.
        torch.set_num_threads(1)
        os.chdir(checkout)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(checkout))
        for name in list(sys.modules):
            if name.partition(".")[0] in {"training", "workload", "tests", "conftest"}:
                del sys.modules[name]
        # A fork server of its own, which imports the copy.
        _forkserver._forkserver_pid = None  # type: ignore[attr-defined]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "unit"]
        code = int(pytest.main([*options, "--rootdir", str(checkout), *TESTS]))
    finally:
        os._exit(code)


def test_the_program_itself_passes(checkout: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert status(checkout, output) == pytest.ExitCode.OK, output.read_text()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name: str, checkout: Path, tmp_path: Path) -> None:
    file, correct, wrong = MUTANTS[name]
    original = (checkout / file).read_text()
    assert original.count(correct) == 1, f"{file} has changed: adapt this mutant"
    (checkout / file).write_text(original.replace(correct, wrong))
    output = tmp_path / "output"
    try:
        assert status(checkout, output) == pytest.ExitCode.TESTS_FAILED, output.read_text()
    finally:
        (checkout / file).write_text(original)
