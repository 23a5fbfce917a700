import tempfile
from pathlib import Path

import pytest

from inference.engine.scratch import forget, scratch_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_was_compiled_is_there_at_the_next_start(temporary: Path) -> None:
    folder = scratch_folder()
    assert folder == scratch_folder()
    assert (folder.parent, folder.stat().st_mode & 0o777) == (temporary, 0o700)
    for name in ("ab-1.pt2", "ab-2.pt2", "cd-1.pt2"):
        (folder / name).touch()
    forget(folder, "ab")
    assert [path.name for path in folder.iterdir()] == ["cd-1.pt2"]


def test_a_folder_that_others_could_have_filled_is_not_used(temporary: Path) -> None:
    first = scratch_folder()
    first.chmod(0o755)
    second = scratch_folder()
    assert second != first
    first.rmdir()
    (temporary / "elsewhere").mkdir(mode=0o700)
    first.symlink_to(temporary / "elsewhere")
    assert scratch_folder() not in (first, temporary / "elsewhere")
