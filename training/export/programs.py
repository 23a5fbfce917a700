"""A model as a program that needs no Python code of ours: torch.export, and TorchScript."""

import io
import sys
import warnings
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


def write_torchscript(path: Path, model: nn.Module, inputs: Tensor) -> None:
    """Write what one run through the model did, for servers that know no torch.export.

    Raises ExportError on a Python for which there is no TorchScript any more, and OSError.
    """
    if sys.version_info >= (3, 14):
        raise ExportError("TorchScript is not supported on Python 3.14: write pt2 instead")
    buffer = io.BytesIO()
    with torch.no_grad(), _deprecated():
        torch.jit.save(torch.jit.trace(model, inputs), buffer)  # type: ignore[no-untyped-call]
    write_atomically(path, lambda stream: stream.write(buffer.getbuffer()))


def read_torchscript(path: Path) -> nn.Module:
    """Read a TorchScript file. It is code: only after its digest was compared.

    Raises ExportError.
    """
    try:
        with _deprecated():
            return Program(torch.jit.load(path, map_location="cpu"))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ExportError(
            f"{path} cannot be loaded by torch {torch.__version__}: {type(error).__name__}: {error}"
        ) from error


class _deprecated(warnings.catch_warnings):  # noqa: N801
    """Within it nobody is told that TorchScript is deprecated: it was asked for by name.

    Nor that a trace keeps the sizes it saw: only the batch may differ, and that is compared later.
    """

    def __enter__(self) -> None:
        super().__enter__()
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", category)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
