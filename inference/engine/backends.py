"""Backends: alternative ways to run the same network. The configuration selects one."""

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

from inference.config import PROGRAMS, InferenceConfig
from workload.devices import PRECISIONS
from workload.export import load_artifact, load_network
from workload.manifest import ExportError, Manifest
from workload.report import emit

TRIAL_SAMPLES: Final = 4
"""Number of samples used to compare a changed network with the original."""

TOLERANCE: Final = 1e-4
"""Maximum difference that batch-norm folding and the channels-last layout may cause in the outputs,
divided by max(1, largest absolute output)."""


@dataclass(frozen=True)
class Choice:
    """The configured backend, the manifest of the export to load, and the device.

    `compile_cache` is the directory for compiled models.
    """

    config: InferenceConfig
    manifest: Manifest
    device: torch.device
    compile_cache: Path


def load_backend(choice: Choice) -> nn.Module:
    """Verify the export and return its network on the configured device, in evaluation mode.

    Raise ExportError if the export lacks the backend's artifact or cannot be loaded, or if this
    machine does not support the backend.
    """
    backend = choice.config.backend
    if backend in PROGRAMS and choice.device.type != "cpu":
        raise ExportError(
            f"backend {backend} runs only on the CPU: set device to cpu, or backend to "
            "eager, compile or aotinductor"
        )
    match backend:
        case "eager" | "pruned":
            network = _with_precision(_optimize(_load(choice), choice), choice)
            return _with_cuda_graphs(network, choice)
        case "compile":
            return _compile(_with_precision(_load(choice), choice), choice)
        case "aotinductor":
            return _load_aotinductor(choice)
        case _:
            return _load(choice)


class FunctionModule(nn.Module):
    """Module that calls a compiled network."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the function's output, or its first element if the output is a list or tuple."""
        outputs = self._function(inputs)
        first: Tensor = outputs[0] if isinstance(outputs, list | tuple) else outputs
        return first


def example(choice: Choice, samples: int) -> Tensor:
    """Return example inputs: random values, or tokens that are all 0."""
    shape = (samples, *choice.manifest.input_shape)
    if choice.manifest.input_dtype == "int64":
        return torch.zeros(shape, dtype=torch.int64, device=choice.device)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator).to(choice.device)


def _load(choice: Choice) -> nn.Module:
    """Load the artifact of the backend or, if it has none, the weights."""
    config, directory = choice.config, Path(choice.config.model_path)
    if config.backend in (*PROGRAMS, "pruned"):
        network = load_artifact(directory, choice.manifest, config.backend, config.own_model)
    else:
        network = load_network(directory, choice.manifest, config.own_model)
    return network.requires_grad_(False).to(choice.device)


@torch.inference_mode()
def _optimize(network: nn.Module, choice: Choice) -> nn.Module:
    """Fold batch norms, and use the channels-last layout (on the CPU, only if it is faster).

    Each change is kept only if the outputs stay the same within `TOLERANCE`.
    """
    kinds = {type(module) for module in network.modules()}
    inputs = example(choice, TRIAL_SAMPLES)
    # Compare without TF32, which would increase the differences between outputs on a GPU.
    with torch.backends.cudnn.flags(allow_tf32=False):
        if nn.BatchNorm2d in kinds:
            # Networks that torch.fx cannot trace stay as they are.
            from torch.fx.experimental.optimization import fuse

            network = _apply_if_equal(network, partial(fuse, inplace=True), inputs)
        if nn.Conv2d not in kinds:
            return network
        other = _apply_if_equal(network, _channels_last, inputs)
    if choice.device.type != "cpu":
        return other
    return min(network, other, key=lambda each: min(repeat(partial(each, inputs), number=1)))


def _apply_if_equal(
    network: nn.Module, change: Callable[[nn.Module], nn.Module], inputs: Tensor
) -> nn.Module:
    """Return a changed copy of the network if its outputs match, otherwise the original network."""
    with contextlib.suppress(Exception):
        changed = change(copy.deepcopy(network))
        expected = network(inputs)
        difference = float((changed(inputs) - expected).abs().max())
        if difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            return changed
    return network


class Converted(nn.Module):
    """A network whose inputs are converted first."""

    def __init__(self, network: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self._convert = network, convert

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's output."""
        outputs: Tensor = self.network(self._convert(inputs))
        return outputs


def _channels_last(network: nn.Module) -> nn.Module:
    layout = torch.channels_last
    return Converted(
        network.to(memory_format=layout), lambda images: images.contiguous(memory_format=layout)
    )


# Convert in inference mode, as `_optimize` does. Otherwise, the network could contain both
# inference tensors and normal tensors.
@torch.inference_mode()
def _with_precision(network: nn.Module, choice: Choice) -> nn.Module:
    """Return the network in the configured precision; on a GPU, fp32 uses TF32."""
    if choice.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if choice.config.precision == "fp32":
        return network
    dtype = PRECISIONS[choice.config.precision]
    return Converted(
        network.to(dtype), lambda inputs: inputs.to(dtype) if inputs.is_floating_point() else inputs
    )


def _with_cuda_graphs(network: nn.Module, choice: Choice) -> nn.Module:
    """Capture a GPU network in CUDA graphs; if that fails, return the network itself.

    Token models are excluded: their sequences vary in length, and the graphs would keep the logits
    of every batch size in memory.
    """
    if choice.device.type != "cuda" or choice.manifest.input_dtype == "int64":
        return network
    try:
        with torch.inference_mode():
            return Graphed(network, example(choice, choice.config.max_batch))
    except RuntimeError as error:
        emit("cuda_graphs_unavailable", reason=str(error).partition("\n")[0])
        return network


class Graphed(nn.Module):
    """A GPU network that replays CUDA graphs: one launch per batch instead of one per kernel.

    Batches are padded to the next power of two, or to the maximum batch size if that is smaller.
    Inputs of a different shape are computed without a graph.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        """Capture batches of up to len(inputs) samples. Raise RuntimeError if that fails."""
        super().__init__()
        self.network, self._inputs = network, inputs
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        sizes = {min(1 << power, len(inputs)) for power in range(len(inputs).bit_length() + 1)}
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        # Capture the largest batch first, so that smaller batches reuse its memory.
        for size in sorted(sizes, reverse=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # Before the capture, let libraries allocate workspaces and choose algorithms.
                network(inputs[:size])
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                outputs = network(inputs[:size])
            self._graphs[size] = graph, outputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's output."""
        samples = len(inputs)
        size = min((each for each in self._graphs if each >= samples), default=0)
        if not size or inputs.shape[1:] != self._inputs.shape[1:]:
            outputs: Tensor = self.network(inputs)
            return outputs
        self._inputs[:samples].copy_(inputs, non_blocking=True)
        graph, computed = self._graphs[size]
        graph.replay()
        return computed[:samples].clone()


@torch.inference_mode()
def _compile(network: nn.Module, choice: Choice) -> nn.Module:
    """Compile the network with torch.compile for any batch size, and fold and pack constants."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    compiled = torch.compile(network, dynamic=True)
    try:
        # The compiler generates separate code for batches of one sample, so warm up both versions.
        for samples in (2, 1):
            compiled(example(choice, samples))
    except Exception as error:
        raise _compile_error("compile", error) from error
    return FunctionModule(compiled)


def _load_aotinductor(choice: Choice) -> nn.Module:
    """Load the network compiled by AOTInductor; the first worker compiles it for all workers."""
    import torch._inductor as inductor

    sha256 = choice.manifest.weights.sha256
    names = (sha256, torch.__version__, choice.device.type, choice.config.precision)
    package = choice.compile_cache / f"{'-'.join(names)}.pt2"
    if not package.exists():
        network = _with_precision(_load(choice), choice)
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
            raise _compile_error("aotinductor", error) from error
        unfinished.rename(package)
    index = choice.device.index or 0 if choice.device.type == "cuda" else -1
    return FunctionModule(inductor.aoti_load_package(str(package), device_index=index))


def _compile_error(backend: str, error: Exception) -> ExportError:
    lines = str(error).strip().splitlines() or ["no reason given"]
    return ExportError(
        f"backend {backend} cannot compile this model here: {type(error).__name__}: "
        f"{lines[0][:500]}; this backend needs a C++ compiler (g++) in the image: install "
        "one, or set backend to eager"
    )
