"""Checkpoints on the disk: complete or not there, checked when they are read, the newest N kept.

`checkpoints/step-00000046/` holds the tensors in safetensors files, written by all processes, and
`checkpoint.json`, the seal, with each file's size and digest. The folder gets its name in one
rename, after all of it is on the disk. Nothing in it is code, and reading it runs none.
"""

import re
import shutil
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from workload.catalog import Option
from workload.configuration import first_problem
from workload.files import sha256_of, sync_folder, write_atomically

SEAL_FILE: Final = "checkpoint.json"
FOLDER_NAME: Final = re.compile(r"step-(\d{8,})")


@dataclass
class Position:
    """How far a run is: whole epochs, samples of all processes in this epoch, steps in all."""

    epoch: int = 0
    seen: int = 0
    step: int = 0


class File(BaseModel):
    """One file beside the seal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    size: int = Field(ge=0, description="bytes")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Described(BaseModel):
    """What a checkpoint is of, beside its tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str
    model_options: dict[str, Option]
    dataset: str
    samples: int = Field(description="in the training data")
    optimizer: str
    position: Position
    processes: int
    seconds: float = Field(description="of training until here")
    held_out_loss: float | None = Field(description="None in the middle of an epoch")


class Seal(Described):
    """Written last: what a checkpoint must be to be read."""

    format: Literal[2] = 2
    files: tuple[File, ...]


def unfinished(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps is written, empty; what is there is removed."""
    path = folder / f".step-{step:08d}.tmp"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def sealed(path: Path) -> File:
    """Size and digest of a file. Raises OSError."""
    return File(name=path.name, size=path.stat().st_size, sha256=sha256_of(path))


def finish(written: Path, seal: Seal, keep: int, keep_best: bool) -> Path:
    """Seal what was written and give it its name, then remove what is not to be kept.

    Kept are the newest `keep`, and with `keep_best` the one with the least held-out loss. Those of
    later steps are removed: the run went back behind them. Raises OSError; the earlier checkpoints
    are then as they were.
    """
    folder, step = written.parent, seal.position.step
    target = folder / f"step-{step:08d}"
    text = seal.model_dump_json(indent=2).encode()
    write_atomically(written / SEAL_FILE, lambda stream: stream.write(text))
    if target.exists():
        # A damaged one, which the run went back behind.
        _remove(target)
    written.rename(target)
    sync_folder(folder)
    earlier = [path for path in checkpoints(folder) if _step(path) <= step]
    kept = set(earlier[-keep:])
    if keep_best:
        kept |= _best(earlier)
    for path in set(checkpoints(folder)) - kept:
        _remove(path)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if FOLDER_NAME.fullmatch(path.name)]
    return sorted(found, key=_step)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed was about to write, or to remove."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def read_seal(path: Path) -> Seal | str:
    """A checkpoint's seal, or what is wrong with it."""
    try:
        return Seal.model_validate_json((path / SEAL_FILE).read_bytes())
    except OSError as error:
        return f"{SEAL_FILE} cannot be read: {error.strerror}"
    except ValidationError as error:
        return f"{SEAL_FILE} is not as it was written: {first_problem(error, 'it')}"


def fault(path: Path, files: tuple[File, ...]) -> str | None:
    """What is wrong with some of a checkpoint's files, or None."""
    for file in files:
        try:
            size = (path / file.name).stat().st_size
            if size != file.size:
                return f"{file.name} has {size} bytes instead of {file.size}"
            if sha256_of(path / file.name) != file.sha256:
                return f"{file.name} has another digest than when it was saved"
        except OSError as error:
            return f"{file.name} cannot be read: {error.strerror}"
    return None


def _remove(path: Path) -> None:
    """Take its name away first: half of a checkpoint is none."""
    nameless = path.with_name(f".{path.name}.old.tmp")
    shutil.rmtree(nameless, ignore_errors=True)
    path.rename(nameless)
    shutil.rmtree(nameless, ignore_errors=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _best(paths: list[Path]) -> set[Path]:
    losses: dict[Path, float] = {}
    for path in paths:
        seal = read_seal(path)
        if isinstance(seal, Seal) and seal.held_out_loss is not None:
            losses[path] = seal.held_out_loss
    return {min(losses, key=losses.__getitem__)} if losses else set()
