"""Checkpoint directories, which are published atomically, verified when read, and rotated.

`checkpoints/step-00000046/` contains safetensors files, written by all processes, and the seal:
`checkpoint.json`, which lists the size and digest of each file. The directory gets its final name
when everything is on disk. It contains only data, so reading it does not execute code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from workload import files
from workload.catalog import Option
from workload.configuration import ConfigurationError, first_problem
from workload.files import describe, publish_folder, remove_folder, sha256_of, write_atomically

SEAL_FILE: Final = "checkpoint.json"


@dataclass
class Position:
    """Progress of a run in epochs, samples and steps.

    `epoch` counts complete epochs, `seen` the samples of all processes in the current epoch, and
    `step` the steps since the start of the run.
    """

    epoch: int = 0
    seen: int = 0
    step: int = 0


class File(BaseModel):
    """File of a checkpoint, as listed in the seal."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    size: int = Field(ge=0, description="Size in bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Seal(BaseModel):
    """Content of checkpoint.json, which is written last."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model: str
    model_options: dict[str, Option]
    dataset: str
    samples: int = Field(description="Number of training samples.")
    optimizer: str
    seed: int | None = Field(default=None, description="None in older checkpoints.")
    data_sha256: str | None = Field(
        default=None, description="Digest of the data set; None in older checkpoints."
    )
    lora_alpha: float | None = Field(
        default=None, description="None without LoRA and in older checkpoints."
    )
    position: Position
    processes: int
    seconds: float = Field(description="Seconds of training so far.")
    held_out_loss: float | None = Field(
        description="Held-out loss; None until the weights are evaluated."
    )
    format: Literal[2] = 2
    files: tuple[File, ...]


def file_entry(path: Path) -> File:
    """Return the size and digest of a file. Raise OSError on failure."""
    return File(name=path.name, **describe(path))


def seal_checkpoint(written: Path, seal: Seal) -> Path:
    """Seal a written checkpoint and rename it; return its directory. Raise OSError on failure."""
    write_atomically(written / SEAL_FILE, seal.model_dump_json(indent=2).encode())
    # If a checkpoint with this name exists, it is damaged (the run resumed from an earlier one) and
    # is replaced.
    return publish_folder(written)


def amend_checkpoint(path: Path, position: Position, seconds: float, held_out_loss: float) -> None:
    """Add an evaluation to a checkpoint. If that fails, raise OSError and change nothing."""
    seal = read_seal(path)
    if isinstance(seal, str):
        raise OSError(f"{path} is damaged: {seal}")
    update = {"position": position, "seconds": seconds, "held_out_loss": held_out_loss}
    text = seal.model_copy(update=update).model_dump_json(indent=2).encode()
    write_atomically(path / SEAL_FILE, text)


def rotate(newest: Path, keep: int, keep_best: bool, copying: Path | None = None) -> None:
    """Remove all checkpoints except the retained ones and `copying`, the one that is being copied.

    Raise OSError on failure.
    """
    paths = {files.step_of(path): path for path in files.list_checkpoints(newest.parent)}
    losses: dict[int, float | None] = dict.fromkeys(paths)
    if keep_best:
        seals = {step: read_seal(path) for step, path in paths.items()}
        losses |= {step: s.held_out_loss for step, s in seals.items() if isinstance(s, Seal)}
    kept = retained_steps(losses, files.step_of(newest), keep, keep_best)
    for step, path in paths.items():
        if step not in kept and path != copying:
            remove_folder(path)


def retained_steps(
    losses: Mapping[int, float | None], newest: int, keep: int, keep_best: bool
) -> set[int]:
    """Return the steps of the checkpoints to keep. `losses` maps steps to held-out losses.

    The newest `keep` checkpoints are kept and, with `keep_best`, also the checkpoint with the
    lowest held-out loss. Checkpoints of steps after `newest` are not kept, because the run resumed
    from an earlier one.
    """
    earlier = sorted(step for step in losses if step <= newest)
    evaluated = {step: loss for step in earlier if (loss := losses[step]) is not None}
    best = {min(evaluated, key=evaluated.__getitem__)} if keep_best and evaluated else set()
    return {*earlier[-keep:], *best}


def read_seal(path: Path) -> Seal | str:
    """Return a checkpoint's seal, or a description of what is wrong with it.

    Raise OSError if it exists but cannot be read.
    """
    try:
        return parse_seal((path / SEAL_FILE).read_bytes(), str(path))
    except FileNotFoundError as error:
        return f"{SEAL_FILE} cannot be read: {error.strerror}"
    except OSError as error:
        raise _unreadable(path, SEAL_FILE, error) from None


def parse_seal(text: bytes, location: str) -> Seal | str:
    """Parse the seal of the checkpoint at `location`; return it, or a description of its damage.

    Raise ConfigurationError if another version of the program wrote it in a different format. Such
    a checkpoint is not damaged, and must not be skipped, because the next save would remove it.
    """
    try:
        return Seal.model_validate_json(text)
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"] == ("format",):
                raise ConfigurationError(
                    f"{location}/{SEAL_FILE} has format {detail['input']}, but this version reads "
                    "format 2: resume with the version that wrote it, or choose another run_dir"
                ) from None
        problem = first_problem(error, "the document")
        return f"{SEAL_FILE} has changed since it was written: {problem}"


def find_fault(path: Path, files: tuple[File, ...]) -> str | None:
    """Return the first problem with the given files, or None.

    Raise OSError if a file exists but cannot be read. The checkpoint may be intact, and must not be
    skipped, because the next save would remove it.
    """
    for file in files:
        try:
            size = (path / file.name).stat().st_size
            if size != file.size:
                return f"{file.name} has {size} bytes instead of {file.size}"
            if sha256_of(path / file.name) != file.sha256:
                return f"{file.name} has changed since it was saved"
        except FileNotFoundError as error:
            return f"{file.name} cannot be read: {error.strerror}"
        except OSError as error:
            raise _unreadable(path, file.name, error) from None
    return None


def _unreadable(path: Path, name: str, error: OSError) -> OSError:
    return OSError(
        f"{path / name} cannot be read: {error.strerror}; if this persists, remove {path} to "
        "resume from an earlier checkpoint"
    )
