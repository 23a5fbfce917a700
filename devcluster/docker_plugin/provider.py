"""Pulumi provider for `docker:index/image:Image` resources."""

import asyncio
import json
import os
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import grpc.aio
from pulumi.provider.experimental import provider as protocol
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc
from pydantic import TypeAdapter, ValidationError

from devcluster.docker_plugin import docker_cli, inputs
from devcluster.docker_plugin.inputs import Image, ImageError, Properties, Registry

NOTICE = (
    "using the project's stand-in for the Docker plugin: "
    "the official one is neither installed nor available for download"
)

IMAGE = "docker:index/image:Image"

INPUTS = "__inputs"
"""State property that stores the inputs, as in the official plugin."""

_IGNORED_INPUTS = ("buildOnPreview",)
_SETTINGS = {"host": "DOCKER_HOST", "certPath": "DOCKER_CERT_PATH"}


@dataclass(frozen=True)
class EngineLog:
    """Log of Pulumi's engine, shown by `pulumi up`. Undeliverable lines are dropped."""

    stub: engine_pb2_grpc.EngineStub

    @classmethod
    def on(cls, channel: grpc.aio.Channel) -> "EngineLog":
        """Return the log of the engine to which a channel is connected."""
        return cls(engine_pb2_grpc.EngineStub(channel))

    async def say(self, message: str, urn: str = "", *, transient: bool = False) -> None:
        """Log a line for a resource. A transient line disappears when the operation ends."""
        line = engine_pb2.LogRequest(
            severity=engine_pb2.INFO, message=message, urn=urn, ephemeral=transient
        )
        # The stub is typed for a synchronous channel.
        call = cast(Awaitable[object], self.stub.Log(line, timeout=5))
        try:
            await call
        except grpc.RpcError:
            return


class ImageProvider(protocol.Provider):
    """Provider that builds and pushes an image when its inputs or its context's digest change."""

    def __init__(self, log: EngineLog) -> None:
        self._log = log
        self._settings: dict[str, str] = {}
        self._registry_auth: list[Registry] = []
        self._notice_logged = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def configure(self, request: protocol.ConfigureRequest) -> protocol.ConfigureResponse:
        """Store the host, certificates and credentials. Raise ImageError for other settings."""
        settings = {k: v for k, v in inputs.plain(request.args).items() if k != "version"}
        unsupported = settings.keys() - {*_SETTINGS, "registryAuth"}
        if unsupported:
            raise ImageError(
                f"docker:{min(unsupported)}: the stand-in for the Docker plugin supports only "
                f"{', '.join([*_SETTINGS, 'registryAuth'])}; "
                "to use other settings, install the official plugin"
            )
        self._settings = {_SETTINGS[k]: v for k, v in settings.items() if k in _SETTINGS}
        if "certPath" in settings:
            self._settings["DOCKER_TLS_VERIFY"] = "1"
        self._registry_auth = _parse_credentials(settings.get("registryAuth", []))
        return protocol.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def check(self, request: protocol.CheckRequest) -> protocol.CheckResponse:
        """Validate the inputs, and add defaults and the context's digest."""
        # The engine prepends the types of the parent components, each followed by a $.
        if request.type.rpartition("$")[2] != IMAGE:
            raise ImageError(
                f"{request.type}: the stand-in for the Docker plugin supports only {IMAGE}; "
                "to use other resources, install the official plugin"
            )
        if not self._notice_logged:
            self._notice_logged = True
            await self._log.say(NOTICE)
        failures = [protocol.CheckFailure(*error) for error in _input_errors(request.new_inputs)]
        if failures:
            return protocol.CheckResponse(request.new_inputs, failures)
        return protocol.CheckResponse(inputs.with_defaults(request.new_inputs))

    async def diff(self, request: protocol.DiffRequest) -> protocol.DiffResponse:
        """Compare the inputs with those of the last build.

        Credentials and `buildOnPreview` are not compared.
        """
        stored = request.old_state.get(INPUTS)
        old = _comparable(stored.value if stored and isinstance(stored.value, Mapping) else {})
        new = _comparable(request.new_inputs)
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        detailed = {
            key: protocol.PropertyDiff(protocol.PropertyDiffKind.UPDATE, input_diff=True)
            for key in changed
            if key not in request.ignore_changes
        }
        return protocol.DiffResponse(
            changes=bool(detailed), diffs=list(detailed), detailed_diff=detailed
        )

    async def create(self, request: protocol.CreateRequest) -> protocol.CreateResponse:
        """Build and push an image."""
        state = await self._build(request.urn, request.properties, request.preview)
        name = request.properties["imageName"].value
        return protocol.CreateResponse("" if request.preview else str(name), state)

    async def update(self, request: protocol.UpdateRequest) -> protocol.UpdateResponse:
        """Build and push an image again."""
        return protocol.UpdateResponse(
            await self._build(request.urn, request.news, request.preview)
        )

    async def delete(self, request: protocol.DeleteRequest) -> None:
        """Keep the image, as the official plugin does."""

    async def cancel(self) -> None:
        """Cancel all running builds and pushes."""
        for task in self._tasks:
            task.cancel()

    async def _build(self, urn: str, properties: Properties, preview: bool) -> Properties:
        if any(inputs.is_unknown(value) for value in properties.values()):
            return _state(properties, PropertyValue(rpc.UNKNOWN))
        image = inputs.parse(properties)
        if preview and not image.build_on_preview:
            return _state(properties, PropertyValue(rpc.UNKNOWN))
        task = asyncio.create_task(self._build_and_push(urn, image, preview))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return _state(properties, PropertyValue(await task))
        except asyncio.CancelledError as error:
            raise ImageError(f"{image.image_name}: the operation was canceled") from error

    async def _build_and_push(self, urn: str, image: Image, preview: bool) -> str:
        """Build and push, and return the `repoDigest` output, which is unknown in a preview."""

        async def show(line: str) -> None:
            await self._log.say(line, urn, transient=True)

        credentials = self._credentials(image)
        async with docker_cli.docker_for(image, credentials, self._settings, show) as docker:
            await docker.build(image)
            if preview:
                return rpc.UNKNOWN
            if image.skip_push:
                return await docker.image_id(image)
            return f"{_without_tag(image.image_name)}@{await docker.push(image)}"

    def _credentials(self, image: Image) -> Registry | None:
        if image.registry.password:
            return image.registry.model_copy(update={"server": image.server})
        return next((s for s in self._registry_auth if s.server == image.server), None)


def _input_errors(properties: Properties) -> list[tuple[str, str]]:
    known = {key: value for key, value in properties.items() if not inputs.is_unknown(value)}
    plain = inputs.plain(known)
    if "imageName" not in known and "imageName" in properties:
        plain["imageName"] = "unknown.invalid/yet"
    try:
        image = Image.model_validate(plain)
    except ValidationError as error:
        return list(inputs.reasons(error))
    errors = []
    if not image.skip_push and not inputs.registry_of(image.image_name):
        name = image.image_name
        errors.append(("imageName", f"{name!r} has no registry: use docker.io/{name}"))
    if bool(image.registry.username) != bool(image.registry.password):
        errors.append(("registry", "username and password must be set together"))
    return errors


def _state(properties: Properties, repo_digest: PropertyValue) -> Properties:
    """Return the outputs, including the inputs for the next comparison."""
    build = properties["build"].value
    fields = build if isinstance(build, Mapping) else {}
    server = inputs.value_at(properties, "registry", "server")
    return {
        "imageName": properties["imageName"],
        "baseImageName": properties["imageName"],
        "context": fields.get("context", PropertyValue(rpc.UNKNOWN)),
        "dockerfile": _relative_path(fields.get("dockerfile"), fields.get("context")),
        "platform": fields.get("platform", PropertyValue("")),
        "registryServer": server or PropertyValue(""),
        "repoDigest": repo_digest,
        INPUTS: PropertyValue(properties),
    }


def _relative_path(
    dockerfile: PropertyValue | None, context: PropertyValue | None
) -> PropertyValue:
    """Return the Dockerfile's path relative to the context, as the official plugin does."""
    if dockerfile is None or context is None:
        return PropertyValue(rpc.UNKNOWN)
    if inputs.is_unknown(dockerfile) or inputs.is_unknown(context):
        return PropertyValue(rpc.UNKNOWN)
    return dockerfile.with_value(os.path.relpath(str(dockerfile.value), str(context.value)))


def _comparable(properties: Mapping[str, PropertyValue]) -> dict[str, Any]:
    compared = {k: v for k, v in inputs.plain(properties).items() if k not in _IGNORED_INPUTS}
    if isinstance(compared.get("registry"), dict):
        compared["registry"] = compared["registry"].get("server")
    return compared


def _without_tag(name: str) -> str:
    path, colon, tag = name.rpartition(":")
    return path if colon and "/" not in tag else name


class _RegistryAuth(Registry):
    """Entry of `registryAuth`."""

    address: str


def _parse_credentials(given: object) -> list[Registry]:
    """Return the entries of `registryAuth`, which is a list or a JSON string."""
    try:
        listed = json.loads(given) if isinstance(given, str) else given
        entries = TypeAdapter(list[_RegistryAuth]).validate_python(listed)
    except ValueError as error:
        raise ImageError(
            "docker:registryAuth: the stand-in for the Docker plugin expects a list of "
            "{address, username, password}"
        ) from error
    return [e.model_copy(update={"server": inputs.host_of(e.address)}) for e in entries]
