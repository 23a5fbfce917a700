"""Changes to a snapshot, and the objects created in the simulated cluster."""

from pathlib import Path
from typing import Any

import pytest

from gitops.errors import GitopsError
from gitops.forecast import objects
from gitops.forecast.state import Gang, Node
from gitops.forecast.whatif import Changes, planned_gangs
from policies.evaluation import resource_of
from policies.views import View
from tests.gitops.forecast.states import ALLOCATABLE, GPU, JOB, TAKEN, state

POD: dict[str, Any] = {
    "schedulerName": "volcano",
    "containers": [{"name": "main", "resources": {"limits": {GPU: 4}}}],
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_changes_add_and_remove_gangs(job: Path) -> None:
    changed, _ = Changes(add=[job], remove=["ml/a", "b"]).apply(state())
    assert [gang.name for gang in changed.gangs] == ["large", "small", "urgent"]
    urgent = changed.gangs[-1]
    assert (urgent.minimum, urgent.priority_class, urgent.deadline_seconds) == (2, "urgent", 1800)
    assert urgent.pods[0].requests == {GPU: "8"}


def test_added_nodes_are_copies_of_the_most_common_node_type() -> None:
    original = state()
    original.nodes.insert(0, Node(name="cpu", allocatable={"cpu": "8"}))
    changed, assumptions = Changes(nodes="+2").apply(original)
    added = changed.nodes[-2:]
    assert [node.name for node in added] == ["added-1", "added-2"]
    assert [node.allocatable for node in added] == [ALLOCATABLE] * 2
    assert added[0].labels["kubernetes.io/hostname"] == "added-1"
    assert assumptions == [f"each added node has 8 {GPU}, like the most common node type"]


def test_added_nodes_have_only_common_reservations_and_taints() -> None:
    shared = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    occupied = {"key": "node-health", "effect": "NoSchedule"}
    reserved = [
        {GPU: "8", "cpu": "2", "pods": "9"},
        {"cpu": "0.5", "pods": "3"},
        {"cpu": "1", "pods": "4"},
    ]
    taints = [[occupied, shared], [shared], [shared]]
    nodes = [
        node.model_copy(update={"reserved": amounts, "taints": each})
        for node, amounts, each in zip(state().nodes, reserved, taints, strict=True)
    ]
    other = Node(name="cpu", allocatable={"cpu": "8"})
    original = state().model_copy(update={"nodes": [*nodes, other]})
    added = Changes(nodes="+1").apply(original)[0].nodes[-1]
    assert (added.reserved, added.taints) == ({"cpu": "0.5", "pods": "3"}, [shared])


def test_queue_weight_can_be_changed() -> None:
    changed, _ = Changes(queues=["vision.weight=3"]).apply(state())
    assert changed.queues[0].spec == {"weight": 3}


def test_queue_weight_without_effect_is_rejected() -> None:
    text = "actions: allocate\ntiers:\n- plugins:\n  - name: priority\n  - name: capacity\n"
    original = state().model_copy(update={"scheduler_configuration": text})
    with pytest.raises(
        GitopsError, match=r"vision\.weight=3 has no effect: only the proportion plugin"
    ):
        Changes(queues=["vision.weight=3"]).apply(original)


@pytest.mark.parametrize(
    "text", [None, "tiers: 3", "- a", ": [", "tiers: [1, plugins: [a]]", "tiers: [{plugins: 3}]"]
)
def test_invalid_scheduler_configuration_counts_as_empty(text: str | None) -> None:
    original = state().model_copy(update={"scheduler_configuration": text})
    assert (original.plugins, original.actions, original.evicts) == (set(), [], False)
    assert Changes(queues=["vision.weight=3"]).apply(original)[0].queues[0].spec == {"weight": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes(remove=["none"]), "--remove none is not in the snapshot: use one of ml/a, ml/b"),
        (Changes(nodes="4"), r"--nodes 4 is not a valid number .*\+4"),
        (Changes(nodes="+0"), "--nodes"),
        (Changes(queues=["vision=3"]), r"vision\.weight=3"),
        (Changes(queues=["other.weight=3"]), "the snapshot contains only vision, root"),
        (Changes(add=[Path("/nonexistent")]), "cannot read"),
    ],
)
def test_invalid_changes_are_rejected(changes: Changes, message: str) -> None:
    with pytest.raises(GitopsError, match=message):
        changes.apply(state())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: Job", "kind: CronJob", "contains no gang that"),
        (
            "queue: vision",
            "queue: lab",
            "in queue lab, but the snapshot contains only vision, root",
        ),
        (
            "priorityClassName: urgent",
            "priorityClassName: now",
            "PriorityClass now, but the snapshot contains only batch, urgent",
        ),
        ("replicas: 2", "replicas: 0", "contains no gang that"),
        ("name: urgent, ", "", "line 1: metadata.name is missing"),
        ("name: urgent", "name: small", "ml/small is already in the snapshot; omit this job"),
    ],
)
def test_jobs_that_cannot_be_simulated_are_rejected(
    job: Path, old: str, new: str, message: str
) -> None:
    job.write_text(JOB.replace(old, new).replace("minAvailable: 2", "minAvailable: 1"))
    with pytest.raises(GitopsError, match=message):
        Changes(add=[job]).apply(state())


def test_only_first_attempt_pods_are_bound_to_snapshot_nodes() -> None:
    running = state().gangs[0]
    nodes = [pod["spec"].get("nodeName") for pod in objects.pods("gang", running, 0)]
    assert nodes == ["gpu-0", "gpu-1"]
    assert not any("nodeName" in pod["spec"] for pod in objects.pods("gang", running, 1))


def test_devices_and_huge_pages_are_set_as_limits() -> None:
    gang = state().gangs[1]
    limited = {GPU: "8", "rdma/hca": "1", "hugepages-2Mi": "5368709120"}
    shape = gang.pods[0].model_copy(update={"requests": {"cpu": "1", "memory": "1Gi", **limited}})
    (pod,) = objects.pods("gang", gang.model_copy(update={"pods": [shape]}), 0)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == limited


def test_podgroup_requests_resources_for_its_minimum() -> None:
    spec = objects.group("gang", state().gangs[0])["spec"]
    assert (spec["minMember"], spec["minResources"]) == (2, {GPU: "16", "cpu": "2"})


def test_unlisted_priority_class_gets_the_priority_of_its_gangs() -> None:
    new = state().gangs[-1].model_copy(update={"priority": 0})
    gangs = [new, state().gangs[0], new]
    found = state().model_copy(update={"priority_classes": [], "gangs": gangs})
    created = objects.cluster_objects(found.with_priorities())
    assert [each["value"] for each in created if each["kind"] == "PriorityClass"] == [1000]


def test_simulated_node_has_only_labels_from_the_snapshot() -> None:
    labels = {"type": "gpu"}
    assert (
        objects.node(Node(name="n", labels=labels, allocatable={}))["metadata"]["labels"] == labels
    )


def test_simulated_node_offers_only_unreserved_resources() -> None:
    made = Node(name="n", allocatable={GPU: "8", "cpu": "64"}, reserved={GPU: "10", "cpu": "1.5"})
    assert objects.node(made)["status"]["allocatable"] == {GPU: "0", "cpu": "62.5"}


def manifest(version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "job", "namespace": "ml", **metadata},
        "spec": spec,
    }


def gangs(*manifests: dict[str, Any]) -> list[Gang]:
    return list(planned_gangs([View(resource_of(each)) for each in manifests], TAKEN).gangs)


def omitted(*manifests: dict[str, Any]) -> list[str]:
    return list(planned_gangs([View(resource_of(each)) for each in manifests], TAKEN).omitted)


def volcano(**spec: Any) -> dict[str, Any]:
    tasks = [{"name": "worker", "replicas": 3, "template": {"spec": POD}}]
    return manifest("batch.volcano.sh/v1alpha1", "Job", {"tasks": tasks, "queue": "vision", **spec})


def test_volcano_job_defines_its_whole_gang() -> None:
    (gang,) = gangs(volcano(minAvailable=2, priorityClassName="urgent"))
    assert (gang.key, gang.queue, gang.priority_class) == (("ml", "job"), "vision", "urgent")
    assert (gang.minimum, gang.size, gang.state) == (2, 3, "pending")
    assert gang.pods[0].requests == {GPU: "4"}


def test_volcano_job_needs_all_its_pods_by_default() -> None:
    (gang,) = gangs(volcano())
    assert gang.minimum == 3


def test_job_takes_minimum_and_queue_from_its_podgroup() -> None:
    template = {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "group"}}, "spec": POD}
    spec = {"parallelism": 4, "completions": 4, "activeDeadlineSeconds": 600, "template": template}
    group = manifest(
        "scheduling.volcano.sh/v1beta1", "PodGroup", {"minMember": 2, "queue": "lab"}, name="group"
    )
    (gang,) = gangs(manifest("batch/v1", "Job", spec), group)
    assert (gang.minimum, gang.size, gang.queue, gang.deadline_seconds) == (2, 4, "lab", 600)


def test_pods_of_a_job_without_a_gang_start_individually() -> None:
    spec = {"parallelism": 4, "completions": 4, "template": {"spec": POD}}
    (gang,) = gangs(manifest("batch/v1", "Job", spec))
    assert (gang.minimum, gang.size, gang.queue) == (1, 4, "default")


def test_pods_without_a_maximum_have_the_requested_number() -> None:
    workers = {"replicas": 2, "minReplicas": 1, "groupName": "gpu", "template": {"spec": POD}}
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {"template": {"spec": POD}},
        "workerGroupSpecs": [workers],
    }
    (gang,) = gangs(manifest("ray.io/v1", "RayJob", {"rayClusterSpec": spec}))
    assert gang.size == 3


def test_task_with_a_negative_number_of_pods_has_no_gang() -> None:
    task = {"name": "worker", "replicas": -1, "template": {"spec": POD}}
    assert gangs(volcano(tasks=[task])) == []


def test_a_suspended_job_is_a_suspended_gang() -> None:
    spec = {"parallelism": 1, "suspend": True, "template": {"spec": POD}}
    (gang,) = gangs(manifest("batch/v1", "Job", spec))
    assert gang.state == "suspended"


@pytest.mark.parametrize(
    "other",
    [
        manifest("apps/v1", "Deployment", {"replicas": 1, "template": {"spec": POD}}, name="web")
        | {"spec": {"replicas": 1, "template": {"spec": POD | {"schedulerName": "default"}}}},
        manifest(
            "batch/v1",
            "CronJob",
            {"jobTemplate": {"spec": {"template": {"spec": POD}}}},
            name="web",
        ),
    ],
    ids=["another scheduler", "CronJob"],
)
def test_gpu_pods_outside_gangs_are_reported_as_omitted(other: dict[str, Any]) -> None:
    assert gangs(other) == []
    assert omitted(other) == [f'{other["kind"]} "web" in namespace "ml"']


def test_pods_without_gpus_are_not_reported_as_omitted() -> None:
    plain = {"containers": [{"name": "main"}]}
    web = manifest("apps/v1", "Deployment", {"template": {"spec": plain}})
    assert omitted(web) == []
