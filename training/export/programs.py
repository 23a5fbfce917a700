"""Export of a model as a torch.export program, which runs without this project's code."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from training.files import write_atomically
from training.manifest import ExportError


class Program(nn.Module):
    """A loaded program, which has no other mode than that of evaluation."""

    def __init__(self, program: torch.nn.Module) -> None:
        super().__init__()
        # Not a submodule: what torch.export makes cannot be told to evaluate, nor be moved.
        self._program = (program,)

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model gives."""
        outputs: Tensor = self._program[0](inputs)
        return outputs


def exported(model: nn.Module, inputs: Tensor, strict: bool = False) -> ExportedProgram:
    """A model's graph, for any number of samples. `inputs` give shape and type only."""
    example = torch.zeros((2, *inputs.shape[1:]), dtype=inputs.dtype)
    dynamic = ({0: Dim("batch", min=1)},)
    return torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=strict)


def write_program(path: Path, program: ExportedProgram) -> None:
    """Write a graph as .pt2. Raises OSError."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_atomically(path, lambda stream: stream.write(buffer.getbuffer()))


def read_program(path: Path) -> ExportedProgram:
    """Read a .pt2. It is code: only after its digest was compared. Raises ExportError."""
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ExportError(
            f"{path} cannot be loaded by torch {torch.__version__}: {type(error).__name__}: {error}"
        ) from error
