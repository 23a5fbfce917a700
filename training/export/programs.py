"""Export of a model as a torch.export program, which runs without this project's code."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from workload.files import write_atomically


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
