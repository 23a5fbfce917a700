"""The host's routes, printed by a fake `ip`, and the ports of nodes."""

import json

from devcluster.nodes.links import EPHEMERAL_PORTS, clashing_routes
from devcluster.spec import Network
from tests.devcluster.conftest import Install

HARMLESS = [
    {"dst": "default", "gateway": "192.168.1.1", "dev": "eth0"},
    {"dst": "192.168.1.0/24", "dev": "eth0"},
    {"dst": "10.251.0.0/16", "dev": "tun0"},
    {"dst": "10.249.255.255", "dev": "tun0"},
    {"dst": "0.0.0.0/1", "dev": "tun0"},  # half of a VPN's default route
]


def show(install: Install, routes: list[dict[str, str]]) -> None:
    install("ip", f"[ \"$*\" = '-json route show' ] && echo '{json.dumps(routes)}'")


def test_routes_outside_the_cluster_network_do_not_clash(install: Install) -> None:
    show(install, HARMLESS)
    assert clashing_routes(Network()) == []


def test_route_to_a_part_of_the_cluster_network_clashes(install: Install) -> None:
    show(install, [*HARMLESS, {"dst": "10.250.76.0/24", "dev": "gpu-platform"}])
    assert clashing_routes(Network()) == ["10.250.76.0/24 dev gpu-platform"]


def test_route_to_a_single_address_in_the_cluster_network_clashes(install: Install) -> None:
    show(install, [{"dst": "10.250.0.7", "dev": "wg0"}])
    assert clashing_routes(Network()) == ["10.250.0.7 dev wg0"]


def test_route_that_contains_the_cluster_network_clashes(install: Install) -> None:
    show(install, [{"type": "blackhole", "dst": "10.0.0.0/8"}])
    assert clashing_routes(Network()) == ["10.0.0.0/8 dev ?"]


def test_host_without_routes_has_no_clash(install: Install) -> None:
    install("ip", "true")
    assert clashing_routes(Network()) == []


def test_ephemeral_ports_do_not_include_ports_of_kubernetes() -> None:
    kubelet, kube_proxy, controllers, scheduler = (10248, 10250), (10249, 10256), 10257, 10259
    listening = {*kubelet, *kube_proxy, controllers, scheduler, *range(30000, 32768)}
    assert not listening & set(EPHEMERAL_PORTS)
