import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from training.checkpoint import STATE_FILE, load, newest, save


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(step: int) -> dict[str, object]:
    return {"weights": torch.full((1000,), float(step)), "position": {"step": step}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of steps 1, 2 and 3."""
    for step in (1, 2, 3):
        save(tmp_path, step, state(step), keep=3)
    return tmp_path


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file can grow beyond 1 KiB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_newest_checkpoint_is_read_back(folder: Path) -> None:
    path, faults = newest(folder)
    assert path == folder / "step-00000003"
    assert not faults
    found = load(path)
    assert torch.equal(found["weights"], torch.full((1000,), 3.0))
    assert found["position"] == {"step": 3}


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert newest(tmp_path / "never-made") == (None, [])


def test_only_the_newest_are_kept(folder: Path) -> None:
    save(folder, 10, state(10), keep=2)
    assert names(folder) == ["step-00000003", "step-00000010"]


def truncate(path: Path) -> None:
    content = (path / STATE_FILE).read_bytes()
    (path / STATE_FILE).write_bytes(content[: len(content) // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / STATE_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / STATE_FILE).write_bytes(content)


def lose_the_seal(path: Path) -> None:
    (path / "checkpoint.json").unlink()


def empty_the_seal(path: Path) -> None:
    (path / "checkpoint.json").write_bytes(b"{}")


def lose_the_state(path: Path) -> None:
    (path / STATE_FILE).unlink()


DAMAGES = [truncate, flip_a_bit, lose_the_seal, empty_the_seal, lose_the_state]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    damage: object, folder: Path
) -> None:
    assert callable(damage)
    damage(folder / "step-00000003")
    path, faults = newest(folder)
    assert path == folder / "step-00000002"
    assert len(faults) == 1
    assert "step-00000003 is damaged and left out" in faults[0]


def test_going_back_behind_a_damaged_checkpoint_removes_it_with_the_next_save(folder: Path) -> None:
    truncate(folder / "step-00000003")
    save(folder, 2, state(2), keep=1)
    assert names(folder) == ["step-00000002"]


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(folder: Path) -> None:
    truncate(folder / "step-00000003")
    save(folder, 3, state(3), keep=3)
    assert newest(folder) == (folder / "step-00000003", [])


def test_a_full_disk_harms_no_earlier_checkpoint(folder: Path) -> None:
    with small_files(), pytest.raises(OSError, match="too large"):
        save(folder, 4, state(4), keep=1)
    assert names(folder) == [f"step-0000000{step}" for step in (1, 2, 3)]
    assert newest(folder) == (folder / "step-00000003", [])


def test_what_a_killed_save_left_behind_is_not_read_and_goes_away(folder: Path) -> None:
    unfinished = folder / ".step-00000004.tmp"
    unfinished.mkdir()
    (unfinished / STATE_FILE).write_bytes(b"half")
    assert newest(folder)[0] == folder / "step-00000003"
    save(folder, 4, state(4), keep=9)
    assert names(folder) == [f"step-0000000{step}" for step in (1, 2, 3, 4)]
