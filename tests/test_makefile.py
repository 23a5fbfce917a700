"""The variables of the Makefile. `make -n` prints the commands without running them."""

import os
import subprocess

import pytest

from tests.cluster.platform import ROOT


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PURGE"}
    command = ["make", "--no-print-directory", "-n", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("value", ["", "0", " "])
def test_down_keeps_checkpoints_by_default(value: str) -> None:
    done = make("down", f"PURGE={value}")
    assert "devcluster down --nodes auto" in done.stdout
    assert "--purge" not in done.stdout


def test_down_purges_if_requested() -> None:
    assert "devcluster down --nodes auto --purge" in make("down", "PURGE=1").stdout


@pytest.mark.parametrize("value", ["no", "false", "true", "11", "0 1"])
def test_down_refuses_other_values_of_purge(value: str) -> None:
    done = make("down", f"PURGE={value}")
    assert done.returncode == 2
    assert "devcluster down" not in done.stdout
    assert f"PURGE is '{value}': use PURGE=1 to delete checkpoints" in done.stderr
