"""Inventory of objects in a cluster and of processes, mounts and links on its nodes."""

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.cluster.platform import Platform
from tests.soak.memory import cluster_processes

KINDS: Final = (
    "pods,services,endpointslices,persistentvolumeclaims,persistentvolumes,configmaps,secrets,"
    "jobs.batch,jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh,networkpolicies,deployments,"
    "replicasets,serviceaccounts,commands.bus.volcano.sh"
)
SETTLING: Final = 90.0
"""Maximum seconds until the last leftovers are gone."""

Inventory = Mapping[str, frozenset[str]]
_CHANGING: Final = re.compile(r"[0-9a-f]{12,}|\d+")


def take(platform: Platform) -> dict[str, frozenset[str]]:
    """Return names by kind: objects, and the nodes' processes, mounts and network links."""
    found: dict[str, set[str]] = {}
    for item in platform.kubectl("get", KINDS, "--all-namespaces")["items"]:
        metadata = item["metadata"]
        name = f"{metadata.get('namespace', '')}/{metadata['name']}"
        found.setdefault(item["kind"], set()).add(name)
    found["process"] = set(numbered(_processes(platform.state)))
    for node, pid in _nodes(platform.state):
        mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        found[f"mount of {node}"] = set(numbered(line.split()[4] for line in mounts))
        found[f"link of {node}"] = set(numbered(_links(pid)))
    return {kind: frozenset(names) for kind, names in found.items()}


def settled(platform: Platform, first: Inventory) -> dict[str, frozenset[str]]:
    """Return the inventory once nothing was added since `first`, or after the timeout."""
    deadline = time.monotonic() + SETTLING
    while added(first, now := take(platform)) and time.monotonic() < deadline:
        time.sleep(3)
    return now


def added(first: Inventory, last: Inventory) -> dict[str, list[str]]:
    """Return the objects that exist now and did not at first, by kind."""
    more = {kind: sorted(names - first.get(kind, frozenset())) for kind, names in last.items()}
    return {kind: names for kind, names in more.items() if names}


def numbered(names: Iterator[str] | list[str]) -> Iterator[str]:
    """Return names without random digits and hashes, each with a counter.

    The shims of two pods are `shim 1` and `shim 2`.
    """
    count: dict[str, int] = {}
    for name in names:
        plain = _CHANGING.sub("#", name)
        count[plain] = count.get(plain, 0) + 1
        yield f"{plain} {count[plain]}"


def _processes(state: Path) -> Iterator[str]:
    for pid in cluster_processes(state):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has exited
        if command[0]:
            yield Path(command[0].decode(errors="replace")).name


def _nodes(state: Path) -> Iterator[tuple[str, int]]:
    """Yield each node's name and kubelet, which is in the node's namespaces."""
    for pid in cluster_processes(state):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(command[0]).name == "kubelet":
            named = [text for text in command if text.startswith("--hostname-override=")]
            yield (named[0].partition("=")[2] if named else str(pid)), pid


def _links(pid: int) -> list[str]:
    command = ["nsenter", "--target", str(pid), "--net", "ip", "-json", "link"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    links: list[dict[str, Any]] = json.loads(done.stdout)
    # Veth pairs have random names, but their prefix shows their kind.
    return [re.sub(r"^(veth).*", r"\1", link["ifname"]) for link in links]
