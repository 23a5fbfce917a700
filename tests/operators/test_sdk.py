"""The newest SDK of pulumi-kubernetes, without its provider, which no longer adopts objects."""

import subprocess
from pathlib import Path

import pytest

from tools.environments import ROOT, environment, run

PROGRAMS = ("test_cluster", "test_stack", "test_training_run", "test_urns")
"""Unit tests of the stack's program with a mocked engine, and of its objects."""


@pytest.fixture(scope="module")
def python() -> Path:
    """The test environment with only this package replaced."""
    return environment("newest-sdk", inherits=True)


def test_the_newest_sdk_is_imported(python: Path) -> None:
    program = "from importlib.metadata import version as v; print(v('pulumi-kubernetes'))"
    found = tuple(map(int, run([str(python), "-c", program]).split(".")))
    assert found >= (4, 29)


def test_unit_tests_of_the_stack_pass_with_the_newest_sdk(python: Path) -> None:
    files = [f"tests/infra/{name}.py" for name in PROGRAMS]
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-q", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
