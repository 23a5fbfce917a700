"""The Makefile's variables, and the help of its benchmarks.

`make -n` prints the commands without running them.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.platform import ROOT


def make(*arguments: str, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PURGE"}
    command = ["make", "--no-print-directory", "-n", "-f", ROOT / "Makefile", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("python", [sys.executable, "/gone/python3"])
def test_an_environment_whose_python_was_removed_is_recreated(tmp_path: Path, python: str) -> None:
    for name in ("requirements/uv.txt", "requirements/devcluster.txt", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to(python)
    for name in ("uv", "devcluster"):
        (tmp_path / ".venv" / f"{name}.stamp").touch()
    commands = make("status", checkout=tmp_path).stdout
    assert ("environment.sh" in commands) is (python == "/gone/python3")
    assert "devcluster status" in commands


def test_commands_import_modules_of_the_checkout(tmp_path: Path) -> None:
    file = tmp_path / "Makefile"
    file.write_text(f"include {ROOT / 'Makefile'}\nshow:\n\t@echo $${{PYTHONSAFEPATH-unset}}\n")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = ["make", "--no-print-directory", "-f", file, "show"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "unset\n"


@pytest.mark.parametrize("value", ["", "0", " "])
def test_down_keeps_checkpoints_by_default(value: str) -> None:
    done = make("down", f"PURGE={value}")
    assert "devcluster down --nodes auto" in done.stdout
    assert "--purge" not in done.stdout


def test_down_purges_if_requested() -> None:
    assert "devcluster down --nodes auto --purge" in make("down", "PURGE=1").stdout


@pytest.mark.parametrize("value", ["no", "false", "true", "11", "0 1"])
def test_down_rejects_other_values_of_purge(value: str) -> None:
    done = make("down", f"PURGE={value}")
    assert done.returncode == 2
    assert "devcluster down" not in done.stdout
    assert f"PURGE is '{value}': use PURGE=1 to delete checkpoints" in done.stderr


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "module", re.findall(r"-m (tools\.bench\.\w+)", (ROOT / "Makefile").read_text())
)
def test_help_of_a_benchmark_does_not_start_it(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(module, run_name="__main__")
    assert stopped.value.code == 0
    assert f"make bench-{module.rpartition('.')[2]}" in " ".join(capsys.readouterr().out.split())
