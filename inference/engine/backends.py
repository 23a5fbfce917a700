"""The same model, computed in different ways: chosen by configuration."""

import contextlib
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from inference.config import Backend
from workload.export import load_artifact, load_network
from workload.manifest import ExportError, Manifest

CPU_ONLY: Final = ("pt2", "int8")
"""Programs, which compute where they were exported."""

TRIED: Final = 4
"""Samples with which ways to compute are compared."""

CLOSE: Final = 1e-4
"""How much an output may differ by folding and another layout, beside the largest of them."""


@dataclass(frozen=True)
class Choice:
    """What the configuration says. `scratch` is a folder for what is compiled at the start."""

    backend: Backend
    folder: Path
    manifest: Manifest
    device: torch.device
    own: str
    scratch: Path


def load_backend(choice: Choice) -> nn.Module:
    """The network on its device, in evaluation mode, its file's digest compared.

    Raises ExportError when the export has no such form, when the machine cannot compute it, and as
    `workload.export` does.
    """
    if choice.backend in CPU_ONLY and choice.device.type != "cpu":
        raise ExportError(
            f"backend {choice.backend} computes on the CPU only: write device cpu, or the backend "
            "eager, compile or aotinductor"
        )
    match choice.backend:
        case "eager":
            return _fast(_network(choice), choice)
        case "pruned":
            pruned = load_artifact(choice.folder, choice.manifest, "pruned", choice.own)
            return _fast(pruned.to(choice.device), choice)
        case "compile":
            return _compiled(_network(choice), choice)
        case "aotinductor":
            return _ahead_of_time(choice)
        case _:
            return load_artifact(choice.folder, choice.manifest, choice.backend, choice.own)


class Callee(nn.Module):
    """Something that computes but is no module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """What the function gives; of several outputs, the only one."""
        outputs = self._function(inputs)
        first: Tensor = outputs[0] if isinstance(outputs, list | tuple) else outputs
        return first


def example(choice: Choice, samples: int) -> Tensor:
    """Inputs of the right shape and type: noise, or tokens that are all the same."""
    shape = (samples, *choice.manifest.input_shape)
    if choice.manifest.input_dtype == "int64":
        return torch.zeros(shape, dtype=torch.int64, device=choice.device)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator).to(choice.device)


def _network(choice: Choice) -> nn.Module:
    network = load_network(choice.folder, choice.manifest, choice.own)
    return network.requires_grad_(False).to(choice.device)


@torch.inference_mode()
def _fast(network: nn.Module, choice: Choice) -> nn.Module:
    """Fold batch norms into convolutions, and on a CPU find out how images are best laid out.

    Only where the outputs stay the same: else the network is computed as it is.
    """
    kinds = {type(module) for module in network.modules()}
    inputs = example(choice, TRIED)
    if nn.BatchNorm2d in kinds:
        network = _if_same(network, _folded, inputs)
    if nn.Conv2d in kinds and choice.device.type == "cpu":
        other = _if_same(network, ChannelsLast, inputs)
        return min(network, other, key=lambda one: _seconds(one, inputs))
    return network


def _seconds(network: nn.Module, inputs: Tensor) -> float:
    """Of the quickest of three runs."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        network(inputs)
        times.append(time.perf_counter() - began)
    return min(times)


def _if_same(
    network: nn.Module, change: Callable[[nn.Module], nn.Module], inputs: Tensor
) -> nn.Module:
    """A changed copy of the network if it computes the same, else the network."""
    with contextlib.suppress(Exception):
        changed = change(copy.deepcopy(network))
        expected = network(inputs)
        difference = float((changed(inputs) - expected).abs().max())
        if difference <= CLOSE * max(1.0, float(expected.abs().max())):
            return changed
    return network


class ChannelsLast(nn.Module):
    """A network of convolutions whose images have their colours beside one another."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """The same as the network itself."""
        outputs: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
        return outputs


def _folded(network: nn.Module) -> nn.Module:
    """Without batch norms behind convolutions; needs a network that torch.fx can trace."""
    from torch.fx.experimental.optimization import fuse

    return fuse(network, inplace=True)


@torch.inference_mode()
def _compiled(network: nn.Module, choice: Choice) -> nn.Module:
    """torch.compile for any number of samples, its constants folded and packed."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    compiled = torch.compile(network, dynamic=True)
    try:
        # One sample is a case of its own for the compiler, and so is more than one.
        for samples in (2, 1):
            compiled(example(choice, samples))
    except Exception as error:
        raise _not_compiled("compile", error) from error
    return Callee(compiled)


def _ahead_of_time(choice: Choice) -> nn.Module:
    """Compiled by AOTInductor once, by the first worker; the others load what it made."""
    import torch._inductor as inductor

    computed_by = f"{torch.__version__}-{choice.device.type}"
    name = f"{choice.manifest.weights.sha256}-{computed_by}.pt2"
    package = choice.scratch / name
    if not package.exists():
        network = _network(choice)
        batch = torch.export.Dim("batch", min=1)
        partial = choice.scratch / f"{choice.manifest.weights.sha256}-{os.getpid()}.pt2"
        try:
            with torch.no_grad():
                inputs = (example(choice, 2),)
                program = torch.export.export(network, inputs, dynamic_shapes=({0: batch},))
                inductor.aoti_compile_and_package(
                    program,
                    package_path=str(partial),
                    inductor_configs={"freezing": choice.device.type == "cpu"},
                )
        except Exception as error:
            raise _not_compiled("aotinductor", error) from error
        partial.rename(package)
    index = choice.device.index or 0 if choice.device.type == "cuda" else -1
    return Callee(inductor.aoti_load_package(str(package), device_index=index))


def _not_compiled(backend: str, error: Exception) -> ExportError:
    lines = str(error).strip().splitlines() or ["no reason given"]
    return ExportError(
        f"backend {backend} cannot compile this model here: {type(error).__name__}: "
        f"{lines[0][:500]}; it needs a C++ compiler (g++), which the image must have: "
        "write the backend eager to do without"
    )
