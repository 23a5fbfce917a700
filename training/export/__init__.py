"""The finished model on the disk, for a server to load."""

from training.export.artifacts import Evaluate
from training.export.reading import finished_export, load_artifact
from training.export.weights import load_network
from training.export.writing import check_export, write_export

__all__ = [
    "Evaluate",
    "check_export",
    "finished_export",
    "load_artifact",
    "load_network",
    "write_export",
]
