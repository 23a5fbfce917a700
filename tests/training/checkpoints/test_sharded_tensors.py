import errno
import functools
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.training.forked_gang import run_gang
from training.checkpoints import sharded_tensors
from training.checkpoints.sharded_tensors import WRITERS, assign_tensors, read, write
from training.gang.distributed import joined
from training.gang.world import World


@given(sizes=st.lists(st.integers(0, 50), max_size=30), processes=st.integers(1, 5))
def test_tensors_are_divided_evenly_and_each_is_saved_by_one_process(
    sizes: list[int], processes: int
) -> None:
    tensors = {f"weight-{number}": torch.zeros(size) for number, size in enumerate(sizes)}
    shares = [
        assign_tensors(tensors, World(rank=rank, size=processes, local_rank=0, master=""))
        for rank in range(processes)
    ]
    assert sorted(name for mine in shares for name in mine) == sorted(tensors)
    loads = [sum(tensor.nbytes for tensor in mine.values()) for mine in shares]
    assert max(loads) - min(loads) <= 4 * max(sizes, default=0)


def test_replicated_tensors_are_written_by_a_few_processes() -> None:
    tensors = {f"weight-{number}": torch.zeros(1) for number in range(100)}
    worlds = [World(rank=rank, size=50, local_rank=0, master="") for rank in range(50)]
    assert [bool(assign_tensors(tensors, world)) for world in worlds] == [
        rank < WRITERS for rank in range(50)
    ]


def save_and_read(folder: Path, world: World) -> tuple[list[str], torch.Tensor]:
    """Save and load one shard; return the names of the files opened for it, and the shard."""
    with joined(world, torch.device("cpu"), 60), pytest.MonkeyPatch.context() as patch:
        mesh = init_device_mesh("cpu", (world.size,))
        tensor = torch.arange(12.0).reshape(6, 2)
        write(folder, {"w": distribute_tensor(tensor, mesh, [Shard(0)])}, group(), world.rank)
        dist.barrier()
        opened: list[str] = []
        original = safetensors.safe_open

        def open_and_record(filename: str, *arguments: Any, **options: Any) -> Any:
            opened.append(Path(filename).name)
            return original(filename, *arguments, **options)

        patch.setattr(safetensors, "safe_open", open_and_record)
        target = distribute_tensor(torch.zeros(6, 2), mesh, [Shard(0)])
        read(folder, {"w": target}, (), "optimizer/", ("model/",), group())
        return opened, target.to_local()


def save_unlistable(folder: Path, world: World) -> str:
    """Save tensors in a directory that cannot be listed afterwards; return the error."""

    def save_then_fail(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        patch.setattr("os.scandir", fail_to_list)

    def fail_to_list(path: Any) -> None:
        raise PermissionError(errno.ESTALE, "Stale file handle", path)

    with joined(world, torch.device("cpu"), 60), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_tensors, "save", save_then_fail)
        try:
            written = write(folder, {"w": torch.zeros(2)}, group(), world.rank)
        except OSError as error:
            return str(error.strerror)
        return f"wrote {len(written)} files"


def group() -> dist.ProcessGroup:
    world_group = dist.group.WORLD
    assert world_group is not None
    return world_group


def test_a_process_opens_only_the_files_of_its_shards(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    results = run_gang(3, functools.partial(save_and_read, folder), tmp_path)
    for rank, (opened, shard) in enumerate(results):
        own = f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        assert opened == [own] if rank else set(opened) >= {own}
        assert shard.tolist() == torch.arange(12.0).reshape(6, 2)[2 * rank : 2 * rank + 2].tolist()


def test_checkpoint_whose_files_cannot_be_listed_is_not_complete(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    assert run_gang(1, functools.partial(save_unlistable, folder), tmp_path) == [
        "Stale file handle"
    ]
