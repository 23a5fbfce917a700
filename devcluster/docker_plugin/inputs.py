"""What a program says about an image: from Pulumi's property values to typed data."""

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from devcluster.docker_plugin import context
from devcluster.docker_plugin.errors import ImageError

Properties = dict[str, PropertyValue]

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Input(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class Registry(_Input):
    """Where an image is pushed to, and as whom."""

    server: str = ""
    username: str = ""
    password: str = ""


class CacheFrom(_Input):
    """Images whose layers may be used again."""

    images: list[str]


class Build(_Input):
    """How an image is built."""

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
    """The inputs of `docker:index/image:Image`."""

    image_name: str
    build: Build = Build()
    registry: Registry = Registry()
    skip_push: bool = False
    build_on_preview: bool = False
    secrets: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def server(self) -> str:
        """The registry's host, of `registry.server` or of the image's name."""
        return host_of(self.registry.server) or registry_of(self.image_name)


def host_of(address: str) -> str:
    """Host and port of a registry's address, which may be a URL."""
    return address.removeprefix("https://").removeprefix("http://").partition("/")[0]


def registry_of(image_name: str) -> str:
    """The registry that an image's name begins with; empty where it names none."""
    host, slash, _ = image_name.partition("/")
    named = slash and ("." in host or ":" in host or host == "localhost")
    return host if named else ""


def is_unknown(value: PropertyValue) -> bool:
    """Whether a value, or anything in it, is only known after other resources are created."""
    return any(leaf == rpc.UNKNOWN for leaf in _leaves(value))


def parse(properties: Properties) -> Image:
    """The typed inputs. ImageError names every property that is wrong."""
    try:
        image = Image.model_validate(plain(properties))
    except ValidationError as error:
        raise ImageError(
            "\n".join(f"{name}: {reason}" for name, reason in reasons(error))
        ) from error
    return image.model_copy(update={"secrets": tuple(secrets(properties))})


def reasons(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Path and reason of everything that is wrong."""
    for wrong in error.errors():
        yield ".".join(str(part) for part in wrong["loc"]), wrong["msg"]


def with_defaults(properties: Properties) -> Properties:
    """The inputs as they are kept in the state: defaults filled in, the context's digest added.

    ImageError when the Dockerfile or the context cannot be read.
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
    build.setdefault("platform", PropertyValue(f"linux/{_MACHINES.get(machine, machine)}"))
    folder, dockerfile = build["context"], build.get("dockerfile", PropertyValue(rpc.UNKNOWN))
    if not is_unknown(folder) and not is_unknown(dockerfile):
        place = Path(str(folder.value))
        digest = context.digest(place, _existing(Path(str(dockerfile.value)), place))
        build["contextDigest"] = PropertyValue(digest)
    return properties | {"build": given.with_value(build)}


def plain(value: PropertyValue | Mapping[str, PropertyValue]) -> Any:
    """A value without its secrecy; nothing for null, the engine's mark for what is unknown."""
    inner = value.value if isinstance(value, PropertyValue) else value
    if isinstance(inner, Mapping):
        return {key: plain(item) for key, item in inner.items() if item.value is not None}
    if isinstance(inner, tuple):
        return [plain(item) for item in inner]
    return inner


def secrets(properties: Mapping[str, PropertyValue]) -> Iterator[str]:
    """What must never be shown: the password, and build arguments that are secrets."""
    password = at(properties, "registry", "password")
    if password is not None and isinstance(password.value, str):
        yield password.value
    build = properties.get("build")
    arguments = at(properties, "build", "args")
    if build is None or arguments is None or not isinstance(arguments.value, Mapping):
        return
    all_secret = build.is_secret or arguments.is_secret
    for argument in arguments.value.values():
        if isinstance(argument.value, str) and (all_secret or argument.is_secret):
            yield argument.value


def at(properties: Mapping[str, PropertyValue], *path: str) -> PropertyValue | None:
    """The value at a path of keys, if there is one."""
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


def _existing(dockerfile: Path, folder: Path) -> Path:
    if dockerfile.is_file():
        return dockerfile
    advice = ""
    if (folder / dockerfile).is_file():
        advice = f"; it is looked up from {Path.cwd()}: write {folder / dockerfile}"
    raise ImageError(f"build.dockerfile: there is no file {dockerfile}{advice}")
