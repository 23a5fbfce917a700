"""A model that computes with whole numbers of 8 bits, made after training. Needs torchao.

static: convolutions, linear layers and what is between them, by PT2E with ranges that were observed
on samples. dynamic: linear layers, with the range of each input found as it comes. weight-only:
linear layers are kept small and computed in fp32.
"""

import copy
import importlib
import platform
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from training.config import ConfigurationError
from training.export.programs import Program, exported, read_program
from training.manifest import ExportError

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


def runnable(path: Path, method: str) -> nn.Module:
    """A file of such a graph as it is computed: static ones by oneDNN where this machine has it.

    A static graph only says where to round, and as it is would be slower than fp32. The file is
    code: only after its digest was compared. Raises ExportError.
    """
    try:
        torchao("torchao.quantization")
        # Tells PyTorch about its operators, and how those of a quantized layer become one.
        torchao("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    except ImportError as error:
        raise ExportError(f"{path} needs the package torchao: {error}") from error
    program = read_program(path)
    return Program(_lowered(program) if method == "static" and _has_onednn() else program.module())


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


def _has_onednn() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _lowered(program: ExportedProgram) -> GraphModule:
    """As torchao's lower_pt2e_quantized_to_x86, but for a batch of any size and without a compiler.

    Weights are packed for this machine's kernels here, and not in the file: packed ones cannot be
    saved.
    """
    from torch._inductor.constant_folding import constant_fold
    from torch._inductor.fx_passes.freezing_patterns import freezing_passes

    composite = {
        operator: rule
        for operator, rule in torch.export.default_decompositions().items()  # type: ignore[no-untyped-call]
        if torch._export.utils._is_cia_op(operator)
    }
    graph: Any = program.run_decompositions(composite).module()
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.t.default:
            with graph.graph.inserting_before(node):
                permuted = graph.graph.call_function(
                    torch.ops.aten.permute.default, (node.args[0], [1, 0])
                )
            node.replace_all_uses_with(permuted)
            graph.graph.erase_node(node)
    graph.recompile()
    example = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    with torch.no_grad():
        freezing_passes(graph, example)
        constant_fold(graph)
    for node in graph.graph.nodes:
        # oneDNN's convolutions give channels last, of which not every shape is a view.
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()
    return graph  # type: ignore[no-any-return]


def torchao(module: str) -> ModuleType:
    """Import a part of torchao, whose sources have escapes that Python does not like."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid escape sequence", DeprecationWarning)
        warnings.filterwarnings("ignore", "invalid escape sequence", SyntaxWarning)
        return importlib.import_module(module)
