"""Variables for pulumi, kubectl and docker, and how a shell imports them."""

import os
import pwd
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

import grpc
import pytest

from devcluster import environment
from devcluster.paths import Layout
from devcluster.spec import Kind
from devcluster.toolchain import Toolchain
from devcluster.toolchain.manifests import VolcanoFiles

OWN = {
    "KUBECONFIG": "/users/kubeconfig",
    "PULUMI_HOME": "/users/pulumi",
    "PULUMI_BACKEND_URL": "https://users.example",
    "PULUMI_CONFIG_PASSPHRASE": "users secret",
    "DOCKER_HOST": "tcp://users.example:2376",
    "DOCKER_TLS": "1",
    "DOCKER_TLS_VERIFY": "1",
    "DOCKER_CERT_PATH": "/users/certificates",
    "DOCKER_CONTENT_TRUST": "1",
    "DOCKER_API_VERSION": "1.99",
}


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    tools = tmp_path / "tools"
    return Toolchain(
        bin=tools / "bin",
        pulumi_home=tools / "pulumi",
        charts=tools / "charts",
        volcano=VolcanoFiles(tools / "volcano"),
        installed=(),
    )


def test_users_settings_are_not_used(
    layout: Layout, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OWN.items():
        monkeypatch.setenv(name, value)
    found = environment.variables(layout, toolchain, Kind.REAL)
    assert not any(found[name] == value for name, value in OWN.items())
    assert found["KUBECONFIG"] == str(layout.kubeconfig)
    assert found["DOCKER_HOST"] == f"unix://{layout.docker_socket}"


def test_toolchain_precedes_the_users_tools_on_path(
    layout: Layout, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/users/bin:/usr/bin")
    path = environment.variables(layout, toolchain, Kind.SIMULATED)["PATH"].split(":")
    assert path[0] == str(toolchain.bin)
    assert path[-2:] == ["/users/bin", "/usr/bin"]


def test_simulated_nodes_have_no_docker(simulated: Layout, toolchain: Toolchain) -> None:
    found = environment.variables(simulated, toolchain, Kind.SIMULATED)
    assert not any(name.startswith("DOCKER") for name in found)
    assert str(simulated.state / "bin") not in found["PATH"].split(":")


@pytest.mark.parametrize("name", ["state", "50%20#1?", "état"])
def test_directory_for_pulumi_state_is_created(
    name: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    layout = Layout(tmp_path, tmp_path / name)
    url = environment.variables(layout, toolchain, Kind.REAL)["PULUMI_BACKEND_URL"]
    assert Path(unquote(urlsplit(url).path)) == layout.pulumi_backend
    assert layout.pulumi_backend.is_dir()
    assert urlsplit(url).query == "metadata=skip"


def test_stacks_created_in_the_shell_do_not_adopt_existing_objects(
    layout: Layout, toolchain: Toolchain
) -> None:
    printed = environment.exports(environment.variables(layout, toolchain, Kind.REAL))
    assert "PULUMI_K8S" not in printed


@pytest.mark.parametrize(("name", "user"), [("", str(os.geteuid())), ("anna", "anna")])
def test_user_without_an_account_has_a_name(
    name: str, user: str, layout: Layout, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: int) -> NoReturn:
        raise KeyError

    monkeypatch.setenv("USER", name)
    monkeypatch.setattr(pwd, "getpwuid", find)
    assert environment.variables(layout, toolchain, Kind.SIMULATED)["USER"] == user


def test_no_proxy_is_unset_without_a_proxy(layout: Layout, toolchain: Toolchain) -> None:
    found = environment.variables(layout, toolchain, Kind.REAL)
    assert not any(name.lower() == "no_proxy" for name in found)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "ALL_PROXY", "grpc_proxy"])
@pytest.mark.usefixtures("home")
def test_cluster_traffic_bypasses_the_users_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example")
    found = environment.proxy_exclusions()
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,.example,127.0.0.1,10.250.0.0/16"
    monkeypatch.setenv("NO_PROXY", found["NO_PROXY"])
    assert environment.proxy_exclusions() == found


@pytest.mark.parametrize("name", ["http_proxy", "grpc_proxy"])
@pytest.mark.usefixtures("home")
def test_programs_bypass_the_users_proxy_for_pulumis_engine(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")  # Nothing listens on this port.
    monkeypatch.setenv("no_grpc_proxy", "x")
    for name, value in environment.proxy_exclusions().items():
        monkeypatch.setenv(name, value)
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result()
    finally:
        server.stop(None)


def test_repeated_calls_return_equal_environments(layout: Layout, toolchain: Toolchain) -> None:
    first = environment.variables(layout, toolchain, Kind.REAL)
    assert environment.variables(layout, toolchain, Kind.REAL) == first


def test_shell_round_trips_exported_values() -> None:
    hard = {"PATH": "/a b:/c'd", "X": '$HOME "and" `more`\nsecond line', "EMPTY": ""}
    script = environment.exports(hard) + '\nprintf "%s|" "$PATH" "$X" "$EMPTY"'
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "|".join([*hard.values(), ""])
