"""Fake programs on PATH."""

from collections.abc import Callable
from pathlib import Path

Install = Callable[[str, str], Path]
"""Function that puts a fake program, a shell script with the same name, on PATH."""
