import argparse
import os
from pathlib import Path

import pytest

from gitops.__main__ import main
from gitops.forecast.state import dump
from gitops.preview import command as preview
from tests.gitops.forecast.states import state


def test_usage_errors_have_a_separate_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    invalid_repeat = ["simulate", "--snapshot", "cluster.yaml", "--repeat", "0"]
    for arguments in ([], ["preview"], ["prewiev"], ["preview", "--stak", "x"], invalid_repeat):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        assert exited.value.code == 64
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["comment", "--close"],
        ["simulate", "--snapshot=cluster.yaml", "--horizon=-1"],
        ["simulate", "--snapshot=cluster.yaml", "--nodes=x"],
        ["simulate", "--snapshot=cluster.yaml", "--queue=vision"],
    ],
    ids=" ".join,
)
def test_arguments_that_only_the_command_rejects_have_the_same_exit_status(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(dump(state(), as_yaml=True))
    assert main(arguments) == 64


def test_help_describes_the_exit_statuses_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["preview", "--help"])
    assert exited.value.code == 0
    output = capsys.readouterr().out
    for words in ("exit status", "examples", "--rendered --base", "nothing changes", "3 "):
        assert words in output


def test_kubectl_ignores_the_users_preferences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERC", "preferences")
    monkeypatch.setattr(preview, "run", lambda _: 0)
    assert main(["preview", "--stack", "prod"]) == 0
    assert os.environ["KUBERC"] == "off"


def test_error_names_the_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError(name="rich")

    monkeypatch.setattr(preview, "run", run)
    assert main(["preview", "--stack", "prod"]) == 1
    output = capsys.readouterr().err
    assert output.startswith("error: the rich package is not installed")
    assert "requirements.txt" in output


def test_a_file_that_cannot_be_written_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["preview", "--stack", "none", "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--stack", "nowhere"], 1, "new-environment nowhere"),
        (["--stack", "prod", "--config-file", "none.yaml"], 1, "none.yaml does not exist: pass"),
        (["--stack", "prod", "--refresh", "--base", "main"], 64, "omit one of them"),
        (["--stack", "prod", "--rendered", "--save-plan", "x"], 64, "omit --refresh"),
        (["--stack", "prod", "--rendered", "--simulate"], 64, "omit --refresh"),
        (["--stack", "prod", "--repeat", "2"], 64, "add --simulate"),
        (["--stack", "prod", "--rendered", "--project", ".."], 64, "omit them"),
        (["--stack", "prod", "--refresh", "--rendered"], 64, "omit one of them"),
        (["--stack", "prod", "--policy-pack-config", "none.json"], 1, "none.json does not exist"),
    ],
)
def test_invalid_options_are_rejected_before_the_preview(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preview", *arguments]) == status
    assert message in capsys.readouterr().err
