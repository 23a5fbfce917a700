"""The weights of a model as a safetensors file."""

from pathlib import Path

from safetensors.torch import save
from torch import nn

from workload.export import tensors_of
from workload.files import write_atomically


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors. Raises OSError."""
    # Copies, since a file cannot have tensors that overlap.
    tensors = {
        name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(model).items()
    }
    write_atomically(path, lambda stream: stream.write(save(tensors)))
