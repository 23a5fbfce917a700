"""A model that computes with whole numbers of 8 bits, made after training. Needs torchao.

static: convolutions, linear layers and what is between them, by PT2E with ranges that were observed
on samples. dynamic: linear layers, with the range of each input found as it comes. weight-only:
linear layers are kept small and computed in fp32.
"""

import copy
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from training.export.programs import exported
from workload.configuration import ConfigurationError
from workload.export import torchao

Method = Literal["static", "dynamic", "weight-only"]

CALIBRATION_BATCH: Final = 32


def check_installed(method: str) -> None:
    """Raises ConfigurationError when torchao is not there."""
    try:
        torchao("torchao")
    except ImportError as error:
        raise ConfigurationError(
            f"quantize {method} needs the package torchao, which cannot be imported ({error}): "
            "install it into the image, or write quantize none"
        ) from error


def quantized(model: nn.Module, method: Method, calibration: Tensor) -> ExportedProgram:
    """A model's graph with 8 bits. `calibration` are inputs as in training.

    Raises ConfigurationError when torchao is missing or when there is nothing that the method
    changes.
    """
    check_installed(method)
    if method == "static":
        return _static(model, calibration)
    return _linear(model, method, calibration)


def _static(model: nn.Module, calibration: Tensor) -> ExportedProgram:
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise ConfigurationError(
            "quantize static is for networks of convolutions, and this has none: "
            "write dynamic or weight-only"
        )
    pt2e = torchao("torchao.quantization.pt2e.quantize_pt2e")
    x86 = torchao("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    # 7 bits for activations: with 8, sums overflow on CPUs without VNNI, and nobody would see it.
    settings = x86.get_default_x86_inductor_quantization_config(reduce_range=True)
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    # Strict: the quantizer tells layers apart by what only Dynamo notes down.
    observed = pt2e.prepare_pt2e(exported(model, calibration, strict=True).module(), quantizer)
    with torch.no_grad():
        for part in torch.split(calibration, CALIBRATION_BATCH):
            observed(part)
    graph = pt2e.convert_pt2e(observed)
    _drop_unused(graph)
    return exported(graph, calibration)


def _linear(model: nn.Module, method: Method, calibration: Tensor) -> ExportedProgram:
    smaller = copy.deepcopy(model)
    shared = _shared(smaller)
    ao, utilities = torchao("torchao.quantization"), torchao("torchao.utils")
    if method == "dynamic":
        settings = ao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    else:
        settings = ao.Int8WeightOnlyConfig(set_inductor_config=False)

    def chosen(module: nn.Module, _: str) -> bool:
        # A weight that is used elsewhere, too, would have to be kept as it is.
        return isinstance(module, nn.Linear) and id(module.weight) not in shared

    if not any(chosen(module, "") for module in smaller.modules()):
        raise ConfigurationError(
            f"quantize {method} changes linear layers, and this model has none: write static"
        )
    ao.quantize_(smaller, settings, filter_fn=chosen)
    utilities.unwrap_tensor_subclass(smaller)  # Plain tensors: no pickle in the file.
    return exported(smaller, calibration)


def _shared(model: nn.Module) -> set[int]:
    names: dict[int, int] = {}
    for _, weight in model.named_parameters(remove_duplicate=False):
        names[id(weight)] = names.get(id(weight), 0) + 1
    return {weight for weight, count in names.items() if count > 1}


def _drop_unused(graph: GraphModule) -> None:
    """The weights in fp32 are still there, and would be saved."""
    used = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    for name, _ in [*graph.named_parameters(), *graph.named_buffers()]:
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(graph.get_submodule(owner), leaf)
