"""Checks of the host before anything starts."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from devcluster import DevclusterError, host
from devcluster.nodes import init
from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from tests.devcluster.conftest import Install

UPDATE_LISTS = """
import fcntl, sys, time
with open(sys.argv[1], "w") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(0.3)
    print("updated", file=lock, flush=True)
"""
REAL = cluster_spec(Kind.REAL)
SIMULATED = cluster_spec(Kind.SIMULATED)


@pytest.fixture
def supported_host(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    """A host that meets all requirements: Linux on x86_64, and root."""
    install("unshare", "exit 0")
    machine = SimpleNamespace(sysname="Linux", machine="x86_64")
    monkeypatch.setattr(os, "uname", lambda: machine)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "PROGRAMS", {"sh": "dash"})
    monkeypatch.setattr(host, "FILES", {"/": "base-files"})


@pytest.fixture
def unoccupied_host(no_clusters: None, monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    """A host with free disk space, and without routes or other clusters."""
    monkeypatch.setattr(host, "GIB", 1)
    install("ip", "echo '[]'")
    install("unshare", "exit 0")


@pytest.mark.usefixtures("supported_host")
def test_real_nodes_are_chosen_if_the_host_supports_them() -> None:
    assert host.choose_kind("auto").kind is Kind.REAL
    assert host.choose_kind("real").reason == "requested by NODES=real"


@pytest.mark.usefixtures("supported_host")
def test_simulated_nodes_can_be_requested_anywhere() -> None:
    verdict = host.choose_kind("simulated")
    assert (verdict.kind, verdict.reason) == (Kind.SIMULATED, "requested by NODES=simulated")


@pytest.mark.usefixtures("supported_host")
def test_simulated_nodes_are_chosen_without_root_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    verdict = host.choose_kind("auto")
    assert verdict.kind is Kind.SIMULATED
    assert verdict.reason == "real nodes are not possible here: they require root"


@pytest.mark.usefixtures("supported_host")
def test_real_nodes_are_not_chosen_in_a_container_without_privileges(install: Install) -> None:
    install("unshare", 'echo "unshare failed: Operation not permitted" >&2; exit 1')
    verdict = host.choose_kind("auto")
    assert verdict.kind is Kind.SIMULATED
    assert "(unshare failed: Operation not permitted)" in verdict.reason


@pytest.mark.usefixtures("unoccupied_host")
def test_missing_permission_to_create_namespaces_is_reported_before_the_build(
    layout: Layout, install: Install
) -> None:
    install("unshare", 'echo "Operation not permitted" >&2; exit 1')
    with pytest.raises(DevclusterError, match=r"\(Operation not permitted\): allow unprivileged"):
        host.check(SIMULATED, layout)


@pytest.mark.usefixtures("supported_host")
def test_error_for_unsupported_real_nodes_suggests_simulated_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = SimpleNamespace(sysname="Darwin", machine="arm64")
    monkeypatch.setattr(os, "uname", lambda: machine)
    with pytest.raises(DevclusterError, match=r"this is Darwin arm64.*Use NODES=simulated"):
        host.choose_kind("real")


@pytest.mark.usefixtures("supported_host")
def test_unknown_kind_of_nodes_is_rejected() -> None:
    with pytest.raises(DevclusterError, match="NODES is 'fake': use NODES=real"):
        host.choose_kind("fake")


@pytest.mark.usefixtures("supported_host")
def test_installable_packages_are_not_required_beforehand(
    monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    install("apt-get", "exit 0")
    monkeypatch.setitem(host.PROGRAMS, "no-such-program", "no-such-package")
    assert host.missing_packages() == ["no-such-package"]
    assert host.choose_kind("auto").kind is Kind.REAL


@pytest.mark.usefixtures("supported_host")
def test_error_names_the_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(host.PROGRAMS, "no-such-program", "second")
    monkeypatch.setitem(host.FILES, "/no/such/file", "first")
    verdict = host.choose_kind("auto")
    assert verdict.kind is Kind.SIMULATED
    assert verdict.reason.endswith("these packages cannot be installed: first, second")


def test_system_programs_are_found_even_if_not_on_the_users_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(host, "PROGRAMS", {"sh": "dash"})
    monkeypatch.setattr(host, "FILES", {})
    assert host.missing_packages() == []


@pytest.fixture(autouse=True)
def lists_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A lock of apt's package lists that is separate from the host's."""
    lock = tmp_path / "lists-lock"
    monkeypatch.setattr(host, "LISTS_LOCK", lock)
    return lock


def test_running_update_of_the_package_lists_is_awaited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install, lists_lock: Path
) -> None:
    monkeypatch.setattr(host, "POLICY", tmp_path / "policy-rc.d")
    install("apt-get", f"cat {lists_lock}")
    command = [sys.executable, "-c", UPDATE_LISTS, lists_lock]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as updater:
        assert updater.stdout is not None
        assert updater.stdout.readline() == "locked\n"
        host.install_packages(["pigz"], tmp_path / "log")
    assert (tmp_path / "log").read_text() == "updated\n" * 2


def test_services_do_not_start_during_package_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install
) -> None:
    policy, log = tmp_path / "policy-rc.d", tmp_path / "logs" / "packages.log"
    monkeypatch.setattr(host, "POLICY", policy)
    install("apt-get", f'echo "$DEBIAN_FRONTEND: $*"; {policy}; echo "may start: $?"')
    host.install_packages(["skopeo", "pigz"], log)
    assert log.read_text().splitlines() == [
        "noninteractive: update",
        "may start: 101",
        "noninteractive: --option DPkg::Lock::Timeout=600"
        " install --yes --no-install-recommends skopeo pigz",
        "may start: 101",
    ]
    assert not policy.exists()


def test_policy_file_left_by_a_killed_installation_is_inert_and_removed_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(host, "POLICY", policy)
    install("apt-get", f"cp -p {policy} {tmp_path}/left")
    host.install_packages(["pigz"], tmp_path / "log")
    (tmp_path / "left").rename(policy)
    assert subprocess.run([policy, "docker", "start"]).returncode == 0
    host.install_packages(["pigz"], tmp_path / "log")
    assert not policy.exists()


def test_an_existing_policy_file_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install
) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("the owner's")
    monkeypatch.setattr(host, "POLICY", policy)
    install("apt-get", "exit 0")
    host.install_packages(["pigz"], tmp_path / "log")
    assert policy.read_text() == "the owner's"


def test_error_of_a_failed_package_installation_suggests_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, install: Install
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(host, "POLICY", policy)
    install("apt-get", "echo no such package; exit 100")
    with pytest.raises(DevclusterError, match=r"try: apt-get install .* pigz$"):
        host.install_packages(["pigz"], tmp_path / "log")
    assert "no such package" in (tmp_path / "log").read_text()
    assert not policy.exists()


def test_building_a_single_extra_requires_less_disk_space(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "missing", lambda _group, _cache, extras=(): list(extras))
    monkeypatch.setattr(host, "GIB", 1 << 60)
    with pytest.raises(DevclusterError, match="about 3 GiB are needed"):
        host.check(SIMULATED, layout, ["volcano-1.10"])


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list of unbuilt tools. It gets the arguments of each query."""
    queries: list[object] = []

    def missing(*arguments: object) -> list[str]:
        queries.append(arguments)
        return ["etcd"]

    monkeypatch.setattr(host, "missing", missing)
    return queries


def test_less_disk_space_is_required_once_tools_are_built(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "missing", lambda *_: [])
    monkeypatch.setattr(host, "GIB", 1 << 60)
    with pytest.raises(DevclusterError, match="about 1 GiB are needed"):
        host.check(SIMULATED, layout)


def test_start_after_a_failed_first_start_requires_full_disk_space(
    layout: Layout, unbuilt: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (layout.cache / "tools").mkdir(parents=True)
    monkeypatch.setattr(host, "GIB", 1 << 60)
    with pytest.raises(DevclusterError, match="about 15 GiB are needed"):
        host.check(REAL, layout, ["kuberay"])
    assert unbuilt[0] == ("real", layout.cache)


@pytest.mark.parametrize(("filled", "accepted"), [(7, True), (6, False)])
@pytest.mark.usefixtures("unbuilt")
def test_caches_of_an_interrupted_build_count_as_free_disk_space(
    filled: int, accepted: bool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layout.cache / "go" / "mod").mkdir(parents=True)
    (layout.cache / "go" / "mod" / "file").write_bytes(bytes(filled << 12))
    monkeypatch.setattr(host, "GIB", 1 << 12)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 12))
    outcome = nullcontext() if accepted else pytest.raises(DevclusterError, match="12 GiB")
    with outcome:
        host.check(SIMULATED, layout)


@pytest.mark.usefixtures("unoccupied_host")
def test_host_with_enough_disk_space_is_accepted(layout: Layout) -> None:
    host.check(REAL, layout)


def test_a_full_disk_is_rejected_with_the_required_space(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "GIB", 1 << 60)
    with pytest.raises(DevclusterError, match=r"about 12 GiB are needed.*GPU_PLATFORM_CACHE"):
        host.check(SIMULATED, layout)


@pytest.mark.parametrize("character", list(':,"#%?'))
@pytest.mark.usefixtures("unoccupied_host")
def test_paths_that_programs_would_split_are_rejected(tmp_path: Path, character: str) -> None:
    directory = tmp_path / f"a{character}b"
    message = re.escape(f"{directory} contains {character}: set GPU")
    for layout in (Layout(directory, tmp_path), Layout(tmp_path, directory)):
        with pytest.raises(DevclusterError, match=message):
            host.check(SIMULATED, layout)


@pytest.mark.usefixtures("unoccupied_host")
def test_a_socket_path_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / ("long" * 30))
    with pytest.raises(DevclusterError, match=r"at most 107 bytes\).*GPU_PLATFORM_STATE"):
        host.check(REAL, layout)
    host.check(SIMULATED, layout)  # Simulated nodes have no such socket.


@pytest.mark.usefixtures("unoccupied_host")
def test_the_longest_socket_path_is_accepted(tmp_path: Path) -> None:
    room = host.SOCKET_LIMIT - len(str(tmp_path / "s" / "docker.sock"))
    layout = Layout(tmp_path, tmp_path / ("s" * (room + 1)))
    assert len(str(layout.docker_socket)) == host.SOCKET_LIMIT
    host.check(REAL, layout)


@pytest.mark.parametrize("name", [*init.OVERLAID, "run", "dev"])
@pytest.mark.usefixtures("unoccupied_host")
def test_checkout_in_a_directory_used_by_the_nodes_is_rejected(tmp_path: Path, name: str) -> None:
    layout = Layout(tmp_path, Path("/", name, "platform"))
    with pytest.raises(DevclusterError, match=f"cannot be in /{name},"):
        host.check(REAL, layout)


@pytest.mark.usefixtures("unoccupied_host")
def test_file_system_without_overlayfs_support_is_rejected(
    layout: Layout, tmp_path: Path, install: Install
) -> None:
    layout = Layout(tmp_path / "cache", tmp_path / "state")
    refused = 'case "$*" in *"upperdir=%s/"*) echo "wrong fs type" >&2; exit 32;; esac'
    for directory in (layout.cache, layout.state):
        install("unshare", refused % directory)
        with pytest.raises(DevclusterError, match=rf"{directory} \(wrong fs type\)"):
            host.check(REAL, layout)
        assert not list(directory.glob("tmp*"))


@pytest.mark.usefixtures("unoccupied_host")
def test_cluster_network_that_is_already_in_use_is_rejected(
    layout: Layout, install: Install
) -> None:
    routes = json.dumps([{"dst": "10.250.7.0/24", "dev": "wg0"}])
    install("ip", f"echo '{routes}'")
    with pytest.raises(DevclusterError, match=r"in use \(10.250.7.0/24 dev wg0\)"):
        host.check(REAL, layout)


def test_kernel_settings_of_nodes_exist_and_are_integers() -> None:
    for key, value in init.SYSCTLS.items():
        assert Path("/proc/sys", key).exists(), key
        assert value.isdigit()
