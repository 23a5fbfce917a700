"""An export's files, each compared with the manifest's digest before it is read."""

from pathlib import Path

from torch import nn

from training.export.programs import Program, read_program
from training.export.quantization import runnable
from training.export.weights import load_weights
from training.manifest import ExportError, Manifest, checked_file, read_manifest


def finished_export(folder: Path) -> Manifest | None:
    """The manifest of a complete and undamaged export, or None."""
    try:
        manifest = read_manifest(folder)
        for file in (manifest.weights, *manifest.artifacts):
            checked_file(folder, file)
    except ExportError:
        return None
    return manifest


def load_artifact(folder: Path, manifest: Manifest, kind: str, own: str = "") -> nn.Module:
    """One of an export's other forms (pt2, pruned, int8), ready to compute on the CPU.

    All but pruned are code: load them only from a folder that nobody but the training may write,
    since who can replace the file can replace its digest as well. `own` is as in load_network, for
    pruned. Raises ExportError.
    """
    artifact = manifest.artifact(kind)
    if kind == "pruned":
        return load_weights(folder, manifest, artifact, own)
    return read_form(checked_file(folder, artifact), kind, artifact.method)


def read_form(path: Path, kind: str, method: str = "") -> nn.Module:
    """Read a file of this kind whose digest was compared. Raises ExportError."""
    match kind:
        case "pt2":
            return Program(read_program(path).module())
        case "int8":
            return runnable(path, method)
        case _:
            raise ExportError(f"{path}: artifacts of kind {kind!r} are not known here")
