"""Examples of custom models, losses and metrics, some with mistakes that users make.

The models take images of 1x8x8.
"""

import os
import signal
import time
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Frozen(nn.Module):
    """A model with a frozen backbone and a trainable head."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = nn.Linear(prod(input_shape), 8).requires_grad_(False)
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x.flatten(1)).relu())
        return logits


class CompletelyFrozen(Frozen):
    """A model without a trainable parameter."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs, input_shape)
        self.requires_grad_(False)


class ChannelsLast(nn.Sequential):
    """A convolution whose weights are not contiguous."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(nn.Conv2d(2, outputs, 8), nn.Flatten())
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(torch.cat((x, x.flip(-1)), 1))
        return logits


class Unused(Frozen):
    """A model with a parameter that it does not use."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs, input_shape)
        self.spare = nn.Linear(8, outputs)


class Normalized(nn.Module):
    """A model with batch norm."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(prod(input_shape), 16)
        self.norm = nn.BatchNorm1d(16, momentum=0.9)
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(self.first(x.flatten(1))).relu())
        return logits


class Dropping(nn.Module):
    """A small model with dropout, which depends on the restored random number generator."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(prod(input_shape), 32)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropout(self.first(x.flatten(1)).relu()))
        return logits


class Steep(Dropping):
    """A model whose first gradients overflow in fp16, so that its loss scale decreases."""

    def forward(self, x: Tensor) -> Tensor:
        return 100 * super().forward(x)


class Quantized(Frozen):
    """A model with frozen integer weights."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs, input_shape)
        weight = torch.randint(-8, 8, (8, prod(input_shape)), dtype=torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1) @ self.weight.to(x.dtype).T / 8)
        return logits


class WithExtraState(Frozen):
    """A model with state that is neither a parameter nor a buffer."""

    def __init__(
        self, outputs: int, input_shape: tuple[int, ...], elements: int | None = None
    ) -> None:
        super().__init__(outputs, input_shape)
        self.state: object = {"calls": 0} if elements is None else torch.zeros(elements)

    def get_extra_state(self) -> object:
        return self.state

    def set_extra_state(self, state: object) -> None:
        self.state = state


class WithMask(Frozen):
    """A model with a buffer of the given data type, whose elements may share memory."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...], dtype: str, share: bool) -> None:
        super().__init__(outputs, input_shape)
        mask = torch.ones(1).to(getattr(torch, dtype)).expand(2)
        self.register_buffer("mask", mask if share else mask.contiguous())


class Wrapped(Frozen):
    """A model that returns its logits in an object, like those of transformers."""

    def forward(self, x: Tensor) -> Tensor:
        return {"logits": super().forward(x)}  # type: ignore[return-value]


class TooFew(Frozen):
    """A model that has one output too few."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs - 1, input_shape)


class Fragile(Frozen):
    """A model that fails for batch sizes other than two."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 2:
            raise TypeError("only two at a time")
        return super().forward(x)


class InFullPrecision(Frozen):
    """A model that cannot compute in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if logits.dtype != torch.float32:
            raise TypeError("only in fp32")
        return logits


class BadInEvaluation(Frozen):
    """A model whose held-out loss is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits if self.training else logits * torch.nan


class BadGradient(Frozen):
    """A model whose gradients are NaN in one step."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...], step: int) -> None:
        super().__init__(outputs, input_shape)
        # The program calls the model once before the first step, to check it.
        self.left = step + 1

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        self.left -= self.training
        if self.left == 0 and logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * torch.nan)
        return logits


class BadWeight(Frozen):
    """A model with a weight that becomes infinite in the first step despite a finite gradient."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs, input_shape)
        self.calls = 0
        self.head.weight.register_post_accumulate_grad_hook(self._spoil)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x)

    def _spoil(self, weight: Tensor) -> None:
        # The program calls the model once before the first step, to check it.
        if self.calls > 1:
            weight.data.fill_(torch.inf)


class StoppedInEvaluation(Frozen):
    """A model that sends SIGTERM to its process in its first evaluation."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...], flag: str) -> None:
        super().__init__(outputs, input_shape)
        self.flag = Path(flag)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(x)


class Recorded(Frozen):
    """A model that writes the sizes of its batches to a file."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...], file: str) -> None:
        super().__init__(outputs, input_shape)
        self.file = Path(file)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with self.file.open("a") as stream:
                stream.write(f"{len(x)}\n")
        return super().forward(x)


class Slow(Frozen):
    """A model whose forward pass on rank 1 is slow in one step."""

    def __init__(
        self, outputs: int, input_shape: tuple[int, ...], step: int, seconds: float
    ) -> None:
        super().__init__(outputs, input_shape)
        self.left, self.seconds = step, seconds

    def forward(self, x: Tensor) -> Tensor:
        counts = self.training and len(x) > 2
        self.left -= counts
        if counts and self.left == 0 and dist.get_rank() == 1:
            time.sleep(self.seconds)
        return super().forward(x)


class Deep(nn.Module):
    """A small model with two blocks, which record their calls."""

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Linear(prod(input_shape), 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).tanh()
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.last(x)
        return logits


class Overflowing(Deep):
    """A `Deep` model in which a gradient overflows on the last rank in one step."""

    STEP = 3

    def __init__(self, outputs: int, input_shape: tuple[int, ...]) -> None:
        super().__init__(outputs, input_shape)
        self.left = self.STEP

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).tanh()
        for block in self.blocks:
            x = block(x)
        bias = self.last.bias.clone()
        # The program computes two samples before training, to check the model.
        counts = self.training and len(x) > 2
        self.left -= counts
        if counts and self.left == 0 and _is_last_rank():
            bias.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(0), torch.inf))
        return torch.nn.functional.linear(x, self.last.weight) + bias


def _is_last_rank() -> bool:
    """Return whether this process is the last rank; False without a gang, as in the reference."""
    return dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1


class Block(nn.Module):
    """A block that counts its calls and records the dtypes of its weights and results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.forget()

    def forget(self) -> None:
        self.calls = 0
        self.weights: set[torch.dtype] = set()
        self.results: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if not torch.compiler.is_compiling():
            self.calls += 1
            self.weights.add(self.linear.weight.dtype)
            self.results.add(y.dtype)
        return y.tanh()


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy with label smoothing."""
    return cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)


def mean(logits: Tensor, targets: Tensor) -> Tensor:
    """Return one loss for the whole batch instead of one per sample."""
    return cross_entropy(logits, targets)


def undefined_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a finite loss whose gradient is NaN, because sqrt has no derivative at 0."""
    return cross_entropy(logits, targets, reduction="none") + (logits[:, 0] * 0).sqrt()


def constant(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss without a gradient."""
    return (logits.argmax(1) != targets).float()


def confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the probability of the predicted class."""
    return logits.softmax(1).amax(1)


def in_first_three(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether the target is among the three most probable classes."""
    return (logits.topk(3).indices == targets[:, None]).any(1)


def text(logits: Tensor, targets: Tensor) -> str:
    """Return a metric that is not a tensor."""
    return "good"


def elsewhere(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a metric on another device than the logits."""
    return (logits.argmax(1) == targets).to("meta")


def in_place(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a metric, and change the logits that other metrics use."""
    return logits.sub_(logits.logsumexp(1, keepdim=True)).gather(1, targets[:, None])[:, 0]


def relabeled(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss, and change the targets from which the accuracy is computed."""
    targets.fill_(0)
    return cross_entropy(logits, targets, reduction="none")


def undefined_in_evaluation(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a metric that is NaN (0 / 0) for held-out samples, but not in the initial check."""
    return targets.double() / (len(targets) == 2)


def bad_on_rank_0(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a cross entropy that becomes infinite only on rank 0, with finite gradients."""
    loss = cross_entropy(logits, targets, reduction="none")
    is_bad = dist.get_rank() == 0 and len(targets) != 2
    return loss + torch.full_like(loss, torch.inf) if is_bad else loss
