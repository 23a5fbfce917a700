"""Programs that replace others on PATH."""

from collections.abc import Callable
from pathlib import Path

Install = Callable[[str, str], Path]
"""Puts a shell script on PATH, under the name of the program that it replaces."""
