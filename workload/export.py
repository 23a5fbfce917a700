"""Loading exports. Every file is verified against the manifest's digest before it is loaded."""

import importlib
import platform
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from workload.configuration import ConfigurationError
from workload.manifest import ExportError, Manifest, Weights, checked_file, read_error
from workload.models import build


class Program(nn.Module):
    """A loaded torch.export program, which supports only evaluation mode."""

    def __init__(self, program: torch.nn.Module) -> None:
        super().__init__()
        # The tuple hides the program from eval() and to(), which exported modules do not support.
        self._program = (program,)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        outputs: Tensor = self._program[0](inputs)
        return outputs


def load_network(directory: Path, manifest: Manifest, custom: str = "") -> nn.Module:
    """Load the trained model in evaluation mode on the CPU.

    `custom` is the only custom model (`package.module:factory`) that the manifest may name. Without
    this restriction, anyone with write access to the export could choose which code is imported.
    Raise ExportError if the export is damaged or names a different factory.
    """
    return _load_weights(directory, manifest, manifest.weights, custom)


def read_weights(directory: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Return the trained weights on the CPU, each shared tensor under one name only.

    Raise ExportError if the file is missing or damaged.
    """
    return _read_tensors(checked_file(directory, manifest.weights))


def load_artifact(directory: Path, manifest: Manifest, kind: str, custom: str = "") -> nn.Module:
    """Load an artifact of the export (pt2, pruned or int8) for the CPU.

    All artifacts except `pruned` ones contain code. Only the training program may have write access
    to their directory, because anyone who can replace a file can also replace its digest. For
    `pruned` artifacts, `custom` has the same meaning as in `load_network`. Raise ExportError if the
    artifact does not exist or is damaged.
    """
    artifact = manifest.artifact(kind)
    if kind == "pruned":
        return _load_weights(directory, manifest, artifact, custom)
    return read_model(checked_file(directory, artifact), kind, artifact.method)


def read_model(path: Path, kind: str, method: str = "") -> nn.Module:
    """Read a pt2 or int8 program from a verified file; raise ExportError if this fails."""
    match kind:
        case "pt2":
            return Program(_read_program(path).module())
        case "int8":
            return _read_quantized(path, method)
        case _:
            raise ExportError(f"{path}: artifact kind {kind!r} is unknown")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model; a shared tensor is listed once, under its first name."""
    first: dict[tuple[object, ...], str] = {}
    tensors = {}
    for name, tensor in model.state_dict().items():
        storage = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or first.setdefault(storage, name) == name:
            tensors[name] = tensor.detach()
    return tensors


def fill(network: nn.Module, path: Path) -> nn.Module:
    """Load the weights of a verified file into a model; return the model in evaluation mode.

    Raise ExportError if the weights do not fit.
    """
    tensors = _read_tensors(path)
    _check_tensors(path, tensors, tensors_of(network))
    # Strict loading would fail, because the file contains each shared tensor under one name only.
    network.load_state_dict(tensors, strict=False)
    return network.eval()


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise read_error(f"{path} is not a readable safetensors file: {error}", error) from error


def torchao(module: str) -> ModuleType:
    """Import a module of torchao, ignoring warnings about escape sequences in its sources."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid escape sequence", DeprecationWarning)
        warnings.filterwarnings("ignore", "invalid escape sequence", SyntaxWarning)
        return importlib.import_module(module)


def _load_weights(directory: Path, manifest: Manifest, file: Weights, custom: str) -> nn.Module:
    path = checked_file(directory, file)
    return fill(_build(manifest, custom), path)


def _build(manifest: Manifest, custom: str) -> nn.Module:
    if ":" in manifest.model and manifest.model != custom:
        raise ExportError(
            f"the manifest names the model {manifest.model!r}, which is not part of this project: "
            + (f"only {custom} may be loaded here" if custom else "it must not be loaded here")
        )
    try:
        return build(manifest.model, manifest.options, manifest.outputs, manifest.input_shape)
    except ConfigurationError as error:
        raise ExportError(f"the manifest's model cannot be built: {error}") from error


def _check_tensors(path: Path, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if found.keys() != expected.keys():
        different = ", ".join(sorted(found.keys() ^ expected.keys()))
        raise ExportError(f"{path} does not contain exactly the model's tensors: {different}")
    for name, tensor in expected.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise ExportError(
                f"{path}: tensor {name} is {found[name].dtype} {list(found[name].shape)}, "
                f"but the model has {tensor.dtype} {list(tensor.shape)}"
            )


def _read_program(path: Path) -> ExportedProgram:
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ExportError(
            f"{path} cannot be loaded by torch {torch.__version__}: {type(error).__name__}: {error}"
        ) from error


def _read_quantized(path: Path, method: str) -> nn.Module:
    """Read an int8 program. If its quantization is static, lower it to oneDNN where supported.

    A graph with static quantization only simulates int8. Without lowering, it would be slower than
    fp32.
    """
    try:
        torchao("torchao.quantization")
        # This import registers the operators and fusion patterns of quantized layers with PyTorch.
        torchao("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    except ImportError as error:
        raise ExportError(f"{path} needs the torchao package: {error}") from error
    program = _read_program(path)
    return Program(_lower(program) if method == "static" and _has_onednn() else program.module())


def _has_onednn() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _lower(program: ExportedProgram) -> GraphModule:
    """Lower a graph with a variable batch size to oneDNN, without a compiler.

    torchao's lower_pt2e_quantized_to_x86 performs the same steps. Weights are packed for this
    machine's kernels after loading, because packed weights cannot be saved.
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
        # oneDNN's convolutions return channels-last tensors, which not every view supports.
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()
    return graph  # type: ignore[no-any-return]
