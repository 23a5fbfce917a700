"""Images that a team's program builds from its directory."""

import asyncio
import sys
from pathlib import Path

import pulumi
import pytest
from pulumi.runtime.mocks import set_mocks

from gpu_platform import BuildSettings, ImageSettings, WorkloadImage, WorkloadImageArgs
from tests.infra.conftest import LOOP, Engine

BUILT = ImageSettings(
    build=BuildSettings(
        dockerfile="training/Dockerfile", base_image="python:3.13-slim", sources=["training"]
    )
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program's directory with sources named like a directory in this project."""
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n")
    (tmp_path / "training" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    asyncio.set_event_loop(LOOP)
    set_mocks(Engine(), project="team", stack="test")
    return tmp_path


def image(key: str, *sources: str, root: Path = Path()) -> WorkloadImage:
    assert BUILT.build is not None
    build = BUILT.build.model_copy(update={"sources": [*sources]} if sources else {})
    settings = ImageSettings(build=build)
    repository = "registry.example.com/team"
    return WorkloadImage(
        key, WorkloadImageArgs(key=key, image=settings, repository=repository, root=root)
    )


def test_image_is_built_from_the_programs_directory(directory: Path) -> None:
    found: list[str | None] = []

    async def program() -> None:
        found.append(await image("vision").reference.future())

    pulumi.runtime.test(program)()
    assert found == [f"registry.example.com/team/vision@sha256:{'5' * 64}"]


def test_changed_sources_of_a_team_change_the_image_identity(directory: Path) -> None:
    found: list[str] = []

    async def program() -> None:
        found.append(image("before").identity)
        (directory / "training" / "train.py").write_text("print(2)\n")
        found.append(image("after").identity)

    pulumi.runtime.test(program)()
    before, after = found
    assert before.startswith("sources:")
    assert before != after


@pytest.mark.parametrize("parent", [".", ".."])
def test_sources_may_be_absolute_paths_in_the_root_directory(directory: Path, parent: str) -> None:
    root = Path(parent, "" if parent == "." else directory.name)
    found: list[str] = []

    async def program() -> None:
        found.append(image("relative", "./training", root=root).identity)
        found.append(image("absolute", str(directory / "training"), root=root).identity)

    pulumi.runtime.test(program)()
    assert found[0] == found[1]


@pytest.mark.parametrize("source", ["/etc/hosts", "../other", "missing"])
def test_error_names_a_source_that_is_not_in_the_programs_directory(
    directory: Path, source: str
) -> None:
    (directory.parent / "other").touch()

    async def program() -> None:
        with pytest.raises(pulumi.RunError, match=f"is built from '{source}', which does not"):
            image("vision", source)

    pulumi.runtime.test(program)()


def test_error_for_a_missing_docker_sdk_names_the_extra(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pulumi_docker", None)

    async def program() -> None:
        with pytest.raises(pulumi.RunError, match=r"gpu-platform\[components,images\]"):
            image("vision")

    pulumi.runtime.test(program)()
