"""Programs that replace others on PATH."""

from collections.abc import Callable
from pathlib import Path

Install = Callable[[str, str], Path]
"""Function that puts a shell script on PATH, named like the program that it replaces."""
