"""A copy of a run's tensors in the CPU's memory, to be written while training changes them."""

import functools

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from training.sharded_tensors import Tensors


class Staging:
    """Memory that is taken once and used for every checkpoint: new memory is slow to touch."""

    def __init__(self) -> None:
        self._copies: Tensors = {}

    def copy(self, tensors: Tensors) -> Tensors:
        """The tensors as they are now; good until the next call. DTensors stay DTensors."""
        copied = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        copy = self._copies.get(name)
        if copy is None or (copy.shape, copy.dtype) != (local.shape, local.dtype):
            copy = torch.empty(
                local.shape, dtype=local.dtype, pin_memory=local.device.type == "cuda"
            )
            self._copies[name] = copy
        copy.copy_(local, non_blocking=True)
        if not isinstance(tensor, DTensor):
            return copy
        return DTensor.from_local(
            copy,
            self._mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )

    @functools.cached_property
    def _mesh(self) -> DeviceMesh:
        """All processes in a row, as FSDP has them, with the CPU's memory."""
        return init_device_mesh("cpu", (dist.get_world_size(),))
