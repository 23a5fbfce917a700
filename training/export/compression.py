"""Export with torch.export, pruning, and post-training int8 quantization (torchao).

There are three quantization methods. `static` is PT2E quantization of convolutions and linear
layers, with ranges observed on samples. `dynamic` computes linear layers in int8, with input ranges
determined at run time. `weight-only` stores the weights of linear layers in int8 and computes in
fp32.
"""

import copy
import io
from collections import Counter
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.nn.utils import prune

from workload.configuration import ConfigurationError
from workload.export import torchao
from workload.files import write_atomically


def exported(model: nn.Module, inputs: Tensor, strict: bool = False) -> ExportedProgram:
    """Export a model's graph for any batch size. Only the shape and type of `inputs` are used."""
    example = torch.zeros((2, *inputs.shape[1:]), dtype=inputs.dtype)
    dynamic = ({0: Dim("batch", min=1)},)
    return torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=strict)


def write_program(path: Path, program: ExportedProgram) -> None:
    """Write a graph as .pt2. Raise OSError on failure."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_atomically(path, buffer.getbuffer())


def pruned(model: nn.Module, share: float) -> nn.Module:
    """Return a copy in which the smallest weights of linear layers and convolutions are set to 0.

    `share` is the fraction of the weights of these layers to prune. The weights of all layers are
    ranked together (magnitude pruning, Han et al. 2015, arXiv:1506.02626). Biases and norms are not
    pruned. Raise ValueError if the model has neither linear layers nor convolutions.
    """
    result = copy.deepcopy(model)
    weights = _prunable_weights(result)
    if not weights:
        raise ValueError("the model has neither linear layers nor convolutions")
    prune.global_unstructured(weights, pruning_method=prune.L1Unstructured, amount=share)
    for module, name in weights:
        prune.remove(module, name)  # type: ignore[no-untyped-call]
    return result


def share_of_zeros(model: nn.Module) -> float:
    """Return the fraction of zeros among the prunable weights."""
    tensors = [getattr(module, name) for module, name in _prunable_weights(model)]
    zeros = sum(int((tensor == 0).sum()) for tensor in tensors)
    return zeros / sum(int(tensor.numel()) for tensor in tensors)


def _prunable_weights(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return each weight once: for a shared weight, a second call to `prune.remove` would fail."""
    found: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            weight: Tensor = module.weight
            found.setdefault(id(weight), (module, "weight"))
    return list(found.values())


Method = Literal["static", "dynamic", "weight-only"]

CALIBRATION_BATCH: Final = 32


def check_quantization(method: Method | Literal["none"]) -> None:
    """Check before training that the quantization package is installed.

    Raise ConfigurationError if it is missing.
    """
    try:
        if method != "none":
            torchao("torchao")
    except ImportError as error:
        raise ConfigurationError(
            f"quantize {method} needs the torchao package, which cannot be imported ({error}): "
            "install it in the image, or set quantize to none"
        ) from error


def quantized(model: nn.Module, method: Method, calibration: Tensor) -> ExportedProgram:
    """Return a model's int8 graph. `calibration` contains inputs scaled as in training.

    Raise ConfigurationError if torchao is missing or the method does not apply to the model.
    """
    check_quantization(method)
    if method == "static":
        return _quantize_static(model, calibration)
    return _quantize_linear(model, method, calibration)


def _quantize_static(model: nn.Module, calibration: Tensor) -> ExportedProgram:
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise ConfigurationError(
            "quantize static is for models with convolutions, but this one has none: "
            "use dynamic or weight-only"
        )
    pt2e = torchao("torchao.quantization.pt2e.quantize_pt2e")
    x86 = torchao("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    # Use 7 bits for activations: with 8 bits, sums overflow silently on CPUs without VNNI.
    settings = x86.get_default_x86_inductor_quantization_config(reduce_range=True)
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    # strict=True, because the quantizer identifies layers by metadata that only Dynamo records.
    observed = pt2e.prepare_pt2e(exported(model, calibration, strict=True).module(), quantizer)
    with torch.no_grad():
        for part in torch.split(calibration, CALIBRATION_BATCH):
            observed(part)
    graph = pt2e.convert_pt2e(observed)
    _drop_unused(graph)
    return exported(graph, calibration)


def _quantize_linear(model: nn.Module, method: Method, calibration: Tensor) -> ExportedProgram:
    smaller = copy.deepcopy(model)
    uses = Counter(id(weight) for _, weight in smaller.named_parameters(remove_duplicate=False))
    ao, utilities = torchao("torchao.quantization"), torchao("torchao.utils")
    if method == "dynamic":
        settings = ao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    else:
        settings = ao.Int8WeightOnlyConfig(set_inductor_config=False)

    def is_quantized(module: nn.Module, _: str) -> bool:
        # A weight that is also used elsewhere would have to be stored in fp32 as well.
        return isinstance(module, nn.Linear) and uses[id(module.weight)] == 1

    if not any(is_quantized(module, "") for module in smaller.modules()):
        raise ConfigurationError(
            f"quantize {method} changes linear layers, but this model has none: use static"
        )
    ao.quantize_(smaller, settings, filter_fn=is_quantized)
    utilities.unwrap_tensor_subclass(smaller)  # Subclasses would be stored with pickle.
    return exported(smaller, calibration)


def _drop_unused(graph: GraphModule) -> None:
    """Delete unused fp32 weights, which would otherwise be saved."""
    used = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    for name, _ in [*graph.named_parameters(), *graph.named_buffers()]:
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(graph.get_submodule(owner), leaf)
