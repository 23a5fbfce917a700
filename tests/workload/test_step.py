"""Steps that run as processes and read the export of a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workload import exit_codes
from workload.manifest import Manifest, Weights, write_manifest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run whose export has an accuracy of 0.95."""
    folder = tmp_path / "digits-1a2b3c4d"
    (folder / "export").mkdir(parents=True)
    manifest = Manifest(
        model="digits-net",
        input_shape=(1, 8, 8),
        classes=("0", "1"),
        metrics={"accuracy": 0.95},
        weights=Weights(size=1, sha256="0" * 64),
        settings={},
        torch_version="2.15.0",
    )
    write_manifest(folder / "export", manifest)
    return folder


def step(run: Path, name: str, *options: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a step that creates a file."""
    program = f"open({str(run / name)!r}, 'w').close(); raise SystemExit({code})"
    module = [sys.executable, "-m", "workload.step", f"--run={run}", f"--name={name}"]
    command = [*module, *options, "--", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("condition", "runs"),
    [("accuracy >= 0.95", True), ("accuracy >= 0.97", False), ("accuracy <= 0.9", False)],
)
def test_step_runs_only_if_its_condition_holds(run: Path, condition: str, runs: bool) -> None:
    result = step(run, "publish", f"--when={condition}")
    assert result.returncode == exit_codes.DONE
    assert (run / "publish").exists() is runs
    if not runs:
        (line,) = map(json.loads, result.stdout.splitlines())
        assert (line["event"], line["step"]) == ("step_skipped", "publish")
        assert "accuracy is 0.95, but must be" in line["reason"]


def test_step_after_a_skipped_step_is_skipped_until_that_step_runs(run: Path) -> None:
    step(run, "publish", "--when=accuracy >= 0.97")
    result = step(run, "announce", "--after=publish")
    assert result.returncode == exit_codes.DONE
    assert "step publish was skipped" in result.stdout
    assert not (run / "announce").exists()
    step(run, "publish", "--when=accuracy >= 0.9")
    step(run, "announce", "--after=publish")
    assert (run / "announce").exists()


def test_step_exits_with_the_exit_code_of_its_command(run: Path) -> None:
    assert step(run, "publish", "--when=accuracy >= 0.9", code=7).returncode == 7


@pytest.mark.parametrize(
    ("condition", "message"),
    [("f1 >= 0.5", "no metric 'f1'; its metrics: accuracy"), ("accuracy > 1", "must compare")],
)
def test_condition_that_cannot_be_evaluated_is_a_permanent_failure(
    run: Path, condition: str, message: str
) -> None:
    result = step(run, "publish", f"--when={condition}")
    assert result.returncode == exit_codes.BAD_INPUT
    assert message in result.stdout
    assert not (run / "publish").exists()


def test_run_directory_that_cannot_be_written_is_reported_as_one_event(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = step(tmp_path / "file", "publish")
    assert result.returncode == exit_codes.FAILED
    assert "Not a directory" in json.loads(result.stdout)["error"]
    assert not result.stderr


def test_condition_without_an_export_is_a_permanent_failure(tmp_path: Path) -> None:
    result = step(tmp_path, "publish", "--when=accuracy >= 0.5")
    assert result.returncode == exit_codes.BAD_INPUT
    assert "does not exist yet" in result.stdout
