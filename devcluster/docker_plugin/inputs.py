"""Typed inputs of an image, parsed from Pulumi property values, and the build context's digest."""

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from docker.utils.build import exclude_paths  # type: ignore[import-untyped]
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

Properties = dict[str, PropertyValue]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(Exception):
    """An error that the user can fix. The message may contain Docker's last output."""


class _Input(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Registry(_Input):
    """Registry to which an image is pushed, with credentials."""

    server: str = ""
    username: str = ""
    password: str = ""


class CacheFrom(_Input):
    """Images whose layers are used as a cache."""

    images: list[str]


class Build(_Input):
    """Build options of an image."""

    context: str = "."
    dockerfile: str = "Dockerfile"
    args: dict[str, str] = {}
    target: str = ""
    platform: str = ""
    network: str = ""
    add_hosts: list[str] = []
    cache_from: CacheFrom | None = None
    builder_version: Literal["BuilderBuildKit", "BuilderV1"] = "BuilderBuildKit"


class Image(_Input):
    """Inputs of `docker:index/image:Image`."""

    image_name: str
    build: Build = Build()
    registry: Registry = Registry()
    skip_push: bool = False
    build_on_preview: bool = False
    secrets: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def server(self) -> str:
        """Host of the registry, from `registry.server` or the image's name."""
        return host_of(self.registry.server) or registry_of(self.image_name)


def host_of(address: str) -> str:
    """Return the host and port of a registry address, which may be a URL."""
    return address.removeprefix("https://").removeprefix("http://").partition("/")[0]


def registry_of(image_name: str) -> str:
    """Return the registry in an image name, or an empty string."""
    host, slash, _ = image_name.partition("/")
    has_registry = slash and ("." in host or ":" in host or host == "localhost")
    return host if has_registry else ""


def is_unknown(value: PropertyValue) -> bool:
    """Return whether a value, or part of it, depends on resources that do not exist yet."""
    return any(leaf == rpc.UNKNOWN for leaf in _leaves(value))


def parse(properties: Properties) -> Image:
    """Return the typed inputs, or raise an ImageError that lists every invalid property."""
    try:
        image = Image.model_validate(plain(properties))
    except ValidationError as error:
        raise ImageError(
            "\n".join(f"{name}: {reason}" for name, reason in reasons(error))
        ) from error
    return image.model_copy(update={"secrets": tuple(secrets(properties))})


def reasons(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield the path of every invalid property, and the reason."""
    for problem in error.errors():
        yield ".".join(str(part) for part in problem["loc"]), problem["msg"]


def with_defaults(properties: Properties) -> Properties:
    """Return the inputs to store in the state, with defaults and the context's digest.

    Raise ImageError if the Dockerfile or the context cannot be read.
    """
    given = properties.get("build") or PropertyValue.null()
    if not isinstance(given.value, Mapping | None):
        return properties
    build = {key: value for key, value in (given.value or {}).items() if value.value is not None}
    build.setdefault("context", PropertyValue("."))
    if not is_unknown(build["context"]):
        default = os.path.join(str(build["context"].value), "Dockerfile")  # noqa: PTH118
        build.setdefault("dockerfile", PropertyValue(default))
    machine = platform.machine()
    build.setdefault("platform", PropertyValue(f"linux/{_ARCHITECTURES.get(machine, machine)}"))
    context, dockerfile = build["context"], build.get("dockerfile", PropertyValue(rpc.UNKNOWN))
    if not is_unknown(context) and not is_unknown(dockerfile):
        directory = Path(str(context.value))
        digest = context_digest(directory, _dockerfile(Path(str(dockerfile.value)), directory))
        build["contextDigest"] = PropertyValue(digest)
    return properties | {"build": given.with_value(build)}


def plain(value: PropertyValue | Mapping[str, PropertyValue]) -> Any:
    """Return a value as plain data, without secret wrappers or nulls."""
    inner = value.value if isinstance(value, PropertyValue) else value
    if isinstance(inner, Mapping):
        return {key: plain(item) for key, item in inner.items() if item.value is not None}
    if isinstance(inner, tuple):
        return [plain(item) for item in inner]
    return inner


def secrets(properties: Mapping[str, PropertyValue]) -> Iterator[str]:
    """Yield all secrets: the password and the secret build arguments."""
    password = value_at(properties, "registry", "password")
    if password is not None and isinstance(password.value, str):
        yield password.value
    build = properties.get("build")
    arguments = value_at(properties, "build", "args")
    if build is None or arguments is None or not isinstance(arguments.value, Mapping):
        return
    all_secret = build.is_secret or arguments.is_secret
    for argument in arguments.value.values():
        if isinstance(argument.value, str) and (all_secret or argument.is_secret):
            yield argument.value


def value_at(properties: Mapping[str, PropertyValue], *path: str) -> PropertyValue | None:
    """Return the value at a path of keys, or None if it does not exist."""
    value: PropertyValue | None = PropertyValue(dict(properties))
    for key in path:
        if value is None or not isinstance(value.value, Mapping):
            return None
        value = value.value.get(key)
    return value


def _leaves(value: PropertyValue) -> Iterator[object]:
    if isinstance(value.value, Mapping):
        for item in value.value.values():
            yield from _leaves(item)
    elif isinstance(value.value, tuple):
        for item in value.value:
            yield from _leaves(item)
    else:
        yield value.value


def _dockerfile(dockerfile: Path, context: Path) -> Path:
    if dockerfile.is_file():
        return dockerfile
    advice = ""
    if (context / dockerfile).is_file():
        advice = f"; the path is relative to {Path.cwd()}: use {context / dockerfile}"
    raise ImageError(f"build.dockerfile: {dockerfile} does not exist{advice}")


def context_digest(context: Path, dockerfile: Path) -> str:
    """Return a digest of the Dockerfile and the context: names, contents and permissions.

    .dockerignore is applied as in Docker. Raise ImageError if a file cannot be read.
    """
    total = hashlib.sha256()
    try:
        _update_digest(total, "Dockerfile", dockerfile)
        for name in sorted(files(context, dockerfile)):
            _update_digest(total, name, context / name)
    except OSError as error:
        raise ImageError(f"build.context: {error}") from error
    return total.hexdigest()


def files(context: Path, dockerfile: Path) -> list[str]:
    """Return the relative paths of the files and symbolic links in a context."""
    inside = Path(os.path.relpath(dockerfile, context)).as_posix()
    names = exclude_paths(
        str(context.resolve()), ignore_patterns(context, dockerfile), dockerfile=inside
    )
    return [n for n in names if (context / n).is_symlink() or (context / n).is_file()]


def ignore_patterns(context: Path, dockerfile: Path) -> list[str]:
    """Return the lines of the Dockerfile's ignore file or, if it is missing, of .dockerignore."""
    for file in (
        dockerfile.with_name(f"{dockerfile.name}.dockerignore"),
        context / ".dockerignore",
    ):
        if file.exists():
            lines = [line.strip() for line in file.read_text().splitlines()]
            return [line for line in lines if line and not line.startswith("#")]
    return []


def _update_digest(total: "hashlib._Hash", name: str, file: Path) -> None:
    total.update(f"{len(name)}:{name}:".encode())
    if file.is_symlink():
        total.update(f"link:{file.readlink()}\n".encode())
        return
    with file.open("rb") as content:
        content_digest = hashlib.file_digest(content, "sha256").hexdigest()
    total.update(f"{file.stat().st_mode & 0o777:o}:{content_digest}\n".encode())
