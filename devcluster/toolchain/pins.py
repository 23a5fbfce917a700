"""The pinned tools as typed data, read from pins.toml."""

import hashlib
import platform
import sys
import tomllib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

HERE = Path(__file__).resolve().parent

Group = Literal["engine", "simulated", "real"]
"""Who needs a tool: each group contains the one before it."""

GROUPS: tuple[Group, ...] = get_args(Group)

Operator = Literal["training-operator", "trainer"]
"""What serves a kind of job that not everybody has; in no group, and named by who needs it."""

OPERATORS: tuple[Operator, ...] = get_args(Operator)

Gateway = Literal["traefik"]
"""What brings requests in from outside; asked for by name like the operators."""

Monitoring = Literal["prometheus"]
"""What the cluster is watched with; asked for by name like the operators."""

Extra = Operator | Gateway | Monitoring
"""What is in no group."""


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class File(_Pin):
    """A file that a Go module carries."""

    module: str = Field(alias="from")
    file: str


class Manifests(_Pin):
    """A folder of a Go module for kustomize, and the name of our own kustomization upon it."""

    name: str
    module: str = Field(alias="from")
    folder: str


class Program(_Pin):
    """One executable: built from `package`, or copied from `file` of the module `from`."""

    name: str
    group: Group | None = None
    package: str | None = None
    module: str | None = Field(default=None, alias="from")
    file: str | None = None
    ask: tuple[str, ...] = ()
    answer: str | None = None
    beside: str | None = None
    plugin: str | None = None


class Module(_Pin):
    """A Go module of ours: it pins everything that its programs are built from."""

    name: str
    version: str
    group: Group | Extra
    variables: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    """Build constraints of Go that hold."""
    embed: tuple[File, ...] = ()
    manifests: tuple[Manifests, ...] = ()
    programs: Annotated[
        tuple[Program, ...], Field(alias="program", min_length=1), BeforeValidator(tuple)
    ]

    @property
    def folder(self) -> Path:
        """Holds go.mod, go.sum and, for a main of ours, main.go."""
        return HERE / "modules" / self.name

    @property
    def ldflags(self) -> str:
        """For the linker: no symbols, and the variables that hold the version."""
        return " ".join(
            ["-s", "-w", *(f"-X {key}={value}" for key, value in self.variables.items())]
        )

    def digest(self) -> str:
        """Changes with anything that the built programs depend on (12 hexadecimal digits)."""
        sha = hashlib.sha256(f"{sys.platform} {platform.machine()} ".encode())
        # What came to the table later must not make those anew that do not have it.
        later = {name for name in ("manifests", "tags") if not getattr(self, name)}
        sha.update(self.model_dump_json(exclude={"group", *later}).encode())
        for file in sorted(self.folder.iterdir()):
            sha.update(file.name.encode() + b"\0" + file.read_bytes())
        return sha.hexdigest()[:12]

    def needed_by(self, group: Group, extras: Collection[Extra] = ()) -> list[Program]:
        """The programs of this module that a group consists of, or one of the extras."""
        wanted = {*GROUPS[: GROUPS.index(group) + 1], *extras}
        return [p for p in self.programs if (p.group or self.group) in wanted]


class Pins(_Pin):
    """All modules, in the order in which they are built."""

    modules: Annotated[tuple[Module, ...], Field(alias="module", min_length=1)]

    def module(self, name: str) -> Module:
        """The module of a name; KeyError without one."""
        return {module.name: module for module in self.modules}[name]

    def group(self, group: Group, extras: Collection[Extra] = ()) -> list[tuple[Module, Program]]:
        """Every program of a group and of the extras, in the order in which they are built."""
        return [(module, p) for module in self.modules for p in module.needed_by(group, extras)]

    def digest(self) -> str:
        """Of all modules together (12 hexadecimal digits)."""
        return hashlib.sha256("".join(m.digest() for m in self.modules).encode()).hexdigest()[:12]


@cache
def load(path: Path = HERE / "pins.toml") -> Pins:
    """Reads the table; a mistake in it is a pydantic.ValidationError."""
    return Pins.model_validate(tomllib.loads(path.read_text()))
