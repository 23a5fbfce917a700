"""Verification of data files: unchanged files are compared with their digests only once."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from training.data import manifest
from training.data.manifest import Part, Verification, verify
from training.data.samples import DataError


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    """Two files of a data set."""
    parts_of_data_set = []
    for name in ("a", "b"):
        content = name.encode() * 1000
        (tmp_path / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        parts_of_data_set.append(Part(file=name, size=1000, sha256=digest, count=1))
    return parts_of_data_set


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, in order."""
    names: list[str] = []
    digest = manifest._sha256_of

    def record(path: Path, progress: Any) -> str:
        names.append(path.name)
        return digest(path, progress)

    monkeypatch.setattr(manifest, "_sha256_of", record)
    return names


def check(folder: Path, parts: list[Part], *, writes: bool = True) -> None:
    verify(folder, parts, Verification(folder / "verified.json", writes=writes), print)


def test_unchanged_files_are_not_read_again_at_a_later_start(
    tmp_path: Path, parts: list[Part], files_read: list[str]
) -> None:
    check(tmp_path, parts)
    check(tmp_path, parts)
    assert files_read == ["a", "b"]


def test_file_that_was_rewritten_is_read_again(
    tmp_path: Path, parts: list[Part], files_read: list[str]
) -> None:
    check(tmp_path, parts)
    (tmp_path / "b").write_bytes(b"c" * 1000)
    with pytest.raises(DataError, match="b is damaged: its sha256 differs"):
        check(tmp_path, parts)
    assert files_read == ["a", "b", "b"]


def test_file_with_a_new_modification_time_is_read_again(
    tmp_path: Path, parts: list[Part], files_read: list[str]
) -> None:
    check(tmp_path, parts)
    os.utime(tmp_path / "a", ns=(0, 0))
    check(tmp_path, parts)
    assert files_read == ["a", "b", "a"]


def test_file_is_compared_again_if_its_expected_digest_changes(
    tmp_path: Path, parts: list[Part], files_read: list[str]
) -> None:
    check(tmp_path, parts)
    with_new_digest = parts[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(DataError, match="a is damaged"):
        check(tmp_path, [with_new_digest, parts[1]])


def test_a_truncated_file_is_damaged_despite_the_record(tmp_path: Path, parts: list[Part]) -> None:
    check(tmp_path, parts)
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(DataError, match="1 bytes instead of 1000"):
        check(tmp_path, parts)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": 1}', b"[" * 10**5])
def test_a_damaged_record_is_ignored(
    tmp_path: Path, parts: list[Part], files_read: list[str], content: bytes
) -> None:
    (tmp_path / "verified.json").write_bytes(content)
    check(tmp_path, parts)
    assert files_read == ["a", "b"]


def test_record_is_updated_only_by_the_process_that_writes_it(
    tmp_path: Path, parts: list[Part], files_read: list[str]
) -> None:
    check(tmp_path, parts, writes=False)
    assert not (tmp_path / "verified.json").exists()
    check(tmp_path, parts, writes=False)
    assert files_read == ["a", "b"] * 2
