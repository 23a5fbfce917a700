"""Safetensors files for tensors that are replicated in all processes or sharded across them.

torch.distributed.checkpoint writes the files with its safetensors storage. Each replicated tensor
is written by one process, and each process writes its shards of the DTensors. The number of
processes that read the files may differ from the number that wrote them.
"""

from pathlib import Path
from typing import Final

import torch.distributed as dist
from torch import Tensor, empty
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from training.gang.world import World
from workload.files import list_tree
from workload.run import on_rank0

Tensors = dict[str, Tensor]

WRITERS: Final = 8
"""Maximum number of processes that write replicated tensors. It is small because every process
opens the files of all these writers when the run resumes."""


def assign_tensors(tensors: Tensors, world: World) -> Tensors:
    """Return the tensors that this process saves: its shards of DTensors and some replicated ones.

    Every process computes the same assignment without communication. The replicated tensors are
    divided among the first `WRITERS` processes, with about the same number of bytes for each.
    """
    mine, load = dict(tensors), [0] * min(world.size, WRITERS)
    replicated = {
        name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)
    }
    for name in sorted(replicated, key=lambda name: (-replicated[name].nbytes, name)):
        rank = load.index(min(load))
        load[rank] += replicated[name].nbytes
        if rank != world.rank:
            del mine[name]
    return mine


def write(directory: Path, tensors: Tensors, group: dist.ProcessGroup, rank: int) -> list[Path]:
    """Write this process's part of all tensors to disk; return the paths of its files.

    Tensors that exist only in some processes must have unique names. All processes of the group
    must call this function together, and all raise OSError if one of them cannot write.
    """
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _first_error(error) from None
    prefix = f"shard-{rank + 1:05d}-"
    return [path for path in list_tree(directory) if path.name.startswith(prefix)]


class _Reader(HuggingFaceStorageReader):
    """Reader that reads the metadata of all files only on rank 0, and broadcasts it.

    Otherwise, every process would open the files of all other processes at least once.
    """

    def __init__(self, directory: Path, group: dist.ProcessGroup) -> None:
        super().__init__(str(directory))
        self._metadata: Metadata = on_rank0(super().read_metadata, group)

    def read_metadata(self) -> Metadata:
        """Return the metadata of all tensors."""
        return self._metadata


def read(
    directory: Path,
    tensors: Tensors,
    extra_prefixes: tuple[str, ...],
    optional_prefix: str,
    exact_prefixes: tuple[str, ...],
    group: dist.ProcessGroup,
) -> tuple[Tensors, set[str]]:
    """Fill `tensors` in place with the tensors in the files.

    The result contains:

    - the tensors in the files whose names start with one of `extra_prefixes`, on the CPU
    - the names in `tensors` that start with `optional_prefix` and are not in the files

    Raises:
        ValueError: If any other name in `tensors` is not in the files, if a shape differs, or if
            the files contain a tensor that is not in `tensors` although its name starts with one
            of `exact_prefixes`.
        OSError: If the files cannot be read.
    """
    reader = _Reader(directory, group)
    stored = reader.read_metadata().state_dict_metadata
    extra = {name for name in stored if name.startswith(exact_prefixes)} - tensors.keys()
    if extra:
        raise ValueError(f"the checkpoint has the tensor {min(extra)}, which this run lacks")
    others: Tensors = {}
    for name, kind in stored.items():
        if name.startswith(extra_prefixes) and isinstance(kind, TensorStorageMetadata):
            others[name] = empty(kind.size, dtype=kind.properties.dtype)
    missing = {name for name in tensors if name.startswith(optional_prefix) and name not in stored}
    wanted: Tensors = {name: tensors[name] for name in tensors if name not in missing}
    for name, tensor in wanted.items():
        found = stored.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise ValueError(f"the checkpoint has no tensor {name}")
        if found.size != tensor.shape:
            raise ValueError(f"{name} has shape {list(found.size)}, not {list(tensor.shape)}")
    try:
        load(dict(wanted | others), storage_reader=reader, process_group=group)
    except CheckpointException as error:
        raise _first_error(error) from None
    return others, missing


def _first_error(error: CheckpointException) -> Exception:
    """Return the underlying error: an OSError if files could not be accessed, else a RuntimeError.

    CheckpointException itself is a BaseException that contains the stack traces of all processes.
    """
    reasons = [reason for reason, _ in error.failures.values()]
    for reason in reasons:
        if isinstance(reason, OSError):
            return OSError(reason.errno, reason.strerror or str(reason), reason.filename)
    for reason in reasons:
        if "os error" in str(reason).lower() or "No space" in str(reason):
            return OSError(str(reason))
    return RuntimeError(f"{type(reasons[0]).__name__}: {reasons[0]}")
