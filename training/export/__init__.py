"""Export of the finished model, for a server to load."""

from training.export.artifacts import Evaluate
from training.export.writing import check_export, finished_export, write_export

__all__ = [
    "Evaluate",
    "check_export",
    "finished_export",
    "write_export",
]
