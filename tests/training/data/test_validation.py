"""Validation of data sets. Failures have the exit code of a permanent error."""

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from training.data import load
from training.data.__main__ import main
from training.data.samples import UnavailableError
from training.data.validation import read_report, stability_index
from workload import exit_codes


class Boxes:
    """Images of two classes. Tests set class attributes to change the data."""

    classes: tuple[str, ...] = ("left", "right")
    shift = 0.0
    rare = 2
    broken = 0.0
    wide = 8

    def __init__(self, data_dir: Path, train: bool) -> None:
        self.length = 400 if train else 100

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        random = np.random.default_rng(index)
        image = random.normal(self.shift, 1, (1, 8, self.wide)).astype(np.float32)
        if index == 7 and self.broken:
            image[0, 0, 0] = self.broken
        return image, int(index % self.rare == 0)


NAME = f"{__name__}:Boxes"


def validate(report: Path, *options: str, dataset: str = NAME) -> int:
    return main(["validate", f"--dataset={dataset}", *options, str(report)])


@pytest.mark.parametrize("dataset", ["digits", NAME])
def test_report_is_written_for_a_valid_data_set(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reports" / "data.json"
    assert validate(file, dataset=dataset) == exit_codes.DONE
    report = json.loads(file.read_text())
    data = load(dataset, tmp_path, None, seed=0)
    assert report["data_sha256"] == data.identity
    assert report["train"]["samples"] == len(data.train)
    assert sum(report["train"]["values"]) == pytest.approx(1)
    assert sum(report["held_out"]["classes"].values()) == pytest.approx(1)
    assert report["problems"] == []
    assert f"{dataset} is valid" in capsys.readouterr().out


def test_distribution_of_tokens_in_a_text_is_compared(tmp_path: Path) -> None:
    texts = tmp_path / "text"
    texts.mkdir()
    options = [f"--data-dir={tmp_path}"]
    (texts / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 500)
    assert validate(tmp_path / "first.json", *options, dataset="text") == exit_codes.DONE
    options.append(f"--against={tmp_path / 'first.json'}")
    (texts / "a.txt").write_text("THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG. " * 500)
    assert validate(tmp_path / "second.json", *options, dataset="text") == exit_codes.BAD_INPUT


def test_text_is_examined_in_samples_of_the_given_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, report = tmp_path / "text", tmp_path / "data.json"
    texts.mkdir()
    (texts / "a.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)
    options = [f"--data-dir={tmp_path}"]
    assert validate(report, *options, dataset="text") == exit_codes.BAD_INPUT
    assert validate(report, *options, "--context=64", dataset="text") == exit_codes.DONE
    assert json.loads(report.read_text())["shape"] == [64]
    assert validate(report, "--context=64") == exit_codes.BAD_INPUT
    assert "--context requires --dataset text or --dataset tokens" in capsys.readouterr().err


def test_identical_data_has_no_drift(tmp_path: Path) -> None:
    validate(tmp_path / "first.json")
    against = f"--against={tmp_path / 'first.json'}"
    assert validate(tmp_path / "second.json", against) == exit_codes.DONE
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shift": 1.0}, "train: values differ from the earlier data set"),
        ({"rare": 5}, "train: classes differ from the earlier data set"),
        ({"rare": 100}, "class right has 1.00% of the samples, less than 5.00%"),
        ({"broken": np.nan}, "1 values are NaN or infinite"),
        ({"broken": np.inf}, "1 values are NaN or infinite"),
        ({"wide": 6}, "shape is 1, 8, 6, but was 1, 8, 8 in the earlier data set"),
        ({"classes": ("right", "left")}, "classes is right, left, but was left"),
    ],
    ids=str,
)
def test_changed_data_set_is_refused_permanently(
    change: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    validate(tmp_path / "first.json")
    for name, value in change.items():
        monkeypatch.setattr(Boxes, name, value)
    against = f"--against={tmp_path / 'first.json'}"
    assert validate(tmp_path / "second.json", against) == exit_codes.BAD_INPUT
    assert reason in capsys.readouterr().err
    assert any(
        reason in problem
        for problem in json.loads((tmp_path / "second.json").read_text())["problems"]
    )


def test_error_names_the_missing_or_invalid_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for file, reason in (
        (tmp_path / "absent.json", "cannot be read"),
        (broken, "is not a validation report"),
    ):
        assert validate(tmp_path / "new.json", f"--against={file}") == exit_codes.BAD_INPUT
        assert f"{file} {reason}" in capsys.readouterr().err
    assert not (tmp_path / "new.json").exists()


def test_stability_index_is_zero_for_equal_distributions_and_finite_for_others() -> None:
    assert stability_index((0.5, 0.5), (0.5, 0.5)) == 0
    assert 0.1 < stability_index((0.7, 0.3), (0.5, 0.5)) < 0.3
    assert np.isfinite(stability_index((1.0, 0.0), (0.0, 1.0)))


def test_unavailable_report_is_not_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=error))
    with pytest.raises(UnavailableError, match="Input/output error"):
        read_report(tmp_path / "report.json")
