"""Share of mutants that the unit tests kill: `make bench-mutants`.

The `stack` target covers the builders of Kubernetes objects and the policies. The `training` target
covers the mathematics and the state of training.

A mutant is a small change to a function's body, made by one of mutmut's operators. A sample of the
mutants is drawn by a hash of their identity, so that edits elsewhere do not change the sample. The
command prints the survivors, and writes the outcomes to .bench/mutants.json and pytest's output to
.bench/mutants-N.log, one file per job (`training` target: training-mutants.json and
training-mutants-N.log). To compare two commits, `--sample FILE` repeats the mutants of an earlier
run; FILE is a copy of that run's JSON file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import libcst as cst
from libcst import matchers
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from devcluster.paths import CHECKOUT
from tools.bench.mutant_tests import Progress, Recording, copy_checkout, outcome, record, replaced
from tools.bench.outcome import DIRECTORY, Goal, conclude, print_line

SOURCES = ("infra/pods.py", "infra/kinds/*.py", "policies/*.py")
TESTS = ("tests/infra", "tests/policies", "tests/gitops", "tests/gpu_platform")
_MATHEMATICS = tuple(
    f"tests/training/test_mathematics.py::{test}[2-{case}]"
    for test in (
        "test_weights_and_losses_match_the_reference",
        "test_evaluation_matches_all_held_out_samples",
    )
    for case in ("sgd accumulate", "sgd fsdp clip", "adamw", "sgd fsdp fp16 overflow")
)
_RUNS = ("tests/training/test_train.py", "tests/training/test_divergence.py")
_RESUMPTION = (
    "tests/training/test_kills.py::test_killed_run_resumes",
    "tests/training/test_kills.py::test_gang_of_another_size",
)
_ORDER = ("tests/training/data/test_loader.py", "tests/training/data/test_data.py")
TRAINING: dict[str, tuple[str, ...]] = {
    "training/train.py": (
        "tests/training/test_evaluation.py",
        "tests/training/test_run.py",
        "tests/training/test_warm_start.py",
        "tests/training/telemetry/test_metrics.py",
        "tests/training/gang/test_gang.py::test_hung_gang",
        *_RUNS,
        *_RESUMPTION,
        *_MATHEMATICS,
    ),
    "training/run.py": ("tests/training/test_run.py", *_RUNS, *_MATHEMATICS),
    "training/parallel.py": (
        "tests/training/test_parallel.py",
        "tests/training/test_custom_models.py",
        "tests/training/test_mathematics.py::test_fsdp",
        "tests/training/test_mathematics.py::test_blocks",
        "tests/training/test_mathematics.py::test_compressed",
        "tests/training/test_mathematics.py::test_checkpointed",
        *_RESUMPTION,
        *_MATHEMATICS,
    ),
    "training/evaluation.py": (
        "tests/training/test_objective.py",
        "tests/training/test_evaluation.py",
        *_RUNS,
        *_MATHEMATICS,
    ),
    "training/objective.py": ("tests/training/test_objective.py", *_MATHEMATICS),
    "training/optimizer.py": (
        "tests/training/test_optimizer.py",
        *_RUNS,
        *_MATHEMATICS,
    ),
    "training/lora.py": ("tests/training/test_lora.py",),
    "training/data/loader.py": (*_ORDER, *_MATHEMATICS),
    "training/data/samples.py": (
        "tests/training/data/test_text.py",
        *_ORDER,
    ),
    "training/checkpoints/state.py": (
        "tests/training/test_custom_models.py",
        "tests/training/checkpoints/test_mirror.py",
        "tests/training/test_optimizer.py",
        *_RUNS,
        *_RESUMPTION,
    ),
}
"""Maps each module to the prefixes of its test IDs; see `mutant_tests`."""
SEED = 20261122
MIN_KILLED = {"stack": 0.80, "training": 0.90}
_OUTCOMES = ("killed", "timeout", "survived", "no coverage")
_NOT_MUTATED = (cst.Annotation, cst.Decorator, cst.Parameters)
_TRIVIAL_CALL = matchers.Call(func=matchers.Name("len") | matchers.Name("isinstance"))


@dataclass(frozen=True)
class Mutant:
    """Identity of a mutant, without a line number, so that edits elsewhere do not affect it."""

    file: str
    function: str
    line: str
    operator: str
    occurrence: int

    @property
    def rank(self) -> str:
        """Hash of the mutant and the seed; sorting by it yields a random, reproducible order."""
        text = json.dumps([SEED, *asdict(self).values()])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Change:
    """Change that a mutant makes to a module, and the lines of the changed statement."""

    module: cst.Module
    original: cst.CSTNode
    mutated: cst.CSTNode
    lines: range

    @property
    def text(self) -> str:
        """Source of the module with the change."""
        return cast(cst.Module, self.module.deep_replace(self.original, self.mutated)).code

    @property
    def summary(self) -> str:
        """Original and changed code on one line."""
        sides = (self.module.code_for_node(node) for node in (self.original, self.mutated))
        return " -> ".join(" ".join(side.split()) for side in sides)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module) -> None:
        super().__init__()
        self.found: dict[Mutant, Change] = {}
        self._file, self._module, self._lines = file, module, module.code.splitlines()
        self._names: list[str] = []
        self._functions = 0
        self._statement: range | None = None
        self._count: Counter[tuple[str, ...]] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _NOT_MUTATED) or matchers.matches(node, _TRIVIAL_CALL):
            return False
        if isinstance(node, cst.SimpleStatementLine):
            self._statement = self._span(node)
        if self._functions and not isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._mutate(node)
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
            self._functions += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.SimpleStatementLine):
            self._statement = None
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()
            self._functions -= isinstance(original_node, cst.FunctionDef)

    def _span(self, node: cst.CSTNode) -> range:
        found = self.get_metadata(PositionProvider, node)
        return range(found.start.line, found.end.line + 1)

    def _mutate(self, node: cst.CSTNode) -> None:
        for kind, operator in mutation_operators:
            for mutated in operator(node) if isinstance(node, kind) else ():
                lines = self._span(node)
                line = self._lines[lines.start - 1].strip()
                key = (".".join(self._names), line, operator.__name__)
                self._count[key] += 1
                mutant = Mutant(self._file, *key, self._count[key])
                change = Change(self._module, node, mutated, self._statement or lines)
                self.found[mutant] = change


def find(root: Path, file: str) -> dict[Mutant, Change]:
    """Return all mutants of the functions in a file."""
    wrapper = MetadataWrapper(cst.parse_module((root / file).read_text()))
    finder = _Finder(file, wrapper.module)
    wrapper.visit(finder)
    return finder.found


def draw(mutants: Iterable[Mutant], count: int) -> list[Mutant]:
    """Return a random sample.

    If a mutant is added to or removed from `mutants`, at most one member of the sample changes.
    """
    return sorted(mutants, key=lambda mutant: mutant.rank)[:count]


def repeated(previous: Sequence[Mutant], mutants: Iterable[Mutant]) -> list[Mutant | None]:
    """Return the mutants of an earlier sample, with None for mutants whose code no longer exists.

    A mutant in a renamed function is found if its line is unique in the file.
    """

    def without_function(mutant: Mutant) -> tuple[Any, ...]:
        return (mutant.file, mutant.line, mutant.operator, mutant.occurrence)

    exact = set(mutants)
    similar: dict[tuple[Any, ...], list[Mutant]] = {}
    for mutant in exact:
        similar.setdefault(without_function(mutant), []).append(mutant)

    def match(mutant: Mutant) -> Mutant | None:
        others = similar.get(without_function(mutant), [])
        return mutant if mutant in exact else others[0] if len(others) == 1 else None

    return [match(mutant) for mutant in previous]


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("stack", "training"), default="stack")
    parser.add_argument("--files", nargs="+", help="modules of the `training` target; default: all")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"default: {' '.join(TESTS)}")
    parser.add_argument(
        "--limit", type=int, help="maximum number of mutants; default: 300 (with --sample: all)"
    )
    parser.add_argument(
        "--sample", type=Path, help="JSON file of an earlier run; repeat its mutants"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="number of mutants that are tested at once; default: number of CPU cores",
    )
    options = parser.parse_args()
    modules = TRAINING if options.target == "training" else {}
    if options.files:
        modules = {file: TRAINING[file] for file in options.files}
    previous = _read_sample(options.sample)[: options.limit] if options.sample else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        copies = [Path(directory).resolve() / f"checkout-{job}" for job in range(options.jobs)]
        for copy in copies:
            copy_checkout(CHECKOUT, copy)
        sources = (*modules,) or SOURCES
        files = sorted(str(path.relative_to(copy)) for each in sources for path in copy.glob(each))
        mutants = {mutant: change for file in files for mutant, change in find(copy, file).items()}
        found = repeated(previous, mutants) if previous else draw(mutants, options.limit or 300)
        sample = [mutant for mutant in found if mutant]
        gone = [asdict(one) for one, now in zip(previous or (), found, strict=False) if now is None]
        changes = {each: mutants[each] for each in sample}
        results = _measure(copies, options.tests, files, modules, changes)
    counts = Counter(result["outcome"] for result in results)
    shown = ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES)
    print_line(
        f"{len(results)} of {len(mutants)} mutants were run: {shown}; "
        f"mutants of --sample that no longer exist: {len(gone)}"
    )
    killed = (counts["killed"] + counts["timeout"]) / max(1, len(results))
    samples = {
        "commit": _commit(),
        "mutantsFound": len(mutants),
        "seconds": round(time.monotonic() - began),
        "counts": {name: counts[name] for name in _OUTCOMES},
        "mutants": results,
        "gone": gone,
    }
    name = "training-mutants" if modules else "mutants"
    conclude(
        name,
        samples,
        [Goal("share of the mutants that are killed", killed, MIN_KILLED[options.target])],
    )


def _read_sample(path: Path) -> list[Mutant]:
    names = Mutant.__dataclass_fields__
    content = json.loads(path.read_text())
    listed = [*content["mutants"], *content["gone"]]
    return [Mutant(**{name: each[name] for name in names}) for each in listed]


@dataclass(frozen=True)
class _Tester:
    """Process that tests mutants in a copy of the checkout."""

    copy: Path
    log: Path
    recording: Recording
    changes: Mapping[Mutant, Change]

    @classmethod
    def start(cls, free: Any, recording: Recording, changes: Mapping[Mutant, Change]) -> None:
        """Initialize this process with a copy and a log that no other process uses."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the main process handles Ctrl-C
        global _tester
        copy, log = free.get()
        _tester = cls(copy, log, recording, changes)

    def test(self, mutant: Mutant) -> dict[str, Any]:
        """Run the tests for a mutant, and return its outcome.

        Print survivors and uncovered mutants.
        """
        began = time.monotonic()
        change = self.changes[mutant]
        chosen = self.recording.choose(mutant.file, change.lines)
        location = f"{mutant.file}:{change.lines.start} {mutant.function}: {change.summary:.200}"
        with self.log.open("a") as stream:
            stream.write(f"\n=== {location}\n")
        with replaced(self.copy / mutant.file, change.text):
            found = outcome(self.copy, chosen, self.recording, self.log)
        if found == "survived" and not self.recording.executes(mutant.file, change.lines):
            found = "no coverage"
        if found in ("survived", "no coverage"):
            print_line(f"{found}: {location}")
        seconds = round(time.monotonic() - began, 2)
        measured = {"change": change.summary[:400], "tests": len(chosen), "seconds": seconds}
        return {**asdict(mutant), **measured, "outcome": found}


_tester: _Tester


def _run_tests(mutant: Mutant) -> dict[str, Any]:
    return _tester.test(mutant)


def _measure(
    copies: Sequence[Path],
    tests: Sequence[str],
    files: Sequence[str],
    modules: Mapping[str, tuple[str, ...]],
    sample: dict[Mutant, Change],
) -> list[dict[str, Any]]:
    packages = ["hypothesis", "pydantic", "pulumi", "pulumi_kubernetes", "pulumi_policy"]
    if modules:
        packages[2:] = ["torch", "torch._dynamo", "torch.distributed.fsdp"]
        tests = sorted({each.partition("::")[0] for each in chain(*modules.values())})
    for name in packages:
        __import__(name)  # so that forks inherit the module
    DIRECTORY.mkdir(exist_ok=True)
    name = "training-mutants" if modules else "mutants"
    logs = [DIRECTORY / f"{name}-{number}.log" for number in range(1, len(copies) + 1)]
    for log in logs:
        log.write_text("=== no mutant\n")
    recording = record(copies[0], tests, files, modules, logs[0])
    if not modules:
        # The `training` target skips this step, which would take a long time. Its tests run in
        # forks, so their order does not matter.
        print_line("running the tests once more without a mutant, this time fastest first")
        ordered = recording.fastest_first(recording.seconds)
        if outcome(copies[0], ordered, recording, logs[0]) != "survived":
            sys.exit(f"a test fails without a mutant; see {logs[0]}")
    results: list[dict[str, Any]] = []
    progress = Progress("mutants", len(sample))
    context = multiprocessing.get_context("fork")
    free = context.SimpleQueue()
    for each in zip(copies, logs, strict=True):
        free.put(each)
    # The order is random, so the mutants that are tested before Ctrl-C are also a random sample.
    with (
        contextlib.suppress(KeyboardInterrupt),
        ProcessPoolExecutor(
            len(copies), context, initializer=_Tester.start, initargs=(free, recording, sample)
        ) as pool,
    ):
        try:
            for result in pool.map(_run_tests, sample):
                results.append(result)
                progress.step()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
