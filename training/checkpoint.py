"""Checkpoints on the disk: complete or not there, checked when they are read, the newest N kept.

`checkpoints/step-00000046/` holds `state.pt` and `checkpoint.json`, which has its size and digest.
The folder gets its name in one rename, after all of it is on the disk.
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from training.files import sha256_of, sync_folder, write_atomically

STATE_FILE: Final = "state.pt"
SEAL_FILE: Final = "checkpoint.json"
FOLDER_NAME: Final = re.compile(r"step-(\d{8,})")

State = dict[str, Any]
"""Tensors, numbers, strings, and lists and dicts of them: what torch.load reads without pickle."""


@dataclass(frozen=True)
class Seal:
    """What a checkpoint must be to be read."""

    size: int
    sha256: str


def save(folder: Path, step: int, state: State, keep: int) -> Path:
    """Save a run's state after `step` steps, then remove all but the newest `keep` checkpoints.

    Checkpoints of later steps are removed as well: the run went back behind them. Raises OSError
    when the disk is full or not writable; the earlier checkpoints are then as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{step:08d}"
    if not target.exists() or _fault(target) is not None:
        _write(folder, target, state)
    _remove_others(folder, target, keep)
    return target


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, if any, and a sentence for each newer one that is not."""
    faults: list[str] = []
    for path in reversed(_checkpoints(folder)):
        fault = _fault(path)
        if fault is None:
            return path, faults
        faults.append(f"{path} is damaged and left out: {fault}")
    return None, faults


def load(path: Path) -> State:
    """Read a checkpoint's state on the CPU, without running any code from it. Raises OSError."""
    state: State = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    return state


def _write(folder: Path, target: Path, state: State) -> None:
    unfinished = folder / f".{target.name}.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        state_file = unfinished / STATE_FILE
        write_atomically(state_file, lambda stream: torch.save(state, stream))
        seal = Seal(state_file.stat().st_size, sha256_of(state_file))
        text = json.dumps(asdict(seal)).encode()
        write_atomically(unfinished / SEAL_FILE, lambda stream: stream.write(text))
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync_folder(folder)


def _checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_NAME.fullmatch(path.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _fault(path: Path) -> str | None:
    try:
        seal = Seal(**json.loads((path / SEAL_FILE).read_bytes()))
        size = (path / STATE_FILE).stat().st_size
        if size != seal.size:
            return f"{STATE_FILE} has {size} bytes instead of {seal.size}"
        if sha256_of(path / STATE_FILE) != seal.sha256:
            return f"{STATE_FILE} has another digest than when it was saved"
    except (OSError, ValueError, TypeError) as error:
        return str(error)
    return None


def _remove_others(folder: Path, saved: Path, keep: int) -> None:
    earlier = [path for path in _checkpoints(folder) if _step(path) <= _step(saved)]
    for path in set(_checkpoints(folder)) - set(earlier[-keep:]):
        shutil.rmtree(path, ignore_errors=True)
