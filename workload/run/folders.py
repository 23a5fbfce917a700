"""Directories of checkpoints, such as `checkpoints/step-00000046`."""

import re
import shutil
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"step-(\d{8,})")


def checkpoint_of(folder: Path, step: int) -> Path:
    """Return the directory of the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, oldest first."""
    return sorted(
        (path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), key=step_of
    )


def recover(folder: Path) -> list[Path]:
    """Remove what a killed process has not completed; return all checkpoints, newest first."""
    for path in folder.glob(".step-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    return list_checkpoints(folder)[::-1]
