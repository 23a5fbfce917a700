import hashlib
from pathlib import Path

import pytest

from training.data import progress
from training.data.manifest import Part, Verification, verify
from training.data.progress import Progress


def test_short_task_does_not_report_progress() -> None:
    lines: list[str] = []
    counted = Progress("images", 10, lines.append)
    counted.advance(5)
    assert lines == []


def test_a_long_check_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    (tmp_path / "a").write_bytes(b"x" * 2000)
    digest = hashlib.sha256(b"x" * 2000).hexdigest()
    lines: list[str] = []
    verify(
        tmp_path, [Part(file="a", size=2000, sha256=digest, count=1)], Verification(), lines.append
    )
    assert lines == [f"bytes of {tmp_path} checked: 2,000 of 2,000 (100%)"]


def test_a_run_logs_progress_as_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    progress.report_event("half")
    assert capsys.readouterr().out == '{"event": "data", "message": "half"}\n'
