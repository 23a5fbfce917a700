"""The provider behind `docker:index/image:Image`."""

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any

from pulumi.provider.experimental import provider as protocol
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc
from pydantic import TypeAdapter, ValidationError

from devcluster.docker_plugin import docker_cli, inputs
from devcluster.docker_plugin.engine_log import EngineLog
from devcluster.docker_plugin.errors import ImageError
from devcluster.docker_plugin.inputs import Image, Properties, Registry

NOTICE = (
    "the project's stand-in for the Docker plugin is used, "
    "since the official one is neither installed nor could be downloaded"
)

IMAGE = "docker:index/image:Image"

INPUTS = "__inputs"
"""Property of the state that keeps the inputs, as the official plugin has it."""

_NOT_COMPARED = ("buildOnPreview",)
_SETTINGS = {"host": "DOCKER_HOST", "certPath": "DOCKER_CERT_PATH"}


class ImageProvider(protocol.Provider):
    """Builds and pushes images; whether one has changed is told by the digest of its context."""

    def __init__(self, log: EngineLog) -> None:
        self._log = log
        self._settings: dict[str, str] = {}
        self._sign_ins: list[Registry] = []
        self._noticed = False
        self._work: set[asyncio.Task[Any]] = set()

    async def configure(self, request: protocol.ConfigureRequest) -> protocol.ConfigureResponse:
        """Takes host, certificates and sign-ins. ImageError names a setting that is unknown."""
        settings = {k: v for k, v in inputs.plain(request.args).items() if k != "version"}
        unsupported = settings.keys() - {*_SETTINGS, "registryAuth"}
        if unsupported:
            raise ImageError(
                f"docker:{min(unsupported)}: the stand-in for the Docker plugin knows only "
                f"{', '.join([*_SETTINGS, 'registryAuth'])}; install the official one for it"
            )
        self._settings = {_SETTINGS[k]: v for k, v in settings.items() if k in _SETTINGS}
        if "certPath" in settings:
            self._settings["DOCKER_TLS_VERIFY"] = "1"
        self._sign_ins = _sign_ins(settings.get("registryAuth", []))
        return protocol.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def check(self, request: protocol.CheckRequest) -> protocol.CheckResponse:
        """Validates the inputs and adds defaults and the context's digest."""
        # The engine puts the types of the parent components before it, each with a $.
        if request.type.rpartition("$")[2] != IMAGE:
            raise ImageError(
                f"{request.type}: the stand-in for the Docker plugin knows only {IMAGE}; "
                "install the official one for it"
            )
        if not self._noticed:
            self._noticed = True
            await self._log.say(NOTICE)
        failures = [protocol.CheckFailure(*wrong) for wrong in _mistakes(request.new_inputs)]
        if failures:
            return protocol.CheckResponse(request.new_inputs, failures)
        return protocol.CheckResponse(inputs.with_defaults(request.new_inputs))

    async def diff(self, request: protocol.DiffRequest) -> protocol.DiffResponse:
        """Compares with the inputs of the last build; a new password alone changes nothing."""
        kept = request.old_state.get(INPUTS)
        old = _compared(kept.value if kept and isinstance(kept.value, Mapping) else {})
        new = _compared(request.new_inputs)
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
        """Builds and pushes."""
        state = await self._make(request.urn, request.properties, request.preview)
        name = request.properties["imageName"].value
        return protocol.CreateResponse("" if request.preview else str(name), state)

    async def update(self, request: protocol.UpdateRequest) -> protocol.UpdateResponse:
        """Builds and pushes again."""
        return protocol.UpdateResponse(await self._make(request.urn, request.news, request.preview))

    async def delete(self, request: protocol.DeleteRequest) -> None:
        """Leaves the image where it is, as the official plugin does."""

    async def cancel(self) -> None:
        """Ends every build and push that is under way."""
        for task in self._work:
            task.cancel()

    async def _make(self, urn: str, properties: Properties, preview: bool) -> Properties:
        if any(inputs.is_unknown(value) for value in properties.values()):
            return _state(properties, PropertyValue(rpc.UNKNOWN))
        image = inputs.parse(properties)
        if preview and not image.build_on_preview:
            return _state(properties, PropertyValue(rpc.UNKNOWN))
        making = asyncio.create_task(self._build_and_push(urn, image, preview))
        self._work.add(making)
        making.add_done_callback(self._work.discard)
        try:
            return _state(properties, PropertyValue(await making))
        except asyncio.CancelledError as error:
            raise ImageError(f"{image.image_name}: the operation was cancelled") from error

    async def _build_and_push(self, urn: str, image: Image, preview: bool) -> str:
        """The output `repoDigest`; what a preview builds has none yet."""

        async def show(line: str) -> None:
            await self._log.say(line, urn, passing=True)

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
        return next((s for s in self._sign_ins if s.server == image.server), None)


def _mistakes(properties: Properties) -> list[tuple[str, str]]:
    known = {key: value for key, value in properties.items() if not inputs.is_unknown(value)}
    given = inputs.plain(known)
    if "imageName" not in known and "imageName" in properties:
        given["imageName"] = "unknown.invalid/yet"
    try:
        image = Image.model_validate(given)
    except ValidationError as error:
        return list(inputs.reasons(error))
    mistakes = []
    if not image.skip_push and not inputs.registry_of(image.image_name):
        name = image.image_name
        mistakes.append(("imageName", f"{name!r} names no registry: write docker.io/{name}"))
    if bool(image.registry.username) != bool(image.registry.password):
        mistakes.append(("registry", "username and password belong together: give both or none"))
    return mistakes


def _state(properties: Properties, repo_digest: PropertyValue) -> Properties:
    """The outputs, with the inputs kept for the next comparison."""
    build = properties["build"].value
    fields = build if isinstance(build, Mapping) else {}
    server = inputs.at(properties, "registry", "server")
    return {
        "imageName": properties["imageName"],
        "baseImageName": properties["imageName"],
        "context": fields.get("context", PropertyValue(rpc.UNKNOWN)),
        "dockerfile": _relative(fields.get("dockerfile"), fields.get("context")),
        "platform": fields.get("platform", PropertyValue("")),
        "registryServer": server or PropertyValue(""),
        "repoDigest": repo_digest,
        INPUTS: PropertyValue(properties),
    }


def _relative(dockerfile: PropertyValue | None, context: PropertyValue | None) -> PropertyValue:
    """The Dockerfile's path seen from the context, as the official plugin puts it out."""
    if dockerfile is None or context is None:
        return PropertyValue(rpc.UNKNOWN)
    if inputs.is_unknown(dockerfile) or inputs.is_unknown(context):
        return PropertyValue(rpc.UNKNOWN)
    return dockerfile.with_value(os.path.relpath(str(dockerfile.value), str(context.value)))


def _compared(properties: Mapping[str, PropertyValue]) -> dict[str, Any]:
    given = {k: v for k, v in inputs.plain(properties).items() if k not in _NOT_COMPARED}
    if isinstance(given.get("registry"), dict):
        given["registry"] = given["registry"].get("server")
    return given


def _without_tag(name: str) -> str:
    path, colon, tag = name.rpartition(":")
    return path if colon and "/" not in tag else name


class _SignIn(Registry):
    """An entry of `registryAuth`."""

    address: str


def _sign_ins(given: object) -> list[Registry]:
    """Entries of `registryAuth`, which arrives as a list or as its JSON."""
    try:
        listed = json.loads(given) if isinstance(given, str) else given
        entries = TypeAdapter(list[_SignIn]).validate_python(listed)
    except ValueError as error:
        raise ImageError(
            "docker:registryAuth: the stand-in for the Docker plugin expects a list of "
            "{address, username, password}"
        ) from error
    return [e.model_copy(update={"server": inputs.host_of(e.address)}) for e in entries]
