"""The image of a program contains every package that the program imports."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = {"torch", "pip"}
"""Packages that every base image contains."""

OPTIONAL = {"mlflow", "pyarrow", "tokenizers", "wandb"}
"""Optional packages. If one is needed but missing, the program explains how to install it."""

ELSEWHERE = {"launch_accelerate.py": "diffusion", "terminal.py": "commands outside the cluster"}
"""Modules that run only in other images or outside the cluster."""

IMAGES = {
    "training": (["training", "workload"], ["workload"]),
    "torchtitan": (["training/titan"], ["workload", "torchtitan"]),
    "ray": (["examples/ray"], ["workload", "ray"]),
    "diffusion": (["examples/diffusion"], ["workload", "diffusion"]),
}
"""Source directories and requirements files of each image."""


def imported_names(folder: Path) -> Iterator[str]:
    """Return the top-level names of the modules that files in a directory import."""
    for path in folder.rglob("*.py"):
        if path.name in ELSEWHERE or (folder.name == "training" and path.parent.name == "titan"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_contains_every_package_that_its_program_imports(image: str) -> None:
    folders, files = IMAGES[image]
    lines = "\n".join((ROOT / f"requirements/{name}.txt").read_text() for name in files)
    installed = {
        name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", lines, re.M)
    }
    distributions = packages_distributions()
    own = {path.name for path in ROOT.iterdir() if path.is_dir()} | set(sys.stdlib_module_names)
    names = {name for folder in folders for name in imported_names(ROOT / folder)} - own
    missing = {
        name
        for name in names
        if not {package.lower().replace("_", "-") for package in distributions.get(name, [name])}
        & (installed | BASE | OPTIONAL)
    }
    assert not missing
