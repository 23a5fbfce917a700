"""Network of the cluster: a switch in a network namespace, linked to every node and the host.

The host has one interface with routes to the cluster. The interface and its routes disappear with
the namespace.
"""

import json
import subprocess
import time
from ipaddress import ip_network
from pathlib import Path

from devcluster.spec import ClusterSpec, Network, RealNode

SWITCH = "switch"
# This range is below the NodePorts and above the ports of the kubelet and kube-proxy. Otherwise, a
# connection could occupy the kubelet's port and prevent the kubelet from starting.
EPHEMERAL_PORTS = range(11000, 30000)


def _ip(*arguments: str, namespace: int | None = None) -> None:
    inside = [] if namespace is None else ["nsenter", f"--net=/proc/self/fd/{namespace}"]
    files = () if namespace is None else (namespace,)
    subprocess.run([*inside, "ip", *arguments], check=True, pass_fds=files)


def clashing_routes(network: Network, ip: str = "ip") -> list[str]:
    """Return the host's routes that overlap with the cluster's block, as `RANGE dev INTERFACE`.

    `ip` is the path of the ip(8) program.
    """
    listed = subprocess.run(
        [ip, "-json", "route", "show"], check=True, capture_output=True, text=True
    )
    block, clashes = ip_network(network.block), []
    for route in json.loads(listed.stdout or "[]"):
        # OpenVPN may replace the default route with two routes, each for half of the address space.
        # Like a default route, they do not conflict with the more specific routes of the cluster.
        if route["dst"] not in ("default", "0.0.0.0/1") and ip_network(
            route["dst"], strict=False
        ).overlaps(block):
            clashes.append(f"{route['dst']} dev {route.get('dev', '?')}")
    return clashes


def create_switch(spec: ClusterSpec, host_namespace: int) -> None:
    """Create the switch in this namespace and link the host to it."""
    network = spec.network
    _ip("link", "set", "lo", "up")
    _ip("link", "add", SWITCH, "type", "bridge", "forward_delay", "0")
    _ip("link", "set", SWITCH, "up")
    name = network.host_interface
    peer = ("peer", "name", name, "netns", f"/proc/self/fd/{host_namespace}")
    subprocess.run(
        ["ip", "link", "add", "host", "type", "veth", *peer], check=True, pass_fds=(host_namespace,)
    )
    _ip("link", "set", "host", "master", SWITCH, "up")
    address = f"{network.host}/{network.link_prefix}"
    _ip("addr", "add", address, "dev", name, namespace=host_namespace)
    _ip("link", "set", name, "up", namespace=host_namespace)
    gateway = spec.control_plane.address
    _ip("route", "add", network.services, "via", gateway, namespace=host_namespace)
    for node in spec.real_nodes:
        _ip("route", "add", node.pod_range, "via", node.address, namespace=host_namespace)


def link_node(spec: ClusterSpec, node: RealNode, switch_namespace: int) -> None:
    """Connect the node in the current namespace to the switch and to the pods of other nodes."""
    network = spec.network
    _ip("link", "set", "lo", "up")
    _drop_stale_link(node.name, switch_namespace)
    peer = ("peer", "name", node.name, "netns", f"/proc/self/fd/{switch_namespace}")
    subprocess.run(
        ["ip", "link", "add", "eth0", "type", "veth", *peer],
        check=True,
        pass_fds=(switch_namespace,),
    )
    _ip("link", "set", node.name, "master", SWITCH, "up", namespace=switch_namespace)
    _ip("addr", "add", f"{node.address}/{network.link_prefix}", "dev", "eth0")
    _ip("link", "set", "eth0", "up")
    for other in spec.real_nodes:
        if other != node:
            _ip("route", "add", other.pod_range, "via", other.address)
    # This route lets processes on the node reach Services: kube-proxy rewrites their packets.
    _ip("route", "add", network.services, "dev", "lo", "src", node.address)
    ports = f"{EPHEMERAL_PORTS.start} {EPHEMERAL_PORTS.stop - 1}"
    for key, value in {"ip_forward": "1", "ip_local_port_range": ports}.items():
        Path("/proc/sys/net/ipv4", key).write_text(value)


def _drop_stale_link(name: str, switch_namespace: int) -> None:
    # The kernel needs a moment to destroy the namespace of a killed node and its link.
    for _ in range(50):
        result = subprocess.run(
            ["nsenter", f"--net=/proc/self/fd/{switch_namespace}", "ip", "link", "del", name],
            capture_output=True,
            pass_fds=(switch_namespace,),
        )
        if result.returncode != 0:
            return
        time.sleep(0.02)
