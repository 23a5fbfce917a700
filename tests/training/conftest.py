import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from training.config import TrainingConfig
from training.gang.world import World
from training.train import run

ALONE = World(rank=0, size=1, local_rank=0, master="")
Train = Callable[..., int]


def make_unavailable(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Let every inspection of a path fail; as in Python 3.14, only `stat` reports the error."""
    inspect = Path.stat

    def fail(self: Path, **options: bool) -> Any:
        if self == path:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return inspect(self, **options)

    patch.setattr(Path, "stat", fail)
    for name in ("exists", "is_dir", "is_file", "is_symlink"):
        method = getattr(Path, name)
        patch.setattr(Path, name, lambda self, method=method: self != path and method(self))


def leave_group() -> None:
    """Leave the process group of a failed run, which otherwise lasts until the process exits."""
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def process_group_cleanup() -> Iterator[None]:
    """Leave the process group at the end of each test."""
    yield
    leave_group()


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """A function that trains in this process, in a directory below tmp_path; see `train_in`."""
    return partial(train_in, tmp_path)


def train_in(folder: Path, run_dir: str = "run", **settings: object) -> int:
    """Train in this process as a gang of one.

    Keyword arguments are settings; None removes a default of this function.
    """
    small = {"model": "digits-net", "dataset": "digits", "epochs": 2, "device": "cpu"}
    values = small | settings | {"run_dir": str(folder / run_dir)}
    values = {name: value for name, value in values.items() if value is not None}
    try:
        return run(TrainingConfig.model_validate(values), ALONE)
    finally:
        leave_group()
