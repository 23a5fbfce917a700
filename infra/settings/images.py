"""Images of the workloads."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from os.path import normpath
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from infra.settings.types import (
    DnsLabel,
    PinnedImage,
    RegistryHost,
    Settings,
    VersionedImage,
    matching,
)

PROJECT_ROOT: Final = Path(__file__).parents[2]
PASSWORD_KEY = "registry_password"  # noqa: S105  the name of a configuration key

_RepositoryPath = Annotated[
    str,
    matching(
        re.compile(r"[a-z0-9]+([._/-][a-z0-9]+)*"),
        200,
        "a path of lower-case letters, digits, '.', '_' and '-', separated by '/', such as team/ml",
    ),
]
_Platform = Annotated[
    str, matching(re.compile(r"linux/[a-z0-9/]+"), 64, "a Linux platform, such as linux/amd64")
]


class BuildSettings(Settings):
    """An image that is built from this repository."""

    dockerfile: str = Field(min_length=1, description="Path of the Dockerfile in the repository.")
    base_image: VersionedImage = Field(description="Base image (build argument BASE_IMAGE).")
    sources: list[str] = Field(
        min_length=1,
        description="Files and directories that determine the contents of the image. Changing "
        "any of them builds a new image. A change outside this project's own directories also "
        "starts new runs of the jobs that use the image.",
    )
    platform: _Platform = Field(default="linux/amd64", description="Platform of the nodes.")
    args: dict[str, str] = Field(
        default={}, description="Additional build arguments. They must not contain secrets."
    )
    target: str | None = Field(
        default=None,
        min_length=1,
        description="Stage of the Dockerfile, such as `mpi`. If null, the last stage is built.",
    )


class ImageSettings(Settings):
    """An image, either built or referenced by digest."""

    build: BuildSettings | None = Field(default=None, description="Build and push the image.")
    reference: PinnedImage | None = Field(default=None, description="Use this existing image.")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.build is None) == (self.reference is None):
            number = "both" if self.build else "neither"
            raise ValueError(
                "must set exactly one of `build` and `reference` (pinned by digest), but sets "
                f"{number}"
            )
        return self


class ImagesSettings(Settings):
    """The registry and the images."""

    registry: RegistryHost | None = Field(
        default=None,
        description="Host of the registry to which built images are pushed.",
    )
    repository: _RepositoryPath = Field(
        default="gpu-platform",
        description="Path in the registry, to which the image's key is appended.",
    )
    username: str | None = Field(
        default=None,
        min_length=1,
        description="User name for the registry, for pushing images and for pulling them on the "
        "nodes. Images of the device plugin, the DCGM exporter and charts are pulled with the "
        "same credentials if they are in this registry. The password is the secret "
        f"{PASSWORD_KEY}.",
    )
    workloads: dict[DnsLabel, ImageSettings] = Field(
        default={},
        description="Images by key. By default, jobs use `training` and services use `inference`.",
    )

    @model_validator(mode="after")
    def _registry_is_known(self) -> Self:
        if self.registry is None:
            if built := [name for name, image in self.workloads.items() if image.build]:
                raise ValueError(
                    f"builds {', '.join(built)}, but has no `registry` to push to: set `registry`"
                )
            if self.username is not None:
                raise ValueError("has a `username`, but no `registry` to log in to: set `registry`")
        return self


PROJECT_DIRECTORIES: Final = (
    *("gitops", "gpu_platform", "inference", "infra", "kube", "notebooks", "policies", "recorder"),
    *("requirements", "simulation", "sweeps", "training", "workload"),
)
"""Directories of this project that a new release may change."""


def identity(
    build: BuildSettings, root: Path = PROJECT_ROOT, *, project: Path | None = None
) -> str:
    """Return the hexadecimal SHA-256 of everything that determines the contents of a built image.

    The same sources have the same identity in every checkout: only names and contents of files
    count, and hidden, compiled and credential files are ignored. `project` is the checkout of this
    project. If it is the same directory as `root`, `PROJECT_DIRECTORIES` are left out, so that a
    new release of this project does not change the identity. Raise FileNotFoundError if a source is
    missing.
    """
    digest = hashlib.sha256()
    description = {
        "base_image": build.base_image,
        "platform": build.platform,
        "args": build.args,
        "dockerfile": build.dockerfile,
        **({"target": build.target} if build.target else {}),
    }
    digest.update(json.dumps(description, sort_keys=True).encode())
    root = _absolute(root)
    excluded = PROJECT_DIRECTORIES if project and root == _absolute(project) else ()
    for name in sorted({build.dockerfile, *build.sources}):
        for path in _files(root / name):
            relative_path = path.relative_to(root)
            if relative_path.parts[0] in excluded:
                continue
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"\n{relative_path.as_posix()} {content}".encode())
    return digest.hexdigest()


def is_inside(name: str, root: Path, exists: Callable[[Path], bool] = Path.exists) -> bool:
    """Return whether a path, relative to `root` or absolute, exists inside `root`."""
    path = root / name
    return _absolute(path).is_relative_to(_absolute(root)) and exists(path)


def _absolute(path: Path) -> Path:
    """Return an absolute path without `..`. Symbolic links are not resolved."""
    return Path(normpath(path.absolute()))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.rglob("*")):
        parts = child.relative_to(path).parts
        if child.is_file() and not any(_is_ignored(part) for part in parts):
            yield child


def _is_ignored(name: str) -> bool:
    """Return True for names of compiled and hidden files, which do not affect the image.

    On GitHub, the login action for Google Cloud writes credentials to `gha-creds-*.json`.
    """
    return name == "__pycache__" or name.startswith((".", "gha-creds-"))
