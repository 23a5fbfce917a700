"""kwokctl configuration for control planes with and without real nodes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind, cluster_spec
from simulation.configuration import (
    LEASES,
    PORTS,
    REQUESTS_PER_SECOND,
    Settings,
    kwokctl_configuration,
    write_kwok_start,
)

REAL = cluster_spec(Kind.REAL)
SIMULATED = cluster_spec(Kind.SIMULATED)
TOOLS = Path("/tools")


def configuration(spec: ClusterSpec, layout: Layout, binaries: Path = TOOLS) -> dict[str, Any]:
    document = kwokctl_configuration(layout.control_plane_settings(spec, binaries, 6443))
    return json.loads(json.dumps(document))  # kwokctl receives the document as JSON


def flags(document: dict[str, Any], component: str) -> dict[str, str]:
    (patch,) = [part for part in document["componentsPatches"] if part["name"] == component]
    return {flag["key"]: flag["value"] for flag in patch["extraArgs"]}


def test_api_server_for_real_nodes_listens_on_the_bridge(layout: Layout) -> None:
    document = configuration(REAL, layout)
    assert document["options"]["bindAddress"] == "0.0.0.0"  # noqa: S104
    assert document["options"]["kubeApiserverCertSANs"] == ["10.250.76.2", "10.250.128.1"]
    api_server = flags(document, "kube-apiserver")
    assert api_server["advertise-address"] == "10.250.76.2"
    assert api_server["kubelet-client-key"] == str(layout.pki / "admin.key")
    assert api_server["proxy-client-key-file"] == str(layout.pki / "admin.key")
    assert api_server["requestheader-client-ca-file"] == str(layout.pki / "ca.crt")


def test_control_plane_for_simulated_nodes_listens_on_loopback(simulated: Layout) -> None:
    document = configuration(SIMULATED, simulated)
    assert document["options"]["bindAddress"] == "127.0.0.1"
    assert "advertise-address" not in flags(document, "kube-apiserver")


def test_image_volumes_are_enabled_only_for_simulated_nodes(
    layout: Layout, simulated: Layout
) -> None:
    api_server = flags(configuration(SIMULATED, simulated), "kube-apiserver")
    assert api_server["feature-gates"] == "ImageVolume=true"
    assert "feature-gates" not in flags(configuration(REAL, layout), "kube-apiserver")


def test_ports_for_simulated_nodes_are_fixed_and_consecutive(simulated: Layout) -> None:
    """With automatically chosen ports, two clusters that start at once could use the same port."""
    options = configuration(SIMULATED, simulated)["options"]
    ports = [value for name, value in options.items() if name.endswith("Port")]
    assert sorted(ports) == list(range(6443, 6443 + PORTS))


@pytest.mark.parametrize("name", ["kube-controller-manager", "kube-scheduler"])
@pytest.mark.parametrize("spec", [REAL, SIMULATED], ids=["real", "simulated"])
def test_restarted_components_do_not_wait_for_a_leader_election_lease(
    spec: ClusterSpec, name: str, layout: Layout
) -> None:
    assert flags(configuration(spec, layout), name)["leader-elect"] == "false"


def test_kwok_does_not_manage_real_nodes(layout: Layout) -> None:
    kwok = flags(configuration(REAL, layout), "kwok-controller")
    assert kwok["manage-all-nodes"] == "false"
    assert kwok["manage-nodes-with-annotation-selector"] == "kwok.x-k8s.io/node=fake"


@pytest.mark.parametrize("spec", [REAL, SIMULATED], ids=["real", "simulated"])
def test_api_server_and_controllers_use_the_same_service_range(
    spec: ClusterSpec, layout: Layout
) -> None:
    document = configuration(spec, layout)
    ranges = {
        flags(document, name)["service-cluster-ip-range"]
        for name in ("kube-apiserver", "kube-controller-manager")
    }
    assert ranges == {spec.network.services}


def test_flags_that_kwokctl_sets_by_default_are_overridden(layout: Layout) -> None:
    overridden = {
        flag["key"]
        for patch in configuration(REAL, layout)["componentsPatches"]
        for flag in patch["extraArgs"]
        if flag.get("override")
    }
    assert overridden == {"node-monitor-grace-period", "manage-all-nodes"}


def test_only_etcd_of_simulated_nodes_skips_fsync(layout: Layout) -> None:
    assert flags(configuration(SIMULATED, layout), "etcd") == {"unsafe-no-fsync": "true"}
    assert flags(configuration(REAL, layout), "etcd") == {}


def test_failed_real_nodes_are_detected_sooner_than_simulated_ones(layout: Layout) -> None:
    real, simulated = configuration(REAL, layout), configuration(SIMULATED, layout)
    assert flags(real, "kube-controller-manager")["node-monitor-grace-period"] == "16s"
    assert "node-monitor-grace-period" not in flags(simulated, "kube-controller-manager")
    assert real["options"]["heartbeatFactor"] < simulated["options"]["heartbeatFactor"]


@pytest.mark.parametrize("name", ["kube-controller-manager", "kube-scheduler"])
def test_clients_of_controllers_and_scheduler_are_not_rate_limited(
    name: str, layout: Layout
) -> None:
    limits = flags(configuration(SIMULATED, layout), name)
    assert int(limits["kube-api-qps"]) == REQUESTS_PER_SECOND
    assert int(limits["kube-api-burst"]) > REQUESTS_PER_SECOND


def test_every_program_comes_from_the_toolchain(layout: Layout) -> None:
    options = configuration(REAL, layout)["options"]
    programs = {value for key, value in options.items() if key.endswith("Binary")}
    assert {str(Path(program).parent) for program in programs} == {"/tools"}
    assert len(programs) == 5


def test_only_the_api_server_for_simulated_nodes_trades_memory_for_speed(layout: Layout) -> None:
    def environment(spec: ClusterSpec) -> list[dict[str, str]]:
        patches = {
            patch["name"]: patch for patch in configuration(spec, layout)["componentsPatches"]
        }
        return list(patches["kube-apiserver"].get("extraEnvs", []))

    assert [variable["name"] for variable in environment(SIMULATED)] == ["GOGC"]
    assert environment(REAL) == []


KUBECTL = """#!/bin/sh
echo "kubectl $*" >> {calls}
[ "$(grep -c kubectl {calls})" -ge 3 ]
"""
KWOK = '#!/bin/sh\necho "kwok $*" >> {calls}\n'


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def binaries(tmp_path: Path, calls: Path) -> Path:
    folder = tmp_path / "current tools"
    folder.mkdir()
    for name, script in (("kubectl", KUBECTL), ("kwok", KWOK)):
        (folder / name).write_text(script.format(calls=calls))
        (folder / name).chmod(0o755)
    return folder


def prepare(layout: Layout, binaries: Path) -> Settings:
    layout.control_plane.mkdir(parents=True)
    return layout.control_plane_settings(cluster_spec(Kind.SIMULATED), binaries, 6443)


def test_version_can_be_printed_without_a_cluster(
    layout: Layout, binaries: Path, calls: Path
) -> None:
    settings = prepare(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--version"], check=True, timeout=500)
    assert calls.read_text() == "kwok --version\n"


def test_kwok_starts_only_after_the_earlier_leases_have_been_deleted(
    layout: Layout, binaries: Path, calls: Path
) -> None:
    settings = prepare(layout, binaries)
    write_kwok_start(settings)
    subprocess.run([settings.kwok, "--node-port=1", "a b"], check=True, timeout=500)
    *deletions, started = calls.read_text().splitlines()
    assert len(deletions) == 3  # the first two requests fail
    kubeconfig = layout.pki.parent / "kubeconfig.yaml"
    assert set(deletions) == {f"kubectl --kubeconfig={kubeconfig} delete --raw={LEASES}"}
    assert started == "kwok --node-port=1 a b"
