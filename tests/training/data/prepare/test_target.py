import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import make_unavailable
from training.data import DataError
from training.data.manifest import (
    MANIFEST_FILE,
    TokensManifest,
    TokenSplit,
    read_manifest,
    write_manifest,
)
from training.data.prepare.output import (
    UNFINISHED,
    ShardWriter,
    finish_interrupted,
    new_dataset,
    part_of,
)
from training.data.samples import UnavailableError


def write_dataset(folder: Path, word: str) -> None:
    """Write a data set with one file."""
    path = folder / f"{word}.bin"
    path.write_text(word * 2)
    parts = (part_of(path, len(word)),)
    write_manifest(
        folder,
        TokensManifest(
            dtype="uint16",
            vocabulary=256,
            train=TokenSplit(parts=parts),
            held_out=TokenSplit(parts=()),
        ),
    )


def create_dataset(folder: Path, word: str, force: bool = False) -> None:
    with new_dataset(folder, force, folder) as unfinished:
        write_dataset(unfinished, word)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_prepared_data_set_contains_no_temporary_files(tmp_path: Path) -> None:
    create_dataset(tmp_path / "deep/data", "one")
    assert names(tmp_path / "deep/data") == [MANIFEST_FILE, "one.bin"]


def test_newly_formatted_volume_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    create_dataset(tmp_path, "one")
    assert names(tmp_path) == ["lost+found", MANIFEST_FILE, "one.bin"]


def test_directory_with_other_files_is_rejected_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(DataError, match=r"is not empty \(it contains notes\): .* pass --force"):
        create_dataset(tmp_path, "one")
    assert names(tmp_path) == ["notes"]


def test_force_replaces_a_data_set_and_leaves_other_files(tmp_path: Path) -> None:
    create_dataset(tmp_path, "one")
    (tmp_path / "notes").write_text("mine")
    create_dataset(tmp_path, "two", force=True)
    assert names(tmp_path) == [MANIFEST_FILE, "notes", "two.bin"]


@pytest.mark.parametrize("existing", [False, True])
def test_failure_creates_no_target_and_keeps_an_existing_one(
    existing: bool, tmp_path: Path
) -> None:
    target = tmp_path / "data"
    if existing:
        target.mkdir()
    with pytest.raises(DataError), new_dataset(target, force=False, source=tmp_path):
        raise DataError
    assert target.exists() == existing


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, DataError])
def test_failed_replacement_keeps_the_existing_data_set(
    error: type[BaseException], tmp_path: Path
) -> None:
    create_dataset(tmp_path, "one")

    def fail() -> None:
        with new_dataset(tmp_path, force=True, source=tmp_path) as unfinished:
            write_dataset(unfinished, "two")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == [MANIFEST_FILE, "one.bin"]


class Killed(BaseException):
    """Simulates SIGKILL: no cleanup code handles this exception."""


def replace_and_be_killed(target: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a data set, and simulate SIGKILL after some steps of the publication."""
    create_dataset(target, "one")
    remaining = iter(range(steps))

    def killed_after_steps(step: Callable[..., Any]) -> Callable[..., Any]:
        def until_killed(*arguments: object, **options: object) -> Any:
            if next(remaining, None) is None:
                raise Killed
            return step(*arguments, **options)

        return until_killed

    def replace() -> None:
        with new_dataset(target, force=True, source=target) as unfinished:
            write_dataset(unfinished, "two")
            for name in ("unlink", "replace", "rmdir"):
                monkeypatch.setattr(Path, name, killed_after_steps(getattr(Path, name)))

    with pytest.raises(Killed):
        replace()
    monkeypatch.undo()


@pytest.mark.parametrize("steps", range(1, 7))
def test_an_interrupted_replacement_is_completed_later(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_and_be_killed(tmp_path, steps, monkeypatch)
    with pytest.raises(DataError, match="is not empty"):
        create_dataset(tmp_path, "three")
    assert names(tmp_path) == [MANIFEST_FILE, "two.bin"]
    assert read_manifest(tmp_path).parts()[0].file == "two.bin"


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_repeated_command_completes_an_interrupted_publication(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_and_be_killed(tmp_path, steps, monkeypatch)
    manifest = finish_interrupted(tmp_path, tmp_path)
    assert manifest is not None
    assert [part.file for part in manifest.parts()] == ["two.bin"]
    assert names(tmp_path) == [MANIFEST_FILE, "two.bin"]


def test_concurrent_preparations_are_rejected(tmp_path: Path) -> None:
    with new_dataset(tmp_path, force=False, source=tmp_path) as unfinished:
        with pytest.raises(DataError, match="another process is preparing a data set in"):
            create_dataset(tmp_path, "two")
        write_dataset(unfinished, "one")
    assert names(tmp_path) == [MANIFEST_FILE, "one.bin"]


def test_an_interrupted_write_is_discarded(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).mkdir()
    (tmp_path / UNFINISHED / "half.bin").write_text("half")
    create_dataset(tmp_path, "one")
    assert names(tmp_path) == [MANIFEST_FILE, "one.bin"]


def test_old_data_set_remains_if_its_manifest_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_dataset(tmp_path, "one")
    read_bytes = Path.read_bytes

    def fail_to_read(path: Path) -> bytes:
        if path == tmp_path / MANIFEST_FILE:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail_to_read)
        with pytest.raises(UnavailableError):
            create_dataset(tmp_path, "two", force=True)
    assert {MANIFEST_FILE, "one.bin"} <= set(names(tmp_path))
    create_dataset(tmp_path, "two", force=True)
    assert names(tmp_path) == [MANIFEST_FILE, "two.bin"]


def test_complete_files_remain_if_their_manifest_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = tmp_path / UNFINISHED
    unfinished.mkdir()
    write_dataset(unfinished, "one")
    (tmp_path / ".source").write_text("/other/texts")
    with monkeypatch.context() as patch:
        make_unavailable(unfinished / MANIFEST_FILE, patch)
        with pytest.raises(OSError, match="Stale file handle"):
            create_dataset(tmp_path, "two", force=True)
    assert finish_interrupted(tmp_path, tmp_path) is None
    assert names(tmp_path) == [MANIFEST_FILE, "one.bin"]


def test_full_disk_is_recognized_when_an_index_is_written(tmp_path: Path) -> None:
    (tmp_path / "train-index.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        ShardWriter(tmp_path, "train", 2**20).close()
