"""The promotion gate, which decides whether a new run may replace the served run."""

import json
import shutil
from pathlib import Path

import pytest

from inference.promote import main
from workload import exit_codes
from workload.manifest import MANIFEST_FILE


@pytest.fixture
def exports(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The exports of a candidate and of an incumbent, whose accuracy is 0.97."""
    folders = tmp_path / "candidate", tmp_path / "incumbent"
    for folder in folders:
        folder.mkdir()
        shutil.copy(trained / MANIFEST_FILE, folder)
        set_metrics(folder, accuracy=0.97, loss=0.1)
    return folders


def set_metrics(folder: Path, **metrics: float) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest | {"metrics": metrics}))


@pytest.mark.parametrize(
    ("accuracy", "condition", "promoted"),
    [
        (0.9681, ">= incumbent - 0.002", True),
        (0.9679, ">= incumbent - 0.002", False),
        (0.97, ">= incumbent", True),
        (0.97, ">= incumbent + 0.01", False),
        (0.97, "<= incumbent + 0.01", True),
        (0.94, ">= 0.95", False),
        (0.96, ">= 0.95", True),
    ],
)
def test_candidate_is_promoted_only_if_it_meets_the_condition(
    exports: tuple[Path, Path], accuracy: float, condition: str, promoted: bool
) -> None:
    candidate, incumbent = exports
    set_metrics(candidate, accuracy=accuracy, loss=0.1)
    code = main([str(candidate), str(incumbent), f"accuracy {condition}"])
    assert code == (exit_codes.DONE if promoted else exit_codes.FAILED)


def test_message_names_the_metric_its_value_and_the_bound(
    exports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    candidate, incumbent = exports
    set_metrics(candidate, accuracy=0.5)
    conditions = ["accuracy >= incumbent - 0.002", "loss <= incumbent"]
    assert main([str(candidate), str(incumbent), *conditions]) == exit_codes.FAILED
    output = capsys.readouterr().out
    assert "accuracy is 0.5, but must be >= 0.968 (>= incumbent - 0.002)" in output
    assert "the candidate's manifest has no metric 'loss'" in output


def test_candidate_without_a_manifest_is_not_promoted(
    exports: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    candidate, incumbent = exports
    (incumbent / MANIFEST_FILE).unlink()
    code = main([str(candidate), str(incumbent), "accuracy >= incumbent"])
    assert code == exit_codes.FAILED
    assert "does not exist yet" in capsys.readouterr().out
