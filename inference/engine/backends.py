"""Backends: ways to compute the same network, chosen by configuration."""

import contextlib
import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any, Final

import torch
from torch import Tensor, nn

from inference.config import Backend
from workload.export import load_artifact, load_network
from workload.manifest import ExportError, Manifest

CPU_ONLY: Final = ("pt2", "int8")
"""Exported programs, which run only on the device type of their export."""

TRIAL_SAMPLES: Final = 4
"""Number of samples used to compare variants of a network."""

TOLERANCE: Final = 1e-4
"""Maximum difference caused by folding and layout, relative to the largest output."""


@dataclass(frozen=True)
class Choice:
    """The configured backend and its export. Compiled models are kept in `compile_cache`."""

    backend: Backend
    folder: Path
    manifest: Manifest
    device: torch.device
    own_model: str
    compile_cache: Path


def load_backend(choice: Choice) -> nn.Module:
    """Return the network on its device, in evaluation mode, after verifying its digest.

    Raise ExportError if the export lacks the backend's artifact, the machine cannot compute it, or
    the export cannot be loaded.
    """
    if choice.backend in CPU_ONLY and choice.device.type != "cpu":
        raise ExportError(
            f"backend {choice.backend} computes on the CPU only: configure device cpu, or the "
            "backend eager, compile or aotinductor"
        )
    match choice.backend:
        case "eager":
            return _fast(_network(choice), choice)
        case "pruned":
            pruned = load_artifact(choice.folder, choice.manifest, "pruned", choice.own_model)
            return _fast(pruned.to(choice.device), choice)
        case "compile":
            return _compiled(_network(choice), choice)
        case "aotinductor":
            return _ahead_of_time(choice)
        case _:
            return load_artifact(choice.folder, choice.manifest, choice.backend, choice.own_model)


class FunctionModule(nn.Module):
    """A module around a function that computes the network."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the function's output, unpacked from a list or tuple of one."""
        outputs = self._function(inputs)
        first: Tensor = outputs[0] if isinstance(outputs, list | tuple) else outputs
        return first


def example(choice: Choice, samples: int) -> Tensor:
    """Return inputs of the right shape and type: noise, or tokens that are all 0."""
    shape = (samples, *choice.manifest.input_shape)
    if choice.manifest.input_dtype == "int64":
        return torch.zeros(shape, dtype=torch.int64, device=choice.device)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator).to(choice.device)


def _network(choice: Choice) -> nn.Module:
    network = load_network(choice.folder, choice.manifest, choice.own_model)
    return network.requires_grad_(False).to(choice.device)


@torch.inference_mode()
def _fast(network: nn.Module, choice: Choice) -> nn.Module:
    """Fold batch norms into convolutions, and on a CPU choose the faster memory layout.

    Each change is kept only if the outputs stay the same.
    """
    kinds = {type(module) for module in network.modules()}
    inputs = example(choice, TRIAL_SAMPLES)
    if nn.BatchNorm2d in kinds:
        # Networks that torch.fx cannot trace stay as they are.
        from torch.fx.experimental.optimization import fuse

        network = _if_equal(network, partial(fuse, inplace=True), inputs)
    if nn.Conv2d in kinds and choice.device.type == "cpu":
        other = _if_equal(network, ChannelsLast, inputs)
        return min(network, other, key=lambda each: min(repeat(partial(each, inputs), number=1)))
    return network


def _if_equal(
    network: nn.Module, change: Callable[[nn.Module], nn.Module], inputs: Tensor
) -> nn.Module:
    """Return a changed copy of the network if its outputs are the same, else the network."""
    with contextlib.suppress(Exception):
        changed = change(copy.deepcopy(network))
        expected = network(inputs)
        difference = float((changed(inputs) - expected).abs().max())
        if difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            return changed
    return network


class ChannelsLast(nn.Module):
    """A convolutional network in the channels-last memory format."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output."""
        outputs: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
        return outputs


@torch.inference_mode()
def _compiled(network: nn.Module, choice: Choice) -> nn.Module:
    """Compile with torch.compile for any batch size, with constants folded and packed."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    compiled = torch.compile(network, dynamic=True)
    try:
        # The compiler specializes for one sample, so both cases are warmed up.
        for samples in (2, 1):
            compiled(example(choice, samples))
    except Exception as error:
        raise _not_compiled("compile", error) from error
    return FunctionModule(compiled)


def _ahead_of_time(choice: Choice) -> nn.Module:
    """Load the network compiled by AOTInductor; the first worker compiles it for all."""
    import torch._inductor as inductor

    sha256 = choice.manifest.weights.sha256
    package = choice.compile_cache / f"{sha256}-{torch.__version__}-{choice.device.type}.pt2"
    if not package.exists():
        network = _network(choice)
        batch = torch.export.Dim("batch", min=1)
        unfinished = choice.compile_cache / f"{sha256}-{os.getpid()}.pt2"
        try:
            with torch.no_grad():
                inputs = (example(choice, 2),)
                program = torch.export.export(network, inputs, dynamic_shapes=({0: batch},))
                inductor.aoti_compile_and_package(
                    program,
                    package_path=str(unfinished),
                    inductor_configs={"freezing": choice.device.type == "cpu"},
                )
        except Exception as error:
            raise _not_compiled("aotinductor", error) from error
        unfinished.rename(package)
    index = choice.device.index or 0 if choice.device.type == "cuda" else -1
    return FunctionModule(inductor.aoti_load_package(str(package), device_index=index))


def _not_compiled(backend: str, error: Exception) -> ExportError:
    lines = str(error).strip().splitlines() or ["no reason given"]
    return ExportError(
        f"backend {backend} cannot compile this model here: {type(error).__name__}: "
        f"{lines[0][:500]}; the image needs a C++ compiler (g++) for it: install "
        "one, or configure the backend eager"
    )
