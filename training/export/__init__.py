"""The finished model on the disk, for a server to load."""

from training.export.weights import finished_export, write_export

__all__ = ["finished_export", "write_export"]
