"""Parallelism and precision of a model: DDP, FSDP2, autocast and activation checkpointing."""

import contextlib
import functools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from training.accelerator import precision_of
from training.config import TrainingConfig
from training.data import Dataset
from training.data.loader import scale
from training.gang.distributed import is_lost_peer
from training.objective import Objective, check_output
from workload.configuration import ConfigurationError
from workload.devices import PRECISIONS
from workload.models.structure import blocks

COMPRESSIONS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
"""DDP communication hooks that send two bytes per gradient value."""


class Parallel:
    """A model that all processes train together.

    `model` is the unwrapped model, whose parameter names are used in checkpoints. Calling this
    object computes the logits on all processes. With FSDP2, the parameters are DTensors.
    """

    def __init__(self, model: nn.Module, config: TrainingConfig, device: torch.device) -> None:
        """Wrap a model that is on its device and has the same weights in every process."""
        self.model, self._device = model, device
        self._dtype = PRECISIONS[precision_of(config, device)]
        units = blocks(model) or [model]
        for unit in units:
            if config.compile:
                # Compile the function before `checkpoint` wraps it: compiling a module with a
                # checkpointed forward has no effect.
                unit.forward = torch.compile(unit.forward)
            if config.activation_checkpointing:
                # Keep only the inputs of a block, and recompute its activations when needed. The
                # recomputation must not update batch norm statistics again.
                unit.forward = functools.partial(
                    checkpoint,
                    unit.forward,
                    use_reentrant=False,
                    context_fn=lambda unit=unit: (nullcontext(), _preserved_buffers(unit)),
                )
        if config.parallel == "fsdp":
            self._wrapped: nn.Module = self._shard(units)
        else:
            ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
            if config.gradient_compression != "none":
                ddp.register_comm_hook(None, COMPRESSIONS[config.gradient_compression])
            self._wrapped = ddp
        self._mode: bool | None = None
        self._parameters = list(self._wrapped.parameters())
        self.scaler = torch.amp.GradScaler(device.type, enabled=self._dtype == torch.float16)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits in fp32 for inputs of shape (N, *sample shape)."""
        with torch.autocast(self._device.type, self._dtype, self._dtype != torch.float32):
            # Without gradients, use the unwrapped model: DDP would broadcast batch norm statistics.
            logits: Tensor = (self._wrapped if torch.is_grad_enabled() else self.model)(inputs)
        return logits.float()

    def train(self, mode: bool) -> None:
        """Switch dropout and batch norm between training and evaluation mode."""
        # Switching every module takes as long as computing a small layer, so do it only if needed.
        if mode != self._mode:
            self._wrapped.train(mode)
            self._mode = mode

    def synchronize_gradients(self, enabled: bool) -> None:
        """Select whether the next backward pass synchronizes the gradients or accumulates them."""
        if isinstance(self._wrapped, DistributedDataParallel):
            self._wrapped.require_backward_grad_sync = enabled
        else:
            cast(FSDPModule, self._wrapped).set_requires_gradient_sync(enabled)

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradients to a total norm of `max_norm`, unless `max_norm` is 0.

        Return the norm before clipping.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if max_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, max_norm, norm)
        return complete_tensor(norm)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name; with FSDP, they are sharded."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                # After an evaluation, the parameters may still be unsharded.
                module.reshard()
        return dict(self.model.named_parameters())

    @contextlib.contextmanager
    def averaged_buffers(self) -> Iterator[None]:
        """Within the context, replace the saved buffers with their means over all processes.

        Integer buffers are copied from rank 0. Batch norm statistics differ between processes, but
        only one model is evaluated and exported. All processes must enter the context together.
        """
        buffers = self.saved_buffers() if dist.get_world_size() > 1 else {}
        with _preserved_buffers(self.model):
            for buffer in buffers.values():
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= dist.get_world_size()
                else:
                    dist.broadcast(buffer, 0)
            yield

    def saved_buffers(self) -> dict[str, Tensor]:
        """Return the buffers in the model's state, such as batch norm statistics."""
        names = self.model.state_dict().keys()
        return {name: buffer for name, buffer in self.model.named_buffers() if name in names}

    def weights(self) -> dict[str, Tensor]:
        """Return all weights and buffers, unsharded, on the CPU.

        All processes must call this method together.
        """
        state: dict[str, Tensor] = self.model.state_dict()
        return {name: complete_tensor(tensor.detach()).cpu() for name, tensor in state.items()}

    def rebuild_buckets(self, inputs: Tensor) -> None:
        """Make DDP rebuild its buckets, as it does after its first step, without side effects.

        The rebuilt buckets change the order in which gradients are summed. A resumed run must
        therefore rebuild them before its first step, to compute exactly what an uninterrupted run
        computes.
        """
        if not isinstance(self._wrapped, DistributedDataParallel) or dist.get_world_size() == 1:
            return
        with _preserved_state(self.model, self._device):
            self.train(True)
            (self(inputs).sum() * 0).backward()  # type: ignore[no-untyped-call]

    def _shard(self, units: list[nn.Module]) -> nn.Module:
        policy = MixedPrecisionPolicy()
        # Batch norm needs its weights in the precision of its statistics. For models with such
        # statistics, gather fp32 weights and let autocast select the precision of each operation.
        # DDP works in the same way.
        has_statistics = any(
            name.endswith("running_mean") for name, _ in self.model.named_buffers()
        )
        if self._dtype != torch.float32 and not has_statistics:
            policy = MixedPrecisionPolicy(param_dtype=self._dtype, reduce_dtype=torch.float32)
        for unit in units:
            if unit is not self.model:
                fully_shard(unit, mp_policy=policy)
        return cast(nn.Module, fully_shard(self.model, mp_policy=policy))


def check_tensors(model: nn.Module, config: TrainingConfig, device: torch.device) -> None:
    """Check that the model's tensors can be sent to other processes and restored in place.

    All processes must call this function together. Raise ConfigurationError for a tensor of a type
    that the communication backend does not support, and for an expanded tensor.
    """
    tensors = (*model.named_parameters(), *model.named_buffers())
    for name, tensor in tensors:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if any(size > 1 and not step for size, step in steps):
            raise ConfigurationError(
                f"model {config.model} has the expanded tensor {name}, whose elements share "
                "memory: store a copy (.contiguous())"
            )
    for dtype, name in {tensor.dtype: name for name, tensor in tensors}.items():
        try:
            dist.broadcast(torch.zeros(1, dtype=dtype, device=device), 0)
        except (RuntimeError, TypeError) as error:
            if is_lost_peer(error):
                raise
            raise ConfigurationError(
                f"model {config.model} has the tensor {name} of type {dtype}, which "
                f"processes cannot exchange ({error}): use another type, such as torch.int32"
            ) from None


def check_model(
    model: nn.Module,
    config: TrainingConfig,
    objective: Objective,
    data: Dataset,
    device: torch.device,
) -> None:
    """Compute the loss of a small batch with an unwrapped model, without modifying the model.

    The batch has two samples (one if `batch_size` is 1), because batch norm may not support a
    single sample. Raise ConfigurationError for errors in the user's code, which would recur after
    every restart.
    """
    if not any(each.requires_grad for each in model.parameters()):
        raise ConfigurationError(
            f"model {config.model} has no parameter to train: set requires_grad on at least one"
        )
    count = min(config.batch_size, 2)
    pixels, targets = data.train.batch(np.resize(np.arange(len(data.train)), count))
    inputs = scale(torch.from_numpy(pixels).to(device), data.train.divisor)
    dtype = PRECISIONS[precision_of(config, device)]
    with _preserved_state(model, device):
        model.train()
        try:
            with torch.autocast(device.type, dtype, dtype != torch.float32):
                found = model(inputs)
            shape = (*targets.shape, data.outputs)
            wanted = f"logits of shape {list(shape)} (for a transformers model, return its .logits)"
            logits = check_output(f"model {config.model}", found, shape, wanted)
            objective.check(logits, torch.from_numpy(targets).to(device))
            if config.parallel == "ddp":
                logits.sum().backward()  # type: ignore[no-untyped-call]
        except (ConfigurationError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:
            raise ConfigurationError(
                f"model {config.model} cannot process a batch of shape {list(inputs.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        extra = [
            name
            for name, value in model.state_dict().items()
            if name.endswith("_extra_state")
            and not (isinstance(value, Tensor) and value.numel() == 0)
        ]
        if extra:
            raise ConfigurationError(
                f"model {config.model} has the state {', '.join(extra)} (get_extra_state), which "
                "checkpoints do not contain: store it in a buffer"
            )
        named = dict(model.named_parameters())
        unused = [name for name, each in named.items() if each.requires_grad and each.grad is None]
        if config.parallel == "ddp" and unused:
            raise ConfigurationError(
                f"model {config.model} does not use {', '.join(unused)}, which ddp would wait for: "
                "freeze them with requires_grad_(False), or set parallel to fsdp"
            )


@contextlib.contextmanager
def _preserved_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """After the context, restore the buffers and the random state, and remove the gradients."""
    devices = [device] if device.type == "cuda" else []
    with _preserved_buffers(model), torch.random.fork_rng(devices):
        yield
    model.zero_grad()


@contextlib.contextmanager
def _preserved_buffers(model: nn.Module) -> Iterator[None]:
    """After the context, restore the buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            # Without `data`, autograd would reject the in-place change if it has saved the buffer.
            buffer.data.copy_(buffers[name])


def complete_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor; return other tensors unchanged.

    All processes must call this function together.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
