"""Dropped packets, a DNS outage and a registry outage."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx

from devcluster.spec import Kind, Network, cluster_spec
from tests.cluster.platform import await_
from tests.faults.arena import NAMESPACE, NODES, Arena
from tests.faults.conftest import TRAINED
from tests.faults.gangs import Gang

SHORT = 8
LONG = TRAINED["peer_timeout"] + 10


@contextlib.contextmanager
def dropped(arena: Arena) -> Iterator[None]:
    """Drop packets between pods of different nodes; nodes still reach each other."""
    first, second = (node.pod_range for node in cluster_spec(Kind.REAL).real_nodes)
    rules = [
        ("--source", one, "--destination", other, "--jump", "DROP")
        for one, other in ((first, second), (second, first))
    ]
    for rule in rules:
        arena.units.inside(NODES[0], "iptables", "--wait", "--insert", "FORWARD", *rule)
    try:
        yield
    finally:
        for rule in rules:
            arena.units.inside(NODES[0], "iptables", "--wait", "--delete", "FORWARD", *rule)


def test_run_survives_a_short_network_outage_between_pods(arena: Arena) -> None:
    def drop(gang: Gang) -> None:
        with dropped(arena):
            time.sleep(SHORT)

    arena.survive(f"no packets between pods for {SHORT} s", drop)


def test_run_survives_a_network_outage_longer_than_the_peer_timeout(arena: Arena) -> None:
    def drop(gang: Gang) -> None:
        with dropped(arena):
            time.sleep(LONG)

    fault = f"no packets between pods for {LONG} s, longer than peer_timeout"
    arena.survive(fault, drop, intervals=1)


def test_gang_restarts_after_a_dns_outage(arena: Arena) -> None:
    def kill(gang: Gang) -> None:
        arena.units.container(arena.container(gang.pods[1]))[0].kill()
        arena.units.keep_down(NODES[0], "coredns", 15)

    arena.survive("DNS down for 15 s while a gang restarts", kill, intervals=1, new_gang=True)


def test_rollout_completes_after_a_registry_outage(arena: Arena) -> None:
    deployment = ["deployment/digits", "-n", NAMESPACE]
    (container,) = arena.get(*deployment)["spec"]["template"]["spec"]["containers"]

    def roll_out(gang: Gang) -> None:
        # The kubelet asks the registry for a tag even if all layers exist.
        image = f"{container['name']}={new_tag(container['image'])}"
        with ThreadPoolExecutor(1) as pool:
            down = pool.submit(arena.units.keep_down, NODES[0], "registry", 15)
            time.sleep(0.5)
            arena.kubectl("set", "image", *deployment, image)
            down.result()
        assert not rolled_out(arena)
        await_(lambda: rolled_out(arena), "the new version is rolled out")

    try:
        arena.survive("registry down for 15 s during a rollout", roll_out)
    finally:
        arena.kubectl("rollout", "undo", *deployment)
        await_(lambda: rolled_out(arena), "the old version is restored")
        arena.settle()


def new_tag(reference: str) -> str:
    """Add a tag to an image in the registry and return the reference."""
    host, _, path = reference.partition("/")
    name, _, digest = path.partition("@")
    name = name.partition(":")[0]
    spec, network = cluster_spec(Kind.REAL), Network()
    base = f"http://{spec.control_plane.address}:{network.registry_port}/v2/{name}/manifests"
    types = ["oci.image.manifest.v1", "docker.distribution.manifest.v2"]
    accepted = {"Accept": ", ".join(f"application/vnd.{each}+json" for each in types)}
    tag = f"fault-{int(time.time())}"
    with httpx.Client(timeout=60, trust_env=False) as client:
        found = client.get(f"{base}/{digest}", headers=accepted).raise_for_status()
        headers = {"Content-Type": found.headers["Content-Type"]}
        client.put(f"{base}/{tag}", content=found.content, headers=headers).raise_for_status()
    return f"{host}/{name}:{tag}"


def rolled_out(arena: Arena) -> bool:
    found = arena.get("deployment/digits", "-n", NAMESPACE)
    status, wanted = found["status"], found["spec"]["replicas"]
    observed = status.get("observedGeneration") == found["metadata"]["generation"]
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return observed and counts == {wanted}
