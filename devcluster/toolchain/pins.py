"""Typed models of pins.toml, which pins the tools."""

import hashlib
import platform
import sys
import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from simulation.volcano import minor_version

HERE = Path(__file__).resolve().parent

Group = Literal["engine", "simulated", "real"]
"""Groups of tools; each includes all earlier ones."""

GROUPS: tuple[Group, ...] = get_args(Group)

Operator = Literal["training-operator", "trainer", "kuberay", "lws"]
"""Kubernetes operators for job kinds and inference services, installed on request."""

OPERATORS: tuple[Operator, ...] = get_args(Operator)

Gateway = Literal["traefik"]
"""Gateways for traffic from outside the cluster, installed on request."""

Monitoring = Literal["prometheus"]
"""Monitoring tools, installed on request."""

Gpus = Literal["nvidia"]
"""NVIDIA's programs for GPU nodes. Used only in tests, without real GPUs."""

ContainerRuntime = Literal["containerd"]
"""A newer containerd than Debian's. Used only in tests."""

Autoscaling = Literal["keda"]
"""KEDA. Used only in tests."""

NetworkPolicies = Literal["kube-router"]
"""A controller that enforces network policies. Used only in tests."""

OtherVolcano = Literal["volcano-1.10"]
"""Volcano releases other than the default."""

OTHER_VOLCANO_RELEASES: tuple[OtherVolcano, ...] = get_args(OtherVolcano)

Languages = Literal["languages"]
"""Pulumi's language hosts for programs that are not written in Python. Used only in tests."""

Extra = (
    Operator
    | Gateway
    | Monitoring
    | Gpus
    | ContainerRuntime
    | Autoscaling
    | NetworkPolicies
    | OtherVolcano
    | Languages
)
"""Tools outside the groups, installed on request."""


def volcano_release(version: str) -> tuple[OtherVolcano, ...]:
    """Return the non-default Volcano release with the minor version of `version`, if any."""
    name = f"volcano-{minor_version(version)}"
    return tuple(release for release in OTHER_VOLCANO_RELEASES if release == name)


_EXCLUDED_FROM_DIGEST: Any = {
    "group": True,
    "shared": True,
    "cpu_minutes": True,
    "programs": {"__all__": {"group"}},
}


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class File(_Pin):
    """A file in a Go module."""

    module: str = Field(alias="from")
    file: str


class Overlay(_Pin):
    """A Go module in which files from a directory of this project replace the original ones."""

    module: str = Field(alias="from")
    folder: str


class Manifests(_Pin):
    """A kustomize directory in a Go module, and the name of this project's kustomization for it."""

    name: str
    module: str = Field(alias="from")
    folder: str


class Program(_Pin):
    """An executable that is built from `package` or copied from `file` in the `from` module."""

    name: str
    group: Group | Extra | None = None
    package: str | None = None
    module: str | None = Field(default=None, alias="from")
    file: str | None = None
    ask: tuple[str, ...] = ()
    """Arguments that make an installed program print its version."""
    answer: str | None = None
    """Text that an installed program prints if it has the pinned version."""
    beside: str | None = None
    """Main program in the same directory, for programs that cannot print a version."""
    plugin: str | None = None
    """Directory below Pulumi's `plugins`, for Pulumi plugins that cannot print a version."""


class Module(_Pin):
    """A Go module of this project, which pins all dependencies of its programs."""

    name: str
    version: str = ""
    """Version of the upstream project, if the module builds only one project."""
    group: Group | Extra
    shared: bool = False
    """True if the module requires the same versions as the other shared modules."""
    cpu_minutes: float = Field(gt=0)
    """Measured CPU time (min) of a build with empty caches, used for the printed estimate."""
    variables: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    """Build tags. `cgo` also enables cgo."""
    uninlined: tuple[str, ...] = ()
    """Patterns of packages to compile without inlining."""
    embed: tuple[File, ...] = ()
    overlays: Annotated[tuple[Overlay, ...], Field(alias="overlay")] = ()
    manifests: tuple[Manifests, ...] = ()
    programs: Annotated[
        tuple[Program, ...], Field(alias="program", min_length=1), BeforeValidator(tuple)
    ]

    @property
    def directory(self) -> Path:
        """Directory with go.mod and go.sum, and with the main package if the module has one."""
        return HERE / "modules" / self.name

    @property
    def cgo(self) -> bool:
        """True if packages may use cgo, in which case the build needs a C compiler."""
        return "cgo" in self.tags

    @property
    def flags(self) -> list[str]:
        """Options of `go build`: tags, inlining, version variables, and no symbols or DWARF.

        DWARF takes a tenth of the compile time and a third of the build cache, and the linker
        would drop it anyway.
        """
        variables = (f"-X {key}={value}" for key, value in self.variables.items())
        return [
            *([f"-tags={','.join(self.tags)}"] if self.tags else []),
            "-gcflags=all=-dwarf=false",
            *(f"-gcflags={pattern}=-dwarf=false -l" for pattern in self.uninlined),
            f"-ldflags={' '.join(['-s', '-w', *variables])}",
            "-pgo=off",
        ]

    @property
    def title(self) -> str:
        """Name and, if the module has a single upstream release, its version."""
        return f"{self.name} {self.version}".strip()

    def digest(self) -> str:
        """Return a digest (12 hexadecimal digits) of everything that the builds depend on."""
        sha = hashlib.sha256(f"{sys.platform} {platform.machine()} ".encode())
        sha.update(self.model_dump_json(exclude=_EXCLUDED_FROM_DIGEST).encode())
        for file in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            name = file.relative_to(self.directory).as_posix()
            sha.update(name.encode() + b"\0" + file.read_bytes())
        return sha.hexdigest()[:12]

    def needed_by(self, group: Group, extras: Collection[Extra] = ()) -> list[Program]:
        """Return the programs of this module that belong to a group or one of the extras."""
        groups = {*GROUPS[: GROUPS.index(group) + 1], *extras}
        return [p for p in self.programs if (p.group or self.group) in groups]


class Pins(_Pin):
    """All modules, in build order."""

    modules: Annotated[tuple[Module, ...], Field(alias="module", min_length=1)]

    def module(self, name: str) -> Module:
        """Return the module with this name. Raise KeyError if it does not exist."""
        return {module.name: module for module in self.modules}[name]

    def group(self, group: Group, extras: Collection[Extra] = ()) -> list[tuple[Module, Program]]:
        """Return every program of a group and of the extras, in build order."""
        return [(module, p) for module in self.modules for p in module.needed_by(group, extras)]

    def digest(self) -> str:
        """Return the digest of all modules (12 hexadecimal digits)."""
        return hashlib.sha256("".join(m.digest() for m in self.modules).encode()).hexdigest()[:12]


@cache
def load(path: Path = HERE / "pins.toml") -> Pins:
    """Read pins.toml. Raise pydantic.ValidationError if it is invalid."""
    return Pins.model_validate(tomllib.loads(path.read_text()))
