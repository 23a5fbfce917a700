"""The wheel: modules of the checkout's packages, moved into `gpu_platform`."""

import ast
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement

from devcluster.paths import CHECKOUT

MOVED = ("infra", "policies", "training", "inference", "workload", "kube")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the contents of the wheel with setup.py."""
    found: dict[str, Any] = {}
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(setuptools, "setup", found.update)
    runpy.run_path("setup.py")
    distribution = setuptools.Distribution({**found, "script_name": "setup.py"})
    command = distribution.get_command_obj("build_py")
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    command.run()
    return tmp_path


def imported(file: Path) -> Iterator[str]:
    """Return the modules that a file imports, including those imported inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_wheel_contains_every_module_that_it_imports(built: Path) -> None:
    files = [file for file in built.rglob("*.py") if "__pycache__" not in file.parts]
    modules = {".".join(file.relative_to(built).with_suffix("").parts) for file in files}
    modules |= {name.removesuffix(".__init__") for name in modules}
    assert {name.partition(".")[0] for name in modules} == {"gpu_platform"}
    for file in files:
        for name in imported(file):
            assert not name.startswith(tuple(f"{moved}." for moved in MOVED)), file
            assert name not in MOVED, file
            if name.partition(".")[0] == "gpu_platform":
                assert name in modules, f"{file} imports {name}"


def test_wheel_contains_no_program_that_imports_torch(built: Path) -> None:
    assert (built / "gpu_platform" / "training" / "config.py").exists()
    assert not (built / "gpu_platform" / "training" / "train.py").exists()
    assert not any(
        "torch" in {name.partition(".")[0] for name in imported(file)}
        for file in built.rglob("*.py")
    )


def test_provider_range_excludes_releases_that_do_not_adopt_objects() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    texts = [text for extra in project["optional-dependencies"].values() for text in extra]
    ranges = [
        each.specifier for each in map(Requirement, texts) if each.name == "pulumi-kubernetes"
    ]
    assert len(ranges) == 1
    # Since 4.29, creating an object that already exists fails. No such release is tested here.
    assert ranges[0].contains("4.25.0")
    assert ranges[0].contains("4.28.9")
    assert not ranges[0].contains("4.29.0")


def test_wheel_contains_every_command_of_the_package(built: Path) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    for command in project["scripts"].values():
        module = command.partition(":")[0].replace(".", "/")
        assert (built / f"{module}.py").exists(), command


def test_wheel_consists_of_a_single_directory(built: Path) -> None:
    assert [path.name for path in built.iterdir()] == ["gpu_platform"]
    assert (built / "gpu_platform" / "policies" / "PulumiPolicy.yaml").exists()
