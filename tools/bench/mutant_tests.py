"""Test runner for mutation testing.

Each mutant is tested in a fork of a process that has already imported the packages.

Tests run in a copy of the checkout. A first run records which lines each test executes. Each mutant
is then tested only with the tests that execute its lines, fastest first.

The recording lacks the lines of killed processes. The tests of modules that run in training gangs
are therefore listed explicitly. If the recording contains no test for a mutant of such a module,
all listed tests of the module are run.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from tools.bench.outcome import print_line

_OPTIONS = ["-x", "-q", "-m", "unit", "--hypothesis-seed=20261122"]
_OPTIONS += [f"-pno:{plugin}" for plugin in ("xdist", "randomly", "cacheprovider")]
# pytest warns about plugins that are already imported, and warnings are errors.
_OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
_UNCAPTURED = ["-s"]
"""Option that disables capturing.

Gangs redirect file descriptors, but pytest's captured streams have none.
"""
_MAX_MEMORY = 8 << 30
_REPORT_EVERY = 10.0
_IMPORTED = ""
"""Coverage context of lines that run during imports, outside of tests."""


@dataclass
class Recording:
    """Durations of tests, tests that execute each line, and tests that start Python processes.

    `modules` maps each file that training gangs execute to the prefixes of its test IDs.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    spawning_tests: list[str] = field(default_factory=list)
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def choose(self, file: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that execute one of the lines of a file, fastest first.

        A line that runs at import may affect any test, so all other tests are added at the end. A
        line for which no test was recorded may run in a process that a test starts. In this case,
        return the tests that start processes.
        """
        by_line = self.tests.get(file, {})
        found = {test for line in lines for test in by_line.get(line, ())}
        if file in self.modules:
            listed = {test for test in self.seconds if test.startswith(self.modules[file])}
            return self.fastest_first(listed & found or listed)
        others = self.seconds.keys() - found if _IMPORTED in found else set()
        return [
            *self.fastest_first((found or set(self.spawning_tests)) - {_IMPORTED}),
            *self.fastest_first(others),
        ]

    def executes(self, file: str, lines: Iterable[int]) -> bool:
        """Return whether a test or an import executes one of the lines of a file.

        If training gangs execute the file, return True.
        """
        return file in self.modules or any(self.tests.get(file, {}).get(line) for line in lines)

    def fastest_first(self, tests: Iterable[str]) -> list[str]:
        """Return the tests sorted by duration."""
        return sorted(tests, key=lambda test: (self.seconds[test], test))


class Progress:
    """Progress report with the estimated remaining time, printed every ten seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._printed = time.monotonic()

    def step(self, note: str = "") -> None:
        """Count one step; if a report is due, print it with `note`."""
        self._done += 1
        now = time.monotonic()
        if now - self._printed >= _REPORT_EVERY or self._done == self._total:
            left = (now - self._began) / self._done * (self._total - self._done)
            print_line(f"  {self._done}/{self._total} {self._what}, {left:.0f} s left{note}")
            self._printed = now


class _Recorder:
    """pytest plugin that records durations and sets coverage's context to the current test."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self._test = ""
        self.seconds: dict[str, float] = {}
        self.spawning_tests: set[str] = set()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and "python" in str(arguments[1]):
            self.spawning_tests.add(self._test)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._progress = Progress("tests recorded", len(session.items))
        modules = [
            each for name, each in sys.modules.items() if name.startswith(("infra", "polic"))
        ]
        values = [value for module in modules for value in vars(module).values()]
        self._caches = [value for value in values if hasattr(value, "cache_clear")]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid
        self._measured.switch_context(nodeid)
        # A function with a cached result would not run, and the recording would miss this test.
        for cache in self._caches:
            cache.cache_clear()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if report.passed else None  # no dots between progress lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.when == "teardown":
            self._progress.step()


class _Forking:
    """pytest plugin that runs each test in its own fork; tests that share a gang also share a fork.

    A process that has run training cannot fork a gang afterwards, because threads of libraries
    such as OpenMP do not survive a fork. The lines of `files` that the forks and their gangs
    execute are recorded, except those of killed processes.
    """

    def __init__(self, prefixes: tuple[str, ...] = ("",), files: Sequence[Path] = ()) -> None:
        self.seconds: dict[str, float] = {}
        self.tests: dict[str, dict[int, list[str]]] = {}
        self._prefixes = prefixes
        self._files = files

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid.startswith(self._prefixes)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        groups: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            shared = "gang" in getattr(item, "fixturenames", ())
            groups.setdefault(str(item.path) if shared else item.nodeid, []).append(item)
        progress = Progress("groups of tests", len(groups))
        for items in groups.values():
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                arguments = items, Path(folder) / "lines"
                process = multiprocessing.get_context("fork").Process(
                    target=self._run, args=arguments
                )
                process.start()
                process.join()
                self._add_lines(*arguments)
            for item in items:
                self.seconds[item.nodeid] = (time.monotonic() - began) / len(items)
            progress.step()
            if process.exitcode:
                session.testsfailed = 1
                break
        return True

    def _add_lines(self, items: Sequence[pytest.Item], written: Path) -> None:
        names = [item.nodeid for item in items]
        for path in written.parent.glob(f"{written.name}.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for file in self._files:
                by_line = self.tests.setdefault(str(file), {})
                for line in data.lines(str(file)) or ():
                    by_line[line] = [*dict.fromkeys([*by_line.get(line, ()), *names])]

    def _run(self, items: Sequence[pytest.Item], written: Path) -> None:
        if self._files:
            measured = coverage.Coverage(
                data_file=str(written),
                data_suffix=True,
                include=[str(file) for file in self._files],
            )
            measured.set_option("run:patch", ["_exit", "fork"])  # every fork saves its own lines
            measured.start()
        if torch := sys.modules.get("torch"):
            # PyTorch replaces its thread pool on first use after a fork. If two threads of a test
            # use the pool at the same time, PyTorch aborts the process.
            torch.set_num_threads(1)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                break
        sys.stdout.flush()
        os._exit(items[0].session.testsfailed > 0)


class _Selection:
    """pytest plugin that runs the selected tests in order, followed by tests the mutant adds.

    A mutant may add tests, for example by changing the values of a parameter.
    """

    def __init__(self, tests: Sequence[str], known: Iterable[str]) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._excluded = set(known) - set(tests)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = (item for item in items if item.nodeid not in self._excluded)
        items[:] = sorted(kept, key=lambda item: self._order.get(item.nodeid, len(self._order)))


def copy_checkout(checkout: Path, copy: Path) -> None:
    """Copy the files of a checkout that git does not ignore, and link its environment."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (checkout / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, copy / name)
    (copy / ".venv").symlink_to(sys.prefix)


def record(
    copy: Path,
    tests: Sequence[str],
    files: Sequence[str],
    modules: Mapping[str, tuple[str, ...]],
    log: Path,
) -> Recording:
    """Run all tests in the given paths once and return the recording. Exit if a test fails."""
    result = copy.with_name("recording.json")

    def run() -> int:
        if modules:
            _fork_gangs(log)
            paths = {str(copy / file): file for file in files}
            forking = _Forking(tuple(itertools.chain(*modules.values())), [*map(Path, paths)])
            status = pytest.main([*_OPTIONS, *_UNCAPTURED, *tests], plugins=[forking])
            recorded = {paths[path]: by_line for path, by_line in forking.tests.items()}
            result.write_text(json.dumps([forking.seconds, recorded, []]))
            return status
        measured = coverage.Coverage(data_file=None, include=[str(copy / f) for f in files])
        recorder = _Recorder(measured)
        with measured.collect():
            status = pytest.main([*_OPTIONS, *tests], plugins=[recorder])
        data = measured.get_data()
        lines = {file: data.contexts_by_lineno(str(copy / file)) for file in files}
        spawning_tests = sorted(recorder.spawning_tests & recorder.seconds.keys())
        result.write_text(json.dumps([recorder.seconds, lines, spawning_tests]))
        return status

    if status := _run_in_fork(run, copy, None):
        sys.exit(f"the tests fail without a mutant (status {status}): pytest {' '.join(tests)}")
    seconds, by_file, spawning_tests = json.loads(result.read_text())
    lines = {
        file: {int(line): by_line[line] for line in by_line} for file, by_line in by_file.items()
    }
    return Recording(seconds, lines, spawning_tests, dict(modules))


def outcome(copy: Path, chosen: Sequence[str], recording: Recording, log: Path) -> str:
    """Run the chosen tests and return the outcome: `killed`, `survived` or `timeout`."""
    if not chosen:
        return "survived"

    def run() -> int:
        sys.dont_write_bytecode = True  # the mutant's bytecode would remain in the copy
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        _redirect_output(log)
        files = sorted({test.partition("::")[0] for test in chosen})
        options = _OPTIONS
        plugins: list[object] = [_Selection(chosen, recording.seconds)]
        if recording.modules:
            _fork_gangs(log)
            options, plugins = [*_OPTIONS, *_UNCAPTURED], [*plugins, _Forking()]
        return pytest.main([*options, *files], plugins=plugins)

    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # contains failures of earlier mutants
    factor = 4 if recording.modules else 10  # gangs of several mutants compete for the cores
    timeout = 10 + factor * sum(recording.seconds[test] for test in chosen)
    status = _run_in_fork(run, copy, timeout)
    return "timeout" if status is None else "killed" if status else "survived"


@contextlib.contextmanager
def replaced(path: Path, text: str) -> Iterator[None]:
    """Replace the text of a file during a block."""
    original, times = path.read_bytes(), path.stat()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _redirect_output(log: Path) -> None:
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)


def _fork_gangs(log: Path) -> None:
    """Let gangs fork from this process, which has already loaded the copy's modules and PyTorch."""
    import torch

    _redirect_output(log)
    # OpenMP's threads do not exist after a fork, so the first parallel loop would hang.
    torch.set_num_threads(1)
    programs = importlib.import_module("tests.training.programs")
    programs.SERVER = multiprocessing.get_context("fork")  # type: ignore[attr-defined]


def _run_in_fork(run: Callable[[], int], copy: Path, timeout: float | None) -> int | None:
    """Run a function in a fork, with the copy as its working directory.

    Return the function's status, or None after the timeout.
    """

    def child() -> None:
        os.setsid()
        os.chdir(copy)
        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
        sys.path[0] = str(copy)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
            del sys.modules[name]  # the tests import tools from the copy
        status = 3
        try:
            status = int(run())
        finally:
            sys.stdout.flush()
            os._exit(status)  # exits without waiting for threads

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(timeout)
    status = process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return status
