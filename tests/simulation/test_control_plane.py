"""Control planes started with a fake kwokctl that records its arguments."""

import base64
import contextlib
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind, cluster_spec
from simulation import control_plane
from simulation.configuration import kwokctl_configuration
from simulation.control_plane import ControlPlane

REAL = cluster_spec(Kind.REAL)
SIMULATED = cluster_spec(Kind.SIMULATED)

KWOKCTL = """#!/bin/sh
echo "$*" >> "$HOME/../calls"
echo "$HOME $KUBECONFIG" >> "$HOME/../environment"
[ -e "$HOME/../broken" ] && { echo "etcd: no space left"; exit 1; }
mkdir -p "$HOME/.kwok/clusters/cluster/pki" "$HOME/.kwok/clusters/cluster/bin"
"""


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "kwokctl").write_text(KWOKCTL)
    (folder / "kwokctl").chmod(0o755)
    return folder


@pytest.fixture
def plane(layout: Layout, binaries: Path) -> ControlPlane:
    return ControlPlane(layout.control_plane_settings(REAL, binaries, 6443))


def calls(layout: Layout) -> list[str]:
    return (layout.state / "calls").read_text().splitlines()


def cluster_files(layout: Layout, *names: str) -> list[Path]:
    """Return files in kwokctl's cluster directory, and create their parent directories."""
    files = [layout.pki.parent / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    return files


def test_the_first_start_creates_the_cluster(plane: ControlPlane, layout: Layout) -> None:
    plane.start()
    (call,) = calls(layout)
    assert "create cluster --wait 180s" in call
    assert f"--kubeconfig {plane.inner_kubeconfig}" in call
    settings = json.loads((layout.control_plane / "kwokctl.json").read_text())
    assert settings == kwokctl_configuration(plane.settings)


def test_kwokctl_writes_into_the_directory_of_the_cluster(
    plane: ControlPlane, layout: Layout
) -> None:
    plane.start()
    home, kubeconfig = (layout.state / "environment").read_text().split()
    assert Path(home) == layout.control_plane
    assert Path(kubeconfig).parent == layout.control_plane


def test_a_later_start_uses_the_existing_cluster(plane: ControlPlane, layout: Layout) -> None:
    plane.start()
    (data_file,) = cluster_files(layout, "etcd-data")
    data_file.touch()
    plane.start()
    assert calls(layout)[1].endswith("start cluster --wait 180s")
    assert data_file.exists()


def test_process_ids_of_an_earlier_start_are_removed(plane: ControlPlane, layout: Layout) -> None:
    plane.start()
    etcd, api_server = cluster_files(layout, "pids/etcd.pid", "pids/kube-apiserver.pid")
    etcd.write_text("17\n")
    api_server.write_text("")
    assert plane.component_pids() == {17: "etcd"}
    plane.start()
    assert plane.component_pids() == {}
    assert not etcd.exists()


def test_a_later_start_uses_the_current_toolchain(
    plane: ControlPlane, layout: Layout, binaries: Path
) -> None:
    plane.start()
    etcd, controller = cluster_files(layout, "bin/etcd", "bin/kwok-controller")
    etcd.symlink_to("/old/tools/etcd")
    controller.symlink_to("/old/tools/kwok")
    plane.start()
    assert etcd.readlink() == binaries / "etcd"
    assert controller.readlink() == binaries / "kwok"


def test_kwok_for_simulated_nodes_is_started_by_the_platforms_script(
    layout: Layout, binaries: Path
) -> None:
    plane = ControlPlane(layout.control_plane_settings(SIMULATED, binaries, 6443))
    plane.start()
    (controller,) = cluster_files(layout, "bin/kwok-controller")
    controller.symlink_to(binaries / "kwok")  # earlier versions created this link
    plane.start()
    assert controller.readlink() == plane.settings.kwok
    settings = json.loads((layout.control_plane / "kwokctl.json").read_text())
    assert settings["options"]["kwokControllerBinary"] == str(controller.readlink())


def test_failed_creation_is_repeated_from_scratch(plane: ControlPlane, layout: Layout) -> None:
    (layout.state / "broken").touch()
    with pytest.raises(subprocess.CalledProcessError):
        plane.start()
    assert "no space left" in (layout.logs / "kwokctl.log").read_text()
    (partial,) = cluster_files(layout, "pki/ca.crt")
    partial.touch()
    (layout.state / "broken").unlink()
    plane.start()
    assert not partial.exists()
    assert [" create cluster " in call for call in calls(layout)] == [True, True]


@pytest.fixture
def certificates(layout: Layout) -> Layout:
    for file in cluster_files(layout, "pki/ca.crt", "pki/admin.crt", "pki/admin.key"):
        file.write_text(f"the {file.name}")
    return layout


@pytest.mark.parametrize("spec", [REAL, SIMULATED], ids=["real", "simulated"])
def test_the_kubeconfig_has_the_context_of_the_cluster(
    spec: ClusterSpec, certificates: Layout, binaries: Path
) -> None:
    plane = ControlPlane(certificates.control_plane_settings(spec, binaries, 6443))
    plane.write_kubeconfig(certificates.kubeconfig, "https://10.250.76.2:6443")
    config = json.loads(certificates.kubeconfig.read_text())
    assert config["current-context"] == spec.context
    (context,) = config["contexts"]
    (user,) = config["users"]
    (cluster,) = config["clusters"]
    assert context["context"] == {"cluster": cluster["name"], "user": user["name"]}
    assert cluster["cluster"]["server"] == "https://10.250.76.2:6443"
    key = base64.b64decode(user["user"]["client-key-data"])
    assert key == b"the admin.key"


def test_only_the_owner_can_read_the_kubeconfig(certificates: Layout, plane: ControlPlane) -> None:
    left_over = certificates.kubeconfig.with_suffix(".part")
    left_over.touch(mode=0o644)
    plane.write_kubeconfig(certificates.kubeconfig, "https://10.250.76.2:6443")
    assert stat.S_IMODE(certificates.kubeconfig.stat().st_mode) == 0o600
    assert not left_over.exists()


def test_components_that_exit_together_are_restarted_together(
    plane: ControlPlane, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "RESTART_DELAY", 0)
    plane.start()
    etcd_pid_file, kwok_pid_file = cluster_files(
        layout, "pids/etcd.pid", "pids/kwok-controller.pid"
    )
    exited = [exited_process(), exited_process()]
    for file, pid in zip((etcd_pid_file, kwok_pid_file), exited, strict=True):
        file.write_text(str(pid))
    plane.on_exit(1)
    assert len(calls(layout)) == 1
    plane.on_exit(exited[0])
    first = wait_for_kwokctl(plane)
    plane.on_exit(exited[1])
    assert wait_for_kwokctl(plane) == first
    etcd_pid_file.write_text(str(os.getpid()))
    plane.on_exit(first)
    second = wait_for_kwokctl(plane)
    assert second != first
    kwok_pid_file.write_text(str(os.getpid()))
    plane.on_exit(second)
    assert wait_for_kwokctl(plane) is None
    assert [call.endswith("start cluster") for call in calls(layout)] == [False, True, True]


def wait_for_kwokctl(plane: ControlPlane) -> int | None:
    """Wait until the recorded kwokctl has finished, and return its process ID."""
    if plane._kwokctl_pid is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(plane._kwokctl_pid, 0)
    return plane._kwokctl_pid


def exited_process() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid
