"""Options and output of `python -m gitops status`."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gitops.__main__ import main


@pytest.mark.parametrize("period", ["-1", "0", "nan", "inf", "soon"])
def test_an_invalid_period_is_a_wrong_argument(period: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["status", "--watch", "--every", period])
    assert left.value.code == 64


def test_errors_are_watched_as_kubectl_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    reason = "the server [fd00::1]:6443 [/refused]"
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\necho '{reason}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("gitops.runs.command.time", SimpleNamespace(sleep=interrupt))
    assert main(["status", "--watch"]) == 130
    assert reason in capsys.readouterr().out
