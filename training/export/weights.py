"""A model's weights as a safetensors file, and back into a model of the same kind."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from training.config import ConfigurationError
from training.files import write_atomically
from training.manifest import ExportError, Manifest, Weights, checked_file
from training.models import build


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model; a tensor that several parts share is there under its first name."""
    first: dict[tuple[object, ...], str] = {}
    tensors = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or first.setdefault(place, name) == name:
            tensors[name] = tensor.detach()
    return tensors


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors. Raises OSError."""
    # Copies, since a file cannot have tensors that overlap.
    tensors = {
        name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(model).items()
    }
    write_atomically(path, lambda stream: stream.write(save(tensors)))


def load_network(folder: Path, manifest: Manifest, own: str = "") -> nn.Module:
    """The trained model in evaluation mode, on the CPU.

    `own` is the one `package.module:factory` that a manifest may name: who can write the export
    must not choose which code is imported. Raises ExportError.
    """
    return load_weights(folder, manifest, manifest.weights, own)


def load_weights(folder: Path, manifest: Manifest, file: Weights, own: str = "") -> nn.Module:
    """The model with the weights of one of the export's files. Raises ExportError."""
    path = checked_file(folder, file)
    return fill(_build(manifest, own), path)


def fill(network: nn.Module, path: Path) -> nn.Module:
    """Give a model the weights of a file that was checked; gives the model, in evaluation mode.

    Raises ExportError when they do not fit.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{path} is no readable safetensors file: {error}") from None
    _check_tensors(path, tensors, tensors_of(network))
    # Not strict: the other names of shared tensors are not in the file.
    network.load_state_dict(tensors, strict=False)
    return network.eval()


def _build(manifest: Manifest, own: str) -> nn.Module:
    if ":" in manifest.model and manifest.model != own:
        raise ExportError(
            f"the manifest names the model {manifest.model!r}, which is none of this project: "
            + (f"only {own} may be loaded here" if own else "it is not allowed to be loaded here")
        )
    try:
        return build(manifest.model, manifest.options, manifest.outputs, manifest.input_shape)
    except ConfigurationError as error:
        raise ExportError(f"the manifest's model cannot be built: {error}") from error


def _check_tensors(path: Path, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if found.keys() != expected.keys():
        different = ", ".join(sorted(found.keys() ^ expected.keys()))
        raise ExportError(f"{path} lacks tensors of the model or has others: {different}")
    for name, tensor in expected.items():
        if (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype):
            raise ExportError(
                f"{path}: tensor {name} is {found[name].dtype} {list(found[name].shape)}, "
                f"the model has {tensor.dtype} {list(tensor.shape)}"
            )
