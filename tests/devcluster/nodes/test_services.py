"""The configuration files of the daemons on a real node."""

import json
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from devcluster.nodes import services
from devcluster.nodes.services import NodeServices
from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from simulation.supervisor import Service

SPEC = cluster_spec(Kind.REAL)
FIRST, SECOND = SPEC.real_nodes


@pytest.fixture
def machine(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A node's /etc and /var in a directory."""
    monkeypatch.setattr(services, "REGISTRY_HOSTS", tmp_path / "certs.d")
    monkeypatch.setattr(services, "CNI_CHAIN", tmp_path / "10-pods.conflist")
    monkeypatch.setattr(services, "HARDWARE_FILE", tmp_path / "plugins" / "gpus.json")
    return layout


@pytest.fixture
def first(machine: Layout) -> NodeServices:
    return NodeServices(SPEC, FIRST, machine, Path("/tools"))


@pytest.fixture
def second(machine: Layout) -> NodeServices:
    return NodeServices(SPEC, SECOND, machine, Path("/tools"))


def option(service: Service, name: str) -> str:
    (value,) = [part.split("=", 1)[1] for part in service.command if part.startswith(f"{name}=")]
    return value


def read(service: Service) -> dict[str, Any]:
    return json.loads(Path(option(service, "--config")).read_text())


def test_containerd_pulls_loopback_images_from_the_first_node(second: NodeServices) -> None:
    service = second.containerd()
    config = tomllib.loads(Path(service.command[-1]).read_text())
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    folder = Path(cri["registry"]["config_path"]) / "127.0.0.1:5000"
    hosts = tomllib.loads((folder / "hosts.toml").read_text())
    assert hosts["server"] == "http://10.250.76.2:5000"
    assert hosts["host"]["http://10.250.76.2:5000"]["capabilities"] == ["pull", "resolve"]
    assert cri["sandbox_image"].startswith("127.0.0.1:5000/")


def test_containerd_knows_the_runtime_class_of_gpus(first: NodeServices) -> None:
    config = tomllib.loads(Path(first.containerd().command[-1]).read_text())
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert set(cri["containerd"]["runtimes"]) == {"runc", "nvidia"}
    assert cri["restrict_oom_score_adj"] is True


def test_pods_get_addresses_from_the_pod_range_of_their_node(second: NodeServices) -> None:
    second.containerd()
    chain = json.loads(services.CNI_CHAIN.read_text())
    bridge = chain["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.250.1.0/24"}]]
    assert bridge["ipMasq"] is False


def test_the_kubelet_sets_labels_of_gpu_feature_discovery(first: NodeServices) -> None:
    labels = dict(part.split("=") for part in option(first.kubelet(), "--node-labels").split(","))
    assert labels == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": SPEC.gpu_product,
        "nvidia.com/gpu.count": "4",
    }


def test_only_the_first_node_accepts_pods_without_a_gpu(
    first: NodeServices, second: NodeServices
) -> None:
    taint = "--register-with-taints=nvidia.com/gpu=present:NoSchedule"
    assert taint not in first.kubelet().command
    assert taint in second.kubelet().command


def test_device_plugin_and_exporter_find_the_nodes_hardware(
    first: NodeServices, machine: Layout
) -> None:
    service = first.gpus()
    hardware = json.loads(services.HARDWARE_FILE.read_text())
    assert hardware == {
        "product": SPEC.gpu_product,
        "memory_mib": 81920,
        "uuids": [f"GPU-simulated-gpu-node-0-{index}" for index in range(4)],
    }
    assert service.command[-3:] == [
        str(services.HARDWARE_FILE),
        "/var/lib/kubelet/pod-resources/simulated-gpus.sock",
        str(machine.gpu_faults(FIRST.name)),
    ]


def test_gpu_uuids_are_unique_across_nodes() -> None:
    assert set(FIRST.gpu_uuids).isdisjoint(SECOND.gpu_uuids)


def test_kubelet_requires_a_client_certificate(first: NodeServices, machine: Layout) -> None:
    config = read(first.kubelet())
    assert config["authentication"]["anonymous"]["enabled"] is False
    assert config["authentication"]["x509"]["clientCAFile"] == str(machine.pki / "ca.crt")
    assert config["authorization"]["mode"] == "Webhook"
    assert config["readOnlyPort"] == 0


def test_kubelet_supports_both_cgroup_versions_and_swap(first: NodeServices) -> None:
    config = read(first.kubelet())
    assert config["failCgroupV1"] is False
    assert config["failSwapOn"] is False
    assert config["cgroupDriver"] == "cgroupfs"


def test_pods_use_the_cluster_dns(first: NodeServices) -> None:
    config = read(first.kubelet())
    assert config["clusterDNS"] == [SPEC.network.dns]
    assert Path(config["resolvConf"]).read_text() == ""


def test_kube_proxy_does_not_change_the_hosts_connection_tracking(second: NodeServices) -> None:
    config = read(second.kube_proxy())
    assert config["conntrack"] == {
        "maxPerCore": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }
    assert config["clusterCIDR"] == SECOND.pod_range


def test_the_dns_service_points_to_coredns(first: NodeServices) -> None:
    corefile = Path(first.coredns().command[-1]).read_text()
    items: Any = first.dns_objects()["items"]
    service, endpoints = items
    assert service["spec"]["clusterIP"] == SPEC.network.dns
    assert "selector" not in service["spec"]
    (endpoint,) = endpoints["endpoints"]
    assert endpoint["addresses"] == [FIRST.address]
    assert f"bind {FIRST.address}\n" in corefile
    # In quotes, because the path may contain spaces.
    assert f'kubeconfig "{first.kubeconfig}"\n' in corefile
    label = endpoints["metadata"]["labels"]["kubernetes.io/service-name"]
    assert label == service["metadata"]["name"]
    assert {port["name"] for port in endpoints["ports"]} == {
        port["name"] for port in service["spec"]["ports"]
    }


def test_the_registry_keeps_its_images_in_the_cache(first: NodeServices, machine: Layout) -> None:
    command = first.registry().command
    config = json.loads(Path(command[-1]).read_text())
    assert config["storage"]["filesystem"]["rootdirectory"] == str(machine.registry)
    assert config["http"]["addr"].endswith(":5000")


def test_charts_are_served_only_on_the_nodes_address(first: NodeServices) -> None:
    command = list(first.chart_repository(Path("/charts")).command)
    assert command[-4:] == ["--bind", FIRST.address, "--directory", "/charts"]
    assert "8879" in command


def test_docker_socket_is_in_the_clusters_state_directory(
    first: NodeServices, machine: Layout
) -> None:
    assert option(first.docker(), "--host") == f"unix://{machine.docker_socket}"


def test_addresses_of_the_cluster_are_consistent() -> None:
    network = SPEC.network
    block, of_services = ip_network(network.block), ip_network(network.services)
    link = ip_network(f"{network.host}/{network.link_prefix}", strict=False)
    ranges = [ip_network(node.pod_range) for node in SPEC.real_nodes]
    assert all(part.subnet_of(block) for part in (of_services, link, *ranges))
    parts = [of_services, link, *ranges]
    assert not any(a.overlaps(b) for a in parts for b in parts if a is not b)
    assert all(ip_address(node.address) in link for node in SPEC.real_nodes)
    assert ip_address(network.dns) in of_services
    assert next(of_services.hosts()) == ip_address(network.api_service)
