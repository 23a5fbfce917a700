"""Durations of a test run: tests, tiers, processes, and fixtures that several tests share.

CPU seconds include the test and the programs that it started and waited for. Programs of clusters
outlive the tests and are not counted.

`tests/conftest.py` registers the plugin if `TEST_DURATIONS` names a file, to which every pytest
process appends its phases. `python -m tests.durations FILE` prints the summary (`tests/run.sh`).
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

VARIABLE: Final = "TEST_DURATIONS"
TIERS: Final = ("engine", "cluster", "operators", "faults")
"""Tiers that have a directory of the same name. All other tests are unit tests."""
SLOWEST: Final = 20
SHORT: Final = 1.0
"""Minimum setup time (s) of listed fixtures."""


@dataclass(frozen=True)
class Phase:
    """Setup, call or teardown of a test, with its shared fixtures and CPU seconds."""

    test: str
    tier: str
    when: str
    start: float
    stop: float
    fixtures: list[tuple[str, float]] = field(default_factory=list)
    cpu: float = 0.0
    process: str = ""


def tier_of(path: Path) -> str:
    """Return the tier of a test file, given its path below `tests`."""
    return path.parts[0] if path.parts[0] in TIERS else "unit"


class Durations:
    """A pytest plugin that collects phases from all pytest-xdist processes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._phases: list[Phase] = []
        self._used = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Add the setup of a shared fixture to the properties of the test that requests it."""
        begin = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - begin
            if fixturedef.scope != "function" and seconds >= SHORT:
                entry = (f"fixture {fixturedef.argname}", seconds)
                request._pyfuncitem.user_properties.append(entry)

    def pytest_collection_finish(self) -> None:
        """Exclude imports during the collection from the first test's CPU time."""
        self._used = _cpu_seconds()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Add the CPU time since the previous test to the properties of the test that ends."""
        yield
        used = _cpu_seconds()
        item.user_properties.append(("cpu", used - self._used))
        self._used = used

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect a phase. This hook also runs in the process that distributes the tests."""
        path, *_ = report.nodeid.split("::")
        tier = tier_of(Path(path).relative_to("tests"))
        fixtures = [
            (f"{name.removeprefix('fixture ')} ({path})", float(str(seconds)))
            for name, seconds in report.user_properties
            if report.when == "teardown" and name.startswith("fixture ")
        ]
        when = report.when or ""
        cpu = sum(float(str(seconds)) for name, seconds in report.user_properties if name == "cpu")
        self._phases.append(
            Phase(
                test=report.nodeid,
                tier=tier,
                when=when,
                start=report.start,
                stop=report.stop,
                fixtures=fixtures,
                cpu=cpu,
                process=getattr(report, "worker_id", ""),
            )
        )

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        """Append the phases to the file, unless another process distributes the tests."""
        if hasattr(config, "workerinput"):
            return
        with self._file.open("a") as file:
            file.writelines(json.dumps(vars(phase)) + "\n" for phase in self._phases)


def summary(phases: Iterable[Phase]) -> Iterator[str]:
    """Yield the lines of the summary; empty without tests."""
    known = list(phases)
    if not known:
        return
    tests: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    tiers: dict[str, list[Phase]] = defaultdict(list)
    for phase in known:
        tests[phase.test] += phase.stop - phase.start
        cpu[phase.test] += phase.cpu
        tiers[phase.tier].append(phase)
    yield f"slowest {SLOWEST} tests (seconds, with setup and teardown):"
    yield from _table(sorted(tests.items(), key=lambda item: -item[1])[:SLOWEST])
    yield f"{SLOWEST} tests with the most CPU time (seconds, with setup and teardown):"
    yield from _table(sorted(cpu.items(), key=lambda item: -item[1])[:SLOWEST])
    if fixtures := [entry for phase in known for entry in phase.fixtures]:
        yield "setup of shared fixtures, including clusters and stacks (seconds):"
        yield from _table(sorted(fixtures, key=lambda item: -item[1])[:SLOWEST])
    if others := [phase for phase in known if phase.tier != "unit"]:
        yield "tests of each process by directory, except unit tests (seconds):"
        yield from _table(_directories(others))
    yield "wall and CPU time of each tier (seconds; tiers of one process group overlap):"
    for tier, found in tiers.items():
        wall = max(phase.stop for phase in found) - min(phase.start for phase in found)
        used = sum(phase.cpu for phase in found)
        yield f"{wall:8.1f} {used:8.1f}  {tier}: {len({phase.test for phase in found})} tests"


def _directories(phases: Iterable[Phase]) -> Iterator[tuple[str, float]]:
    """Yield the process, start and directory of consecutive tests, with their wall time."""
    known = sorted(phases, key=lambda phase: (phase.process, phase.start))
    begin = min(phase.start for phase in known)
    for (process, directory), group in groupby(
        known, key=lambda phase: (phase.process, phase.test.partition("::")[0].rpartition("/")[0])
    ):
        found = [*group]
        name = f"{process} from {found[0].start - begin:.0f} s: {directory}"
        yield name, found[-1].stop - found[0].start


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _table(rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    for name, seconds in rows:
        yield f"{seconds:8.1f}  {name}"


def main() -> None:
    """Print the summary of a file of phases."""
    lines = Path(sys.argv[1]).read_text().splitlines()
    for line in summary(Phase(**json.loads(each)) for each in lines):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
