import errno
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import Mock

import pytest

from tests.training.conftest import make_unavailable
from workload.files import (
    create_unfinished,
    describe_all,
    publish_folder,
    recover,
    sync_files,
    write_atomically,
)


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"new, but not all of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["missing/file", "directory"])
def test_failed_write_names_the_file_and_no_temporary_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    path = tmp_path / name
    with pytest.raises(OSError, match="directory") as exc_info:
        write_atomically(path, b"new")
    assert (exc_info.value.filename, exc_info.value.filename2) == (str(path), None)


def test_a_directory_is_replaced_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in ("old", "new"):
        unfinished = create_unfinished(tmp_path / "step-00000003")
        (unfinished / "state").write_text(content)
        if content == "new":
            monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=[None, KeyboardInterrupt]))
            with pytest.raises(KeyboardInterrupt):
                publish_folder(unfinished)
        else:
            publish_folder(unfinished)
    assert (tmp_path / "step-00000003" / "state").read_text() == "new"


def test_a_directory_with_a_dangling_link_is_flushed(tmp_path: Path) -> None:
    (tmp_path / "last").symlink_to("step-9")
    sync_files(tmp_path)


def test_directory_that_cannot_be_listed_is_not_without_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-00000003").mkdir()
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError):
        recover(tmp_path)


def test_files_in_a_directory_that_cannot_be_listed_are_not_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "huggingface").mkdir()
    (tmp_path / "huggingface" / "config.json").touch()
    (tmp_path / "last").symlink_to("huggingface")
    assert [*describe_all(tmp_path)] == ["huggingface/config.json"]
    scan = os.scandir

    def deny(path: Path) -> Any:
        if Path(path).name == "huggingface":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    for use in (describe_all, sync_files):
        with pytest.raises(PermissionError):
            use(tmp_path)


def test_file_that_cannot_be_inspected_is_not_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").touch()
    make_unavailable(tmp_path / "model.safetensors", monkeypatch)
    with pytest.raises(OSError, match="Stale file handle"):
        describe_all(tmp_path)
