"""Mutants of the mathematics of training, which the unit tests must detect."""

import gc
import importlib
import os
import sys
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo

from tools.bench.mutant_tests import copy_checkout

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TESTS = "tests/training/test_mathematics.py"
AGREES = f"{TESTS}::test_weights_and_losses_match_the_reference"
ADAPTS = "tests/training/test_lora.py::test_adapters_match_the_reference[sgd]"
PARALLEL, TRAIN, LORA = "training/parallel.py", "training/train.py", "training/lora.py"
AUTOCAST = "torch.autocast(self._device.type, self._dtype, self._dtype != torch.float32)"


class Mutant(NamedTuple):
    """A mistake in a file: the correct text, the wrong text, and the test that detects it."""

    file: str
    correct: str
    wrong: str
    test: str


MUTANTS = {
    "gradients are not clipped": Mutant(
        PARALLEL, "        if max_norm:", "        if False:", f"{AGREES}[1-sgd clip]"
    ),
    "blocks compute in fp32": Mutant(
        PARALLEL,
        AUTOCAST,
        "torch.autocast(self._device.type, enabled=False)",
        f"{TESTS}::test_blocks_compute_in_the_configured_precision",
    ),
    "fsdp gathers fp32": Mutant(
        PARALLEL,
        "        if self._dtype != torch.float32 and",
        "        if False and",
        f"{TESTS}::test_fsdp_gathers_weights_in_the_configured_precision",
    ),
    "activations are not checkpointed": Mutant(
        PARALLEL,
        "if config.activation_checkpointing:",
        "if False:",
        f"{TESTS}::test_checkpointed_activations_are_computed_twice",
    ),
    "nothing is compiled": Mutant(
        PARALLEL, "if config.compile:", "if False:", "tests/training/test_parallel.py"
    ),
    "fsdp has one unit": Mutant(
        PARALLEL,
        "if unit is not self.model:",
        "if False:",
        f"{TESTS}::test_fsdp_shards_each_block",
    ),
    "gradients are not compressed": Mutant(
        PARALLEL,
        'if config.gradient_compression != "none":',
        "if False:",
        f"{TESTS}::test_compressed_gradients_differ_from_uncompressed_ones",
    ),
    "gradients are averaged over processes": Mutant(
        TRAIN, "(run.world.size / batch.total)", "(1 / batch.total)", f"{AGREES}[2-sgd]"
    ),
    "all ranks have the same dropout": Mutant(
        "training/preparation.py",
        "(config.seed, world.rank)",
        "(config.seed, 0)",
        f"{TESTS}::test_ranks_have_different_random_numbers",
    ),
    "weight decay is ignored": Mutant(
        "training/optimizer.py",
        '"weight_decay": config.weight_decay',
        '"weight_decay": 0.0',
        f"{AGREES}[1-adamw]",
    ),
    "padding is trained on": Mutant(
        TRAIN, "loaded.targets)[: batch.real]", "loaded.targets)", f"{AGREES}[2-sgd]"
    ),
    "padding is evaluated": Mutant(
        "training/evaluation.py",
        "real = loaded.batch.real",
        "real = len(loaded.batch.indices)",
        f"{TESTS}::test_evaluation_matches_all_held_out_samples[2-sgd]",
    ),
    "adapters are not scaled": Mutant(
        LORA, "adapter(self.dropout(inputs)) * self.scale", "adapter(self.dropout(inputs))", ADAPTS
    ),
    "adapters change the wrong part": Mutant(
        LORA,
        "= outputs[self.parts.index(part)] + change",
        "= outputs[-1 - self.parts.index(part)] + change",
        ADAPTS,
    ),
    "adapted layers are trained": Mutant(
        LORA, "model.requires_grad_(requires_grad=False)", "pass", ADAPTS
    ),
    "merged weights are not scaled": Mutant(
        LORA, ".add_(second @ first, alpha=self.scale)", ".add_(second @ first)", ADAPTS
    ),
    "adapters have no dropout": Mutant(
        LORA,
        "self.dropout = nn.Dropout(lora.dropout)",
        "self.dropout = nn.Dropout(0)",
        "tests/training/test_lora.py::test_dropout_applies_only_to_the_adapter",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the program and its tests."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    copy_checkout(ROOT, copy)
    return copy


def status(checkout: Path, tests: Iterable[str], output: Path) -> int:
    """Run tests in a fork that imports the copy; return pytest's exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 3
    try:
        descriptor = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # A gang redirects file descriptors, which pytest's replacements do not have.
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        # Modules of earlier tests are deleted below. If their objects, such as sockets, were
        # garbage collected during a test, that test would fail.
        gc.freeze()
        # OpenMP's threads do not survive a fork, and the first parallel loop would wait for them.
        torch.set_num_threads(1)
        os.chdir(checkout)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(checkout))
        for name in list(sys.modules):
            if name.partition(".")[0] in {"training", "workload", "tests", "conftest"}:
                del sys.modules[name]
        # Gangs are forks of this process, which has imported the copy. A fork server would import
        # it again.
        fork_server: Any = importlib.import_module("tests.fork_server")
        fork_server.SERVER = get_context("fork")
        options = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "unit"]
        code = int(pytest.main([*options, "--rootdir", str(checkout), *tests]))
    finally:
        os._exit(code)


def test_unchanged_program_passes_the_tests(checkout: Path, tmp_path: Path) -> None:
    output, tests = tmp_path / "output", {mutant.test for mutant in MUTANTS.values()}
    assert status(checkout, tests, output) == pytest.ExitCode.OK, output.read_text()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_detected_by_its_test(name: str, checkout: Path, tmp_path: Path) -> None:
    file, correct, wrong, test = MUTANTS[name]
    original = (checkout / file).read_text()
    assert original.count(correct) == 1, f"{file} has changed: adapt this mutant"
    (checkout / file).write_text(original.replace(correct, wrong))
    output = tmp_path / "output"
    try:
        assert status(checkout, [test], output) == pytest.ExitCode.TESTS_FAILED, output.read_text()
    finally:
        (checkout / file).write_text(original)
