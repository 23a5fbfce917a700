"""Tensors of all processes to safetensors files and back, whatever part of them each one has.

torch.distributed.checkpoint with its safetensors storage: a tensor that all have is written by one
of them, a DTensor by all in parts, and any number of processes can read it again.
"""

from pathlib import Path

import torch.distributed as dist
from torch import Tensor, empty
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from training.world import World

Tensors = dict[str, Tensor]


def share(tensors: Tensors, world: World) -> Tensors:
    """What this process saves of tensors that all have: its parts of DTensors, and some others.

    The same for all, without asking one another, and about equally many bytes for each process.
    """
    mine, load = dict(tensors), [0] * world.size
    whole = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}
    for name in sorted(whole, key=lambda name: (-whole[name].nbytes, name)):
        rank = load.index(min(load))
        load[rank] += whole[name].nbytes
        if rank != world.rank:
            del mine[name]
    return mine


def write(folder: Path, tensors: Tensors, group: dist.ProcessGroup, rank: int) -> list[Path]:
    """Write this process's part of all tensors and bring it to the disk; gives its files.

    Tensors that only some processes have must have names of their own. All processes of the group
    call it together, and all raise OSError when one of them could not write.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _plain(error) from None
    return sorted(folder.glob(f"shard-{rank + 1:05d}-*.safetensors"))


def read(
    folder: Path, tensors: Tensors, beginnings: tuple[str, ...], group: dist.ProcessGroup
) -> Tensors:
    """Fill `tensors` in place from what was written.

    Gives besides all others whose names begin with one of `beginnings`, on the CPU. Raises
    ValueError when a tensor is not there or has another shape, OSError when it cannot be read.
    """
    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    others: Tensors = {}
    for name, kind in stored.items():
        if name.startswith(beginnings) and isinstance(kind, TensorStorageMetadata):
            others[name] = empty(kind.size, dtype=kind.properties.dtype)
    for name, tensor in tensors.items():
        found = stored.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise ValueError(f"it has no tensor {name}")
        if found.size != tensor.shape:
            raise ValueError(f"{name} is {list(found.size)} instead of {list(tensor.shape)}")
    wanted: dict[str, Tensor] = tensors | others
    try:
        load(dict(wanted), storage_reader=reader, process_group=group)
    except CheckpointException as error:
        raise _plain(error) from None
    return others


def _plain(error: CheckpointException) -> Exception:
    """The first thing that went wrong; the library's own is no Exception, and shows every stack."""
    reasons = [reason for reason, _ in error.failures.values()]
    for reason in reasons:
        if isinstance(reason, OSError):
            return OSError(reason.errno, reason.strerror or str(reason), reason.filename)
    for reason in reasons:
        if "os error" in str(reason).lower() or "No space" in str(reason):
            return OSError(str(reason))
    return RuntimeError(f"{type(reasons[0]).__name__}: {reasons[0]}")
