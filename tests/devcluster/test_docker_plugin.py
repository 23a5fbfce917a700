"""The Docker plugin over real gRPC, with a fake `docker` command."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import empty_pb2, struct_pb2
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, provider_pb2_grpc

from devcluster.docker_plugin import docker_cli
from devcluster.docker_plugin.__main__ import start
from devcluster.docker_plugin.inputs import ImageError
from devcluster.docker_plugin.provider import IMAGE, NOTICE, EngineLog, ImageProvider
from tests.processes import is_running

URN = f"urn:pulumi:dev::gpu-platform::{IMAGE}::training"
NAME = "127.0.0.1:5000/training:1"
DIGEST = "sha256:" + "7" * 64
LOCAL_ID = "sha256:" + "9" * 64

DOCKER = f"""#!/bin/sh
echo "$*" >> "$FAKE/calls"
env > "$FAKE/env.$1"
case "$1" in
--version) echo "Docker version 20.10.24, build 1" ;;
login)
  cat > "$FAKE/stdin"
  cp "$DOCKER_CONFIG/config.json" "$FAKE/config.json"
  [ -e "$FAKE/refuse" ] && {{ echo "unauthorized"; exit 1; }}
  echo "Login Succeeded" ;;
build)
  echo "#1 [1/2] FROM base"
  echo "#1 {DIGEST}"
  echo "#2 token is $TOKEN"
  [ -e "$FAKE/slow" ] && {{ sleep 60 & echo $! >"$FAKE/plugin"; wait; }}
  [ -e "$FAKE/broken" ] && {{ echo "ERROR: no such file requirements.txt" >&2; exit 1; }}
  true ;;
push) echo "1: digest: {DIGEST} size: 528" ;;
image) echo "{LOCAL_ID}" ;;
esac
"""


class Engine(engine_pb2_grpc.EngineServicer):
    """The part of Pulumi's engine that a plugin calls: its log."""

    def __init__(self) -> None:
        self.lines: list[engine_pb2.LogRequest] = []

    async def Log(self, request: Any, context: Any) -> empty_pb2.Empty:  # noqa: N802
        self.lines.append(request)
        return empty_pb2.Empty()


@dataclass
class Plugin:
    """The running plugin, with shorthands for the engine's calls."""

    stub: Any
    engine: Engine
    fake: Path
    inputs: dict[str, Any] = field(
        default_factory=lambda: {"imageName": NAME, "build": {"context": "app"}}
    )

    async def check(self, **changed: Any) -> provider_pb2.CheckResponse:
        news = properties(self.inputs | changed)
        return await self.stub.Check(provider_pb2.CheckRequest(urn=URN, news=news))

    async def create(self, *, preview: bool = False, **changed: Any) -> provider_pb2.CreateResponse:
        checked = await self.check(**changed)
        assert not checked.failures
        request = provider_pb2.CreateRequest(urn=URN, properties=checked.inputs, preview=preview)
        return await self.stub.Create(request)

    async def diff(self, state: struct_pb2.Struct, **changed: Any) -> provider_pb2.DiffResponse:
        checked = await self.check(**changed)
        request = provider_pb2.DiffRequest(urn=URN, id="x", olds=state, news=checked.inputs)
        return await self.stub.Diff(request)

    async def configure(self, **settings: Any) -> None:
        await self.stub.Configure(provider_pb2.ConfigureRequest(args=properties(settings)))

    def calls(self, command: str) -> list[str]:
        file = self.fake / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.split()[0] == command]

    def environment(self, command: str) -> dict[str, str]:
        lines = (self.fake / f"env.{command}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@dataclass(frozen=True)
class Secret:
    value: Any


def property_value(value: Any) -> PropertyValue:
    if isinstance(value, Secret):
        return property_value(value.value).with_secret(True)
    if isinstance(value, dict):
        return PropertyValue({key: property_value(item) for key, item in value.items()})
    if isinstance(value, list):
        return PropertyValue([property_value(item) for item in value])
    return PropertyValue(value)


def properties(values: dict[str, Any]) -> struct_pb2.Struct:
    return PropertyValue.marshal_map({key: property_value(item) for key, item in values.items()})


def outputs(state: struct_pb2.Struct) -> Any:
    return PropertyValue.unmarshal_map(state)


@pytest.fixture
async def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Plugin]:
    fake = tmp_path / "fake"
    fake.mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "app" / "train.py").write_text("print('training')\n")
    monkeypatch.chdir(tmp_path)
    engine = Engine()
    log_server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServicer_to_server(engine, log_server)
    address = f"127.0.0.1:{log_server.add_insecure_port('127.0.0.1:0')}"
    await log_server.start()
    async with grpc.aio.insecure_channel(address) as log:
        server, port = await start(ImageProvider(EngineLog.on(log)), address)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Plugin(provider_pb2_grpc.ResourceProviderStub(channel), engine, fake)
        await server.stop(None)
    await log_server.stop(None)


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    return caught.value.details() or ""


async def test_image_is_built_pushed_and_referenced_by_digest(plugin: Plugin) -> None:
    created = await plugin.create(build={"context": "app", "args": {"BASE_IMAGE": "base:1"}})
    state = outputs(created.properties)
    assert created.id == NAME
    assert state["repoDigest"].value == f"127.0.0.1:5000/training@{DIGEST}"
    assert state["baseImageName"].value == state["imageName"].value == NAME
    assert state["context"].value == "app"
    assert state["dockerfile"].value == "Dockerfile"
    (build,) = plugin.calls("build")
    assert "--file app/Dockerfile --tag 127.0.0.1:5000/training:1" in build
    assert "--build-arg BASE_IMAGE=base:1" in build
    assert build.endswith(" app")
    assert plugin.environment("build")["DOCKER_BUILDKIT"] == "1"
    assert plugin.calls("push") == ["push 127.0.0.1:5000/training:1"]


async def test_every_build_option_is_passed_to_docker(plugin: Plugin) -> None:
    build = {
        "context": "app",
        "target": "final",
        "platform": "linux/arm64",
        "network": "host",
        "addHosts": ["mirror:10.0.0.1"],
        "cacheFrom": {"images": ["r.example/training:cache"]},
        "builderVersion": "BuilderV1",
    }
    await plugin.create(build=build)
    (call,) = plugin.calls("build")
    for option in (
        "--target final",
        "--platform linux/arm64",
        "--network host",
        "--add-host mirror:10.0.0.1",
        "--cache-from r.example/training:cache",
    ):
        assert option in call
    assert plugin.environment("build")["DOCKER_BUILDKIT"] == "0"


async def test_image_that_is_not_pushed_is_referenced_by_its_local_id(plugin: Plugin) -> None:
    created = await plugin.create(skipPush=True, imageName="training")
    assert outputs(created.properties)["repoDigest"].value == LOCAL_ID
    assert plugin.calls("push") == []


async def test_unchanged_context_results_in_no_diff(plugin: Plugin) -> None:
    created = await plugin.create()
    Path("app/train.py").touch()
    assert (await plugin.diff(created.properties)).changes == provider_pb2.DiffResponse.DIFF_NONE


async def test_changed_file_results_in_an_update_of_the_build(plugin: Plugin) -> None:
    created = await plugin.create()
    Path("app/train.py").write_text("print('training more')\n")
    diff = await plugin.diff(created.properties)
    assert diff.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert list(diff.detailedDiff) == ["build"]
    assert list(diff.replaces) == []


async def test_changed_password_alone_results_in_no_diff(plugin: Plugin) -> None:
    sign_in = {"server": "127.0.0.1:5000", "username": "ci", "password": Secret("old-password")}
    created = await plugin.create(registry=sign_in)
    changed = sign_in | {"password": Secret("new-password")}
    diff = await plugin.diff(created.properties, registry=changed)
    assert diff.changes == provider_pb2.DiffResponse.DIFF_NONE


async def test_changed_image_name_results_in_an_update(plugin: Plugin) -> None:
    created = await plugin.create()
    diff = await plugin.diff(created.properties, imageName="127.0.0.1:5000/training:2")
    assert list(diff.detailedDiff) == ["imageName"]


async def test_update_rebuilds_the_image(plugin: Plugin) -> None:
    created = await plugin.create()
    checked = await plugin.check()
    await plugin.stub.Update(
        provider_pb2.UpdateRequest(urn=URN, id="x", olds=created.properties, news=checked.inputs)
    )
    assert len(plugin.calls("build")) == 2


async def test_preview_runs_no_build_and_leaves_the_digest_unknown(plugin: Plugin) -> None:
    state = outputs((await plugin.create(preview=True)).properties)
    assert state["repoDigest"].value == rpc.UNKNOWN
    assert state["imageName"].value == NAME
    assert plugin.calls("build") == []


async def test_a_preview_with_build_on_preview_does_not_push(plugin: Plugin) -> None:
    await plugin.create(preview=True, buildOnPreview=True)
    assert len(plugin.calls("build")) == 1
    assert plugin.calls("push") == []


@pytest.mark.parametrize(
    "unknown",
    [
        {"imageName": rpc.UNKNOWN},
        {"build": rpc.UNKNOWN},
        {"build": {"context": "app", "args": {"BASE_IMAGE": rpc.UNKNOWN}}},
        {"build": {"context": rpc.UNKNOWN}},
        {"registry": {"username": "ci", "password": rpc.UNKNOWN}},
        {"skipPush": rpc.UNKNOWN},
    ],
    ids=lambda unknown: next(iter(unknown)),
)
async def test_unknown_values_do_not_fail_a_preview(
    plugin: Plugin, unknown: dict[str, Any]
) -> None:
    created = await plugin.create(preview=True, buildOnPreview=True, **unknown)
    assert outputs(created.properties)["repoDigest"].value == rpc.UNKNOWN
    assert plugin.calls("build") == []


async def test_password_is_passed_on_stdin_with_a_separate_docker_configuration(
    plugin: Plugin,
) -> None:
    users = Path("home/.docker/config.json")
    users.parent.mkdir(parents=True)
    users.write_text('{"credsStore": "desktop", "auths": {"other.example": {"auth": "eA=="}}}')
    sign_in = {"server": "127.0.0.1:5000", "username": "ci", "password": Secret("hunter-22")}
    created = await plugin.create(registry=sign_in)
    assert plugin.calls("login") == ["login --username ci --password-stdin 127.0.0.1:5000"]
    assert (plugin.fake / "stdin").read_text() == "hunter-22"
    folder = Path(plugin.environment("push")["DOCKER_CONFIG"])
    assert folder != users.parent
    assert not folder.exists()
    assert (
        plugin.fake / "config.json"
    ).read_text() == '{"auths": {"other.example": {"auth": "eA=="}}}'
    assert "credsStore" in users.read_text()
    kept = outputs(created.properties)["__inputs"].value["registry"].value["password"]
    assert kept.is_secret


def test_cli_plugins_of_a_relative_configuration_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", "users")
    (tmp_path / "users" / "cli-plugins").mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    docker_cli.copy_configuration(tmp_path / "copy", "127.0.0.1:5000")
    assert (tmp_path / "copy" / "cli-plugins").is_dir()


async def test_secrets_are_not_printed(plugin: Plugin) -> None:
    build = {"context": "app", "args": {"TOKEN": Secret("s3cret-token")}}
    created = await plugin.create(build=build)
    assert "#2 token is [secret]" in [line.message for line in plugin.engine.lines]
    assert not any("s3cret-token" in line.message for line in plugin.engine.lines)
    assert not any("s3cret-token" in call for call in plugin.calls("build"))
    assert "s3cret-token" in plugin.environment("build")["TOKEN"]
    assert outputs(created.properties)["__inputs"].value["build"].value["args"].contains_secret()


async def test_a_provider_logs_in_for_every_image_of_its_registry(plugin: Plugin) -> None:
    await plugin.configure(
        host="unix:///run/own.sock",
        registryAuth=json.dumps(
            [{"address": "http://127.0.0.1:5000", "username": "ci", "password": "pw-22"}]
        ),
    )
    await plugin.create()
    await plugin.create(imageName="other.example/training:1")
    assert plugin.calls("login") == ["login --username ci --password-stdin 127.0.0.1:5000"]
    assert plugin.environment("build")["DOCKER_HOST"] == "unix:///run/own.sock"


async def test_unsupported_provider_setting_is_rejected(plugin: Plugin) -> None:
    message = await refusal(plugin.configure(caMaterial="pem"))
    assert message.startswith("docker:caMaterial: the stand-in for the Docker plugin supports only")


async def test_a_failed_build_shows_the_end_of_its_output(plugin: Plugin) -> None:
    (plugin.fake / "broken").touch()
    message = await refusal(plugin.create())
    assert message.startswith("building 127.0.0.1:5000/training:1 failed:")
    assert message.endswith("ERROR: no such file requirements.txt")
    assert plugin.calls("push") == []


async def test_canceled_build_is_terminated(plugin: Plugin) -> None:
    (plugin.fake / "slow").touch()
    creating = asyncio.ensure_future(plugin.create())
    beneath = plugin.fake / "plugin"
    while not (beneath.exists() and beneath.read_text().endswith("\n")):
        await asyncio.sleep(0.01)
    await plugin.stub.Cancel(empty_pb2.Empty())
    assert await refusal(creating) == f"{NAME}: the operation was canceled"
    (builder,) = (int(line) for line in beneath.read_text().split())
    # Killed processes end asynchronously, and only their parent could wait for them.
    while is_running(builder):
        await asyncio.sleep(0.01)


async def test_error_of_a_rejected_login_names_registry_and_user(plugin: Plugin) -> None:
    (plugin.fake / "refuse").touch()
    sign_in = {"server": "127.0.0.1:5000", "username": "ci", "password": Secret("hunter-22")}
    message = await refusal(plugin.create(registry=sign_in))
    assert message == "logging in to 127.0.0.1:5000 as ci failed:\nunauthorized"


async def test_use_of_the_stand_in_is_reported_once(plugin: Plugin) -> None:
    await plugin.check()
    await plugin.check()
    assert [line.message for line in plugin.engine.lines] == [NOTICE]


async def test_build_output_is_logged_for_its_image(plugin: Plugin) -> None:
    await plugin.create()
    assert f"#1 {DIGEST}" not in [line.message for line in plugin.engine.lines]
    line = next(line for line in plugin.engine.lines if "FROM base" in line.message)
    assert line.ephemeral
    assert line.urn == URN


@pytest.mark.parametrize(
    ("changed", "key", "reason"),
    [
        ({"imageName": "training:1"}, "imageName", "use docker.io/training:1"),
        ({"imageName": "team/training:1"}, "imageName", "use docker.io/team/training:1"),
        ({"registry": {"username": "ci"}}, "registry", "must be set together"),
        (
            {"build": {"context": "app", "builderVersion": "V3"}},
            "build.builderVersion",
            "BuilderV1",
        ),
        ({"build": {"cacheFrom": {}}}, "build.cacheFrom.images", "required"),
        ({"skipPush": "perhaps"}, "skipPush", "boolean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_error_names_the_invalid_input(
    plugin: Plugin, changed: dict[str, Any], key: str, reason: str
) -> None:
    (failure,) = (await plugin.check(**changed)).failures
    assert failure.property == key
    assert reason in failure.reason


async def test_error_for_a_missing_dockerfile_contains_its_path(plugin: Plugin) -> None:
    message = await refusal(plugin.check(build={"context": "app", "dockerfile": "Dockerfile"}))
    assert message.startswith("build.dockerfile: Dockerfile does not exist")
    assert message.endswith("use app/Dockerfile")


async def test_unsupported_resource_types_are_rejected(plugin: Plugin) -> None:
    urn = URN.replace("image:Image", "network:Network")
    message = await refusal(plugin.stub.Check(provider_pb2.CheckRequest(urn=urn)))
    assert message.startswith("docker:index/network:Network: the stand-in")


async def test_delete_keeps_the_image(plugin: Plugin) -> None:
    await plugin.stub.Delete(provider_pb2.DeleteRequest(urn=URN, id="x"))
    assert not (plugin.fake / "calls").exists()


async def test_read_returns_the_state_unchanged(plugin: Plugin) -> None:
    created = await plugin.create()
    read = await plugin.stub.Read(
        provider_pb2.ReadRequest(urn=URN, id="x", properties=created.properties)
    )
    assert read.properties == created.properties


def test_a_docker_without_buildkit_is_skipped(tmp_path: Path) -> None:
    without_buildx = 'echo "Docker version 28.2.2"; [ "$1" = --version ]'
    for name, script in (("new", without_buildx), ("old", 'echo "Docker version 20.10.24"')):
        file = tmp_path / name / "docker"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    assert docker_cli.find_docker(f"{tmp_path}/new:{tmp_path}/old") == str(
        tmp_path / "old" / "docker"
    )
    with pytest.raises(ImageError, match="cannot build with BuildKit: install the buildx plugin"):
        docker_cli.find_docker(f"{tmp_path}/new")


def test_error_for_a_missing_docker_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"docker is not on PATH: install it .*docker\.io"):
        docker_cli.find_docker(str(tmp_path))
