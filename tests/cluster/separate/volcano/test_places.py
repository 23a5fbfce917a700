"""Placement of pods on nodes."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra import storage
from infra.settings import StackSettings
from infra.settings.storage import ClaimSettings, StorageClassSettings
from infra.settings.volcano import SchedulerSettings
from tests.cluster.gangs import RACK, VOLCANO, placed
from tests.cluster.platform import await_
from tests.cluster.scheduling import NAMESPACE, Scheduling, job_objects, stack


def test_binpack_keeps_nodes_free_for_a_gang_and_spread_does_not(volcano: Scheduling) -> None:
    small = {f"small-{n}": {"queue": "vision", "gpus_per_node": 2} for n in range(3)}
    jobs = stack(small | {"gang": {"queue": "vision", "nodes": 2}}, **VOLCANO)
    for placement, gang in (("spread", {}), ("binpack", {"gang": 2})):
        volcano.configure(SchedulerSettings.model_validate({"placement": placement}))
        volcano.submit(jobs, *small)
        placed(volcano, small_0=1, small_1=1, small_2=1)
        nodes = {node for job in small for node in volcano.nodes(job)}
        assert len(nodes) == (1 if gang else 3)
        volcano.submit(jobs, "gang")
        placed(volcano, small_0=1, small_1=1, small_2=1, **gang)
        volcano.clear()


def test_job_on_whole_nodes_does_not_share_them(volcano: Scheduling) -> None:
    half = {"queue": "vision", "gpus_per_node": 4}
    jobs = stack(
        {
            "before": half,
            "alone": {**half, "nodes": 2, "whole_node": True},
            "after": half,
            "last": half,
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "before")
    placed(volcano, before=1)
    volcano.submit(jobs, "alone")
    placed(volcano, before=1, alone=2)
    volcano.submit(jobs, "after")
    placed(volcano, before=1, alone=2, after=1)
    volcano.submit(jobs, "last")
    placed(volcano, before=1, alone=2, after=1)
    assert volcano.nodes("after") == volcano.nodes("before")
    assert len({*volcano.nodes("alone"), *volcano.nodes("before")}) == 3


def test_all_pods_of_a_gang_are_placed_in_the_same_rack(volcano: Scheduling) -> None:
    """Rack a has capacity for one more pod, and rack b for both."""
    half = {"queue": "vision", "gpus_per_node": 4}
    pair = {**half, "nodes": 2}
    jobs = stack(
        {
            "filler": {**half, "node_selector": {RACK: "a"}},
            "must": {**pair, "pack": {"label": RACK, "required": True}},
            "may": {**pair, "pack": {"label": RACK}},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "filler")
    placed(volcano, filler=1)
    volcano.submit(jobs, "may")
    placed(volcano, filler=1, may=2)
    assert volcano.nodes("filler")[0] in volcano.nodes("may")
    volcano.delete("may")
    volcano.submit(jobs, "must")
    reason = "didn't match pod affinity rules"
    await_(lambda: reason in volcano.devcluster("status"), reason)
    placed(volcano, filler=1)
    volcano.configure(SchedulerSettings(placement="spread"))
    placed(volcano, filler=1, must=2)
    assert volcano.nodes("must") == ["simulated-1", "simulated-2"]


def test_gang_smaller_than_a_node_starts_on_the_only_node_with_capacity(
    volcano: Scheduling,
) -> None:
    jobs = stack(
        {
            "fillers": {"queue": "vision", "nodes": 2},
            "gang": {"queue": "vision", "nodes": 2, "gpus_per_node": 4},
            "strict": {"queue": "vision", "nodes": 2, "gpus_per_node": 4, "strict_spread": True},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "fillers")
    placed(volcano, fillers=2)
    volcano.submit(jobs, "strict")
    placed(volcano, fillers=2)
    volcano.delete("strict")
    volcano.submit(jobs, "gang")
    placed(volcano, fillers=2, gang=2)
    assert len(set(volcano.nodes("gang"))) == 1
    assert set(volcano.nodes("gang")).isdisjoint(volcano.nodes("fillers"))


def hyper_node(name: str, tier: int, kind: str, *members: str) -> dict[str, Any]:
    """Return a switch of the network, with nodes or other switches below it."""
    exact = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": tier, "members": exact},
    }


@pytest.fixture(params=["simulated-0", "simulated-2"])
def with_shared_switch(volcano: Scheduling, request: pytest.FixtureRequest) -> Iterator[str]:
    """A node that shares a switch with simulated-1, unlike the third node."""
    (far,) = {"simulated-0", "simulated-2"} - {request.param}
    volcano.apply(
        hyper_node("left", 1, "Node", "simulated-1", request.param),
        hyper_node("right", 1, "Node", far),
        hyper_node("spine", 2, "HyperNode", "left", "right"),
    )
    yield request.param
    volcano.clear()
    volcano.kubectl("delete", "hypernodes.topology.volcano.sh", "--all")


def network_jobs(gpus: int, **topology: Any) -> StackSettings:
    """Return a gang of two pods, and a pod that has half of simulated-1 or all of it."""
    on_one = {"node_selector": {"kubernetes.io/hostname": "simulated-1"}}
    pair = {"queue": "vision", "nodes": 2, "gpus_per_node": gpus, "network_topology": topology}
    filler = {"queue": "vision", "gpus_per_node": gpus, **on_one}
    return stack({"filler": filler, "gang": pair}, **VOLCANO)


def test_gang_with_a_hard_topology_waits_for_capacity_behind_one_switch(
    volcano: Scheduling, with_shared_switch: str
) -> None:
    jobs = network_jobs(8, mode="hard", highest_tier=1)
    volcano.submit(jobs, "filler")
    placed(volcano, filler=1)
    volcano.submit(jobs, "gang")
    await_(lambda: volcano.phase("gang") == "Pending", "the gang waits")
    placed(volcano, filler=1)
    volcano.delete("filler")
    placed(volcano, gang=2)
    assert volcano.nodes("gang") == sorted(["simulated-1", with_shared_switch])


def test_gang_with_a_soft_topology_prefers_but_does_not_require_one_switch(
    volcano: Scheduling, with_shared_switch: str
) -> None:
    jobs = network_jobs(4, mode="soft")
    volcano.submit(jobs, "filler")
    placed(volcano, filler=1)
    # Binpack places the first pod next to the filler; the second one could go to either node.
    volcano.submit(jobs, "gang")
    placed(volcano, filler=1, gang=2)
    assert volcano.nodes("gang") == sorted(["simulated-1", with_shared_switch])
    volcano.clear()
    jobs = network_jobs(8, mode="soft")
    volcano.submit(jobs, "filler")
    placed(volcano, filler=1)
    volcano.submit(jobs, "gang")
    placed(volcano, filler=1, gang=2)


def test_gang_with_an_unbound_wait_for_first_consumer_claim_does_not_start(
    volcano: Scheduling,
) -> None:
    """The first pod determines the node of the claim, but the second one fits only on another."""
    driver, name = "files.example.com", "late"
    waits = StorageClassSettings(kind="other", provisioner=driver, binding="WaitForFirstConsumer")
    size = ClaimSettings(size="1Gi", storage_class=name, access_modes=["ReadWriteMany"])
    volcano.apply(
        storage.storage_class(name, waits),
        storage.claim(name, NAMESPACE, size),
        *(with_driver(f"simulated-{number}", driver) for number in range(3)),
    )
    jobs = stack({"gang": {"queue": "vision", "nodes": 2}}, **VOLCANO)
    try:
        volcano.apply(*job_objects(jobs, "gang", claim=name))
        reason = "didn't find available persistent volumes to bind"
        await_(lambda: reason in volcano.devcluster("status"), reason)
        placed(volcano)
    finally:
        volcano.clear()
        volcano.kubectl("delete", "pvc", "-n", NAMESPACE, name, "--timeout=600s")
        volcano.kubectl("delete", "storageclass", name)
        volcano.kubectl("delete", "csinodes", "--all")


def with_driver(node: str, driver: str) -> dict[str, Any]:
    """Return the object in which the kubelet lists a storage driver of a node."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": node},
        "spec": {"drivers": [{"name": driver, "nodeID": node}]},
    }
