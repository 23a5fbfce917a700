"""`tests/run.sh`, which `make test` runs, with a stand-in for pytest that records its calls."""

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.sh"
UNIT = "-m pytest -m unit -n 5 --no-loadscope-reorder"
TOOLS = "-m devcluster.toolchain auto --languages"
PATHS = "-o testpaths=tests/cluster tests/engine tests/operators"
OTHERS = f"-m pytest -m engine or cluster {PATHS} -n 5 --no-loadscope-reorder"

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Function that runs the script and returns its exit status and pytest's calls.

    `unit` and `others` are the exit statuses of pytest's two parts.
    """

    def start(
        *arguments: str, unit: int = 0, tools: int = 0, others: int = 0
    ) -> tuple[int, list[str]]:
        calls = tmp_path / "calls"
        program = tmp_path / "python"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{shlex.quote(str(calls))}\n'
            f'case "$*" in "{UNIT}"*) exit {unit};; "{TOOLS}") exit {tools};; esac\n'
            f"exit {others}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            [RUN, *arguments], env=environment, check=False, stderr=subprocess.PIPE, text=True
        )
        assert done.stderr.count("failed: ") == sum(s not in (0, 5) for s in (unit, others))
        *made, last = calls.read_text().splitlines()
        assert last.startswith("-m tests.durations /")
        return done.returncode, made

    return start


def test_default_run_is_the_unit_tier_followed_by_engine_and_cluster(run: Run) -> None:
    assert run("") == (0, [UNIT, TOOLS, OTHERS])


def test_requested_tier_runs_alone(run: Run) -> None:
    assert run("unit") == (0, [UNIT])


def test_engine_tier_runs_in_one_process(run: Run) -> None:
    assert run("engine") == (0, [TOOLS, f"-m pytest -m engine {PATHS}"])


def test_tests_still_run_if_tools_cannot_be_built(run: Run) -> None:
    assert run("", tools=1) == (0, [UNIT, TOOLS, OTHERS])


def test_cluster_tier_runs_in_one_process_per_group(run: Run) -> None:
    clusters = f"-m pytest -m cluster {PATHS} -n 3 --no-loadscope-reorder"
    assert run("cluster") == (0, [TOOLS, clusters])


def test_operators_tier_runs_alone_in_one_process(run: Run) -> None:
    assert run("operators") == (0, [TOOLS, f"-m pytest -m operators {PATHS}"])


def test_pytest_arguments_are_passed_to_every_part(run: Run) -> None:
    assert run("", "-k", "gang or queue") == (
        0,
        [f"{UNIT} -k gang or queue", TOOLS, f"{OTHERS} -k gang or queue"],
    )


def test_selection_across_tiers_runs_in_one_process(run: Run) -> None:
    assert run("", "-m", "engine or cluster") == (0, ["-m pytest -m engine or cluster"])


@pytest.mark.parametrize("status", [1, 2, 4])
def test_other_tiers_run_after_unit_failures_and_the_run_fails(run: Run, status: int) -> None:
    assert run("", unit=status) == (status, [UNIT, TOOLS, OTHERS])


def test_failure_in_the_other_tiers_fails_the_run(run: Run) -> None:
    assert run("", others=1)[0] == 1


@pytest.mark.parametrize(("unit", "others"), [(0, 5), (5, 0)])
def test_part_without_tests_is_ignored_if_the_other_part_has_tests(
    run: Run, unit: int, others: int
) -> None:
    assert run("", unit=unit, others=others)[0] == 0


def test_run_without_any_tests_fails(run: Run) -> None:
    assert run("", unit=5, others=5)[0] == 5
    assert run("unit", unit=5)[0] == 5


def test_failure_is_reported_even_if_the_other_part_has_no_tests(run: Run) -> None:
    assert run("", unit=1, others=5)[0] == 1
    assert run("", unit=5, others=1)[0] == 1


def test_unknown_tier_is_rejected() -> None:
    done = subprocess.run([RUN, "units"], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "TIER is 'units': use unit, engine, cluster, slow or operators" in done.stderr
