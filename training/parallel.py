"""How processes compute one model together, and in which precision: outside of the model."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from training.config import TrainingConfig
from workload.models.structure import blocks

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

COMPRESSIONS = {
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}
"""Communication hooks of DDP that send two bytes for each gradient value."""


class Parallel:
    """A model that all processes train together.

    `model` is the model itself, whose names are those of a checkpoint; calling this computes with
    all processes. With FSDP2 its parameters are DTensors, of which each process has a part.
    """

    def __init__(self, model: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        """Every process must give a model with the same weights, already on its device."""
        self.model, self._device = model, device
        self._dtype = PRECISIONS[config.precision]
        units = blocks(model) or [model]
        if config.activation_checkpointing:
            for unit in units:
                _compute_again(unit)
        if config.compile:
            for unit in units:
                unit.compile()
        if config.parallel == "fsdp":
            self._whole: nn.Module = self._shard(units)
        else:
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
            if config.gradient_compression != "none":
                ddp.register_comm_hook(None, COMPRESSIONS[config.gradient_compression])
            self._whole = ddp
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits of inputs N x sample shape, in fp32."""
        with torch.autocast(self._device.type, self._dtype, self._dtype != torch.float32):
            # Nothing is exchanged without gradients: DDP would send the statistics of batch norm.
            logits: Tensor = (self._whole if torch.is_grad_enabled() else self.model)(inputs)
        return logits.float()

    def train(self, mode: bool) -> None:
        """Whether dropout and batch norm are at work."""
        self._whole.train(mode)

    @contextlib.contextmanager
    def exchanging(self, gradients: bool) -> Iterator[None]:
        """Inside, a backward pass adds to the gradients; they are exchanged only where asked."""
        if isinstance(self._whole, DistributedDataParallel):
            with contextlib.nullcontext() if gradients else self._whole.no_sync():
                yield
        else:
            cast(FSDPModule, self._whole).set_requires_gradient_sync(gradients)
            yield

    def clip(self, largest: float) -> Tensor:
        """The Euclidean norm of all gradients together, a scalar, before they are scaled to it.

        Where `largest` is 0 they are left as they are.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if largest:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), largest, norm)
        return whole(norm)

    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; with FSDP this process's parts of them."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                # After an evaluation the whole parameters may still be there.
                module.reshard()
        return dict(self.model.named_parameters())

    def weights(self) -> dict[str, Tensor]:
        """All weights and buffers, complete and on the CPU; all processes must call this."""
        state: dict[str, Tensor] = self.model.state_dict()
        return {name: whole(tensor.detach()).cpu() for name, tensor in state.items()}

    def settle(self, inputs: Tensor) -> None:
        """Do what DDP does once after its first step, without a trace.

        It sorts the gradients into other buckets then. A resumed run must have done so before its
        first step, as the run that was never interrupted has: else sums are added up in another
        order.
        """
        if not isinstance(self._whole, DistributedDataParallel) or dist.get_world_size() == 1:
            return
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self.train(True)
            (self(inputs).sum() * 0).backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad()
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    def _shard(self, units: list[nn.Module]) -> nn.Module:
        policy = MixedPrecisionPolicy()
        if self._dtype != torch.float32:
            policy = MixedPrecisionPolicy(param_dtype=self._dtype, reduce_dtype=torch.float32)
        for unit in units:
            if unit is not self.model:
                fully_shard(unit, mp_policy=policy)
        return cast(nn.Module, fully_shard(self.model, mp_policy=policy))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this process may have a part only; all must call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _compute_again(unit: nn.Module) -> None:
    """Keep only the unit's input, and compute what is inside once more for the backward pass."""
    forward: Callable[..., Tensor] = unit.forward
    unit.forward = functools.partial(checkpoint, forward, use_reentrant=False)
