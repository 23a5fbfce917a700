import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from training.checkpoints import storage
from training.checkpoints.storage import (
    SEAL_FILE,
    Position,
    Seal,
    file_entry,
    find_fault,
    read_seal,
    rotate,
    seal_checkpoint,
)
from workload.configuration import ConfigurationError
from workload.files import checkpoint_of, create_unfinished, list_checkpoints, recover

TENSORS = "shard-00001-model-00001-of-00001.safetensors"


def save(
    folder: Path, step: int, keep: int = 3, loss: float | None = None, keep_best: bool = False
) -> Path:
    written = create_unfinished(checkpoint_of(folder, step))
    (written / TENSORS).write_bytes(os.urandom(1000))
    seal = Seal(
        model="digits-net",
        model_options={},
        dataset="digits",
        samples=1437,
        optimizer="adamw",
        position=Position(1, 0, step),
        processes=1,
        seconds=1.5,
        held_out_loss=loss,
        files=(file_entry(written / TENSORS),),
    )
    path = seal_checkpoint(written, seal)
    rotate(path, keep, keep_best)
    return path


def saved_steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder)]


def checkpoint_problem(path: Path) -> str | None:
    seal = read_seal(path)
    return seal if isinstance(seal, str) else find_fault(path, seal.files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with checkpoints of steps 1, 2 and 3."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    return tmp_path


def test_a_sealed_checkpoint_is_read_back(folder: Path) -> None:
    path = save(folder, 4, loss=0.5)
    seal = read_seal(path)
    assert isinstance(seal, Seal)
    assert (seal.position.step, seal.held_out_loss) == (4, 0.5)
    assert checkpoint_problem(path) is None


def test_missing_run_directory_has_no_checkpoints(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "missing") == []


def test_only_the_newest_checkpoints_are_kept(folder: Path) -> None:
    save(folder, 10, keep=2)
    assert saved_steps(folder) == [3, 10]


def test_the_best_checkpoint_is_kept_regardless_of_age(tmp_path: Path) -> None:
    for step, loss in enumerate([0.9, 0.2, 0.5, None, 0.3, 0.4], start=1):
        save(tmp_path, step, keep=2, loss=loss, keep_best=True)
    assert saved_steps(tmp_path) == [2, 5, 6]


def truncate(path: Path) -> None:
    (path / TENSORS).write_bytes((path / TENSORS).read_bytes()[:500])


def flip_bit(path: Path) -> None:
    content = bytearray((path / TENSORS).read_bytes())
    content[500] ^= 1
    (path / TENSORS).write_bytes(content)


def delete_seal(path: Path) -> None:
    (path / SEAL_FILE).unlink()


def clear_seal(path: Path) -> None:
    (path / SEAL_FILE).write_bytes(b"{}")


def empty_seal(path: Path) -> None:
    (path / SEAL_FILE).write_bytes(b"")


def set_path_outside_the_checkpoint(path: Path) -> None:
    text = (path / SEAL_FILE).read_text()
    (path / SEAL_FILE).write_text(text.replace(TENSORS, "../../secret"))


def delete_tensors(path: Path) -> None:
    (path / TENSORS).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "has 500 bytes instead of 1000"),
        (flip_bit, "has changed since it was saved"),
        (delete_seal, "cannot be read: No such file"),
        (clear_seal, "has changed since it was written: model: Field required"),
        (empty_seal, "has changed since it was written: the document: Invalid JSON"),
        (set_path_outside_the_checkpoint, "files.0.name: String should match pattern"),
        (delete_tensors, "cannot be read: No such file"),
    ],
)
def test_damage_to_a_checkpoint_is_reported(
    damage: Callable[[Path], None], message: str, folder: Path
) -> None:
    damage(folder / "step-00000003")
    assert message in str(checkpoint_problem(folder / "step-00000003"))
    assert checkpoint_problem(folder / "step-00000002") is None


def test_an_unreadable_checkpoint_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "step-00000003"
    error = OSError(errno.EIO, "Input/output error")
    with monkeypatch.context() as patched:
        patched.setattr(storage, "sha256_of", Mock(side_effect=error))
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint_problem(path)
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=error))
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint_problem(path)


def change_seal(path: Path, **changes: object) -> None:
    seal = json.loads((path / SEAL_FILE).read_bytes())
    (path / SEAL_FILE).write_text(json.dumps(seal | changes))


def test_checkpoint_of_a_newer_program_is_not_damaged(folder: Path) -> None:
    path = folder / "step-00000003"
    change_seal(path, new_field=1)
    assert checkpoint_problem(path) is None
    change_seal(path, format=3, files=None)
    with pytest.raises(ConfigurationError, match="has format 3, but this version reads format 2"):
        read_seal(path)


def test_save_after_a_resume_removes_checkpoints_of_later_steps(folder: Path) -> None:
    save(folder, 2, keep=1)
    assert saved_steps(folder) == [2]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(folder: Path) -> None:
    truncate(folder / "step-00000003")
    assert checkpoint_problem(save(folder, 3)) is None


def test_files_of_an_interrupted_save_are_ignored_and_removed(folder: Path) -> None:
    (create_unfinished(checkpoint_of(folder, 4)) / TENSORS).write_bytes(b"half")
    assert saved_steps(folder) == [1, 2, 3]
    recover(folder)
    assert len(list(folder.iterdir())) == 3
