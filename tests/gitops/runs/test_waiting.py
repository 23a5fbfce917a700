"""Reasons why jobs wait, based on objects from Volcano 1.10."""

from typing import Any

import pytest

from gitops.runs.snapshot import Snapshot
from gitops.runs.waiting import Waiting, positions, waiting
from tests.gitops.runs.objects import priority_class

GPU = "nvidia.com/gpu"
MISSING = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"


def node(gpus: int = 8) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {GPU: f"{gpus}"}}}


def pod(
    job: str | None, *, on: str | None = None, message: str = "", gpus: int = 8
) -> dict[str, Any]:
    annotations = {} if job is None else {"scheduling.k8s.io/group-name": job}
    limits = {"resources": {"limits": {GPU: str(gpus), "cpu": "1"}}}
    refused = {"type": "PodScheduled", "status": "False", "message": message}
    return {
        "kind": "Pod",
        "metadata": {"namespace": "ml", "name": f"{job}-0", "annotations": annotations},
        "spec": {"nodeName": on, "containers": [limits]},
        "status": {
            "phase": "Running" if on else "Pending",
            "conditions": [refused] if message else [],
        },
    }


def group(
    job: str, queue: str = "vision", min_member: int = 2, phase: str = "Inqueue"
) -> dict[str, Any]:
    return {
        "kind": "PodGroup",
        "metadata": {
            "namespace": "ml",
            "name": job,
            "uid": f"uid-{job}",
            "ownerReferences": [
                {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": job}
            ],
        },
        "spec": {
            "queue": queue,
            "minMember": min_member,
            "minResources": {GPU: str(8 * min_member), f"requests.{GPU}": str(8 * min_member)},
        },
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "Scheduled", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {
                    "type": "Unschedulable",
                    "lastTransitionTime": "2026-01-01T00:00:01Z",
                    "message": MISSING,
                },
            ],
        },
    }


def queue(name: str = "vision", state: str = "Open", **spec: Any) -> dict[str, Any]:
    return {"kind": "Queue", "metadata": {"name": name}, "spec": spec, "status": {"state": state}}


def job(name: str, phase: str = "Pending") -> dict[str, Any]:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"namespace": "ml", "name": name},
        "status": {"state": {"phase": phase}},
    }


def job_of_kind(kind: str, status: dict[str, Any]) -> dict[str, Any]:
    """Return a job named `done` of a kind that is not part of Volcano."""
    groups = {"Job": "batch", "RayJob": "ray.io", "TrainJob": "trainer.kubeflow.org"}
    groups["JobSet"] = "jobset.x-k8s.io"
    return {
        "apiVersion": f"{groups.get(kind, 'kubeflow.org')}/v1",
        "kind": kind,
        "metadata": {"namespace": "ml", "name": "done"},
        "status": status,
    }


def single_waiting(*objects: dict[str, Any]) -> Waiting:
    (found,) = waiting(Snapshot.of(objects))
    return found


def test_a_job_waits_for_gpus_that_are_in_use() -> None:
    busy = (group("busy", min_member=1), pod("busy", on="n"))
    found = single_waiting(node(), node(), queue(), *busy, group("late"), pod("late"), pod("late"))
    assert found.name == "ml/late in queue vision"
    assert found.state == "0 of 2 pods are scheduled (minimum to start: 2)"
    assert found.reasons == (f"requests 16 {GPU}, but only 8 of 16 are free", f"Volcano: {MISSING}")


def test_job_larger_than_the_cluster_is_reported() -> None:
    found = single_waiting(node(), queue(), job("big"), group("big"))
    assert f"requests 16 {GPU}, but the cluster has only 8" in found.reasons


def test_amounts_have_suffixes() -> None:
    gang, large = group("late", min_member=1), node()
    gang["spec"]["minResources"]["rdma/hca"] = "1"
    large["status"]["allocatable"]["rdma/hca"] = "1k"
    busy = pod("busy", on="n")
    busy["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = "1k"
    limited = queue(capability={"rdma/hca": "1k"})
    found = single_waiting(large, limited, group("busy", min_member=1), busy, job("late"), gang)
    assert "queue vision is full: it uses 1000 of 1000 rdma/hca" in found.reasons
    assert "requests 1 rdma/hca, but only 0 of 1000 are free" in found.reasons


def test_podgroups_without_pods_get_the_priority_of_their_class() -> None:
    groups = [group(name, phase="Pending") for name in ("a", "spot", "plain", "urgent")]
    groups[0]["spec"]["priorityClassName"] = "unlisted"
    for each in (groups[1], groups[3]):
        each["spec"]["priorityClassName"] = each["metadata"]["name"]
    classes = [priority_class("spot", -10), priority_class("urgent", 1000)]
    classes.append(priority_class("normal", 10) | {"globalDefault": True})
    with_priority = pod("a")
    with_priority["spec"]["priority"] = -5
    jobs = [job(each["metadata"]["name"]) for each in groups]
    found = positions(Snapshot.of([*groups, *classes, *jobs, with_priority]))
    assert found == {("ml", "urgent"): 1, ("ml", "plain"): 2, ("ml", "a"): 3, ("ml", "spot"): 4}


def test_full_queue_is_reported() -> None:
    limited = queue(capability={GPU: "16"})
    busy = (group("busy", min_member=1), pod("busy", on="n"))
    found = single_waiting(node(64), limited, *busy, group("late"), pod("late"))
    assert f"queue vision is full: it uses 8 of 16 {GPU}" in found.reasons


def test_admitted_jobs_that_have_not_started_reserve_their_resources() -> None:
    limited = queue(capability={GPU: "16"})
    stuck = (group("stuck", min_member=1), pod("stuck", message="0/1 nodes are unavailable"))
    late = (job("late"), group("late", phase="Pending"))
    first, second = waiting(Snapshot.of([node(64), limited, *stuck, *late]))
    reason = f"8 of 16 {GPU} of queue vision are reserved for jobs that have not started: ml/stuck"
    assert any(each.startswith(reason) for each in first.reasons)
    assert second.reasons == ("Volcano: 0/1 nodes are unavailable",)


def test_job_larger_than_its_queue_is_reported() -> None:
    found = single_waiting(node(64), queue(capability={GPU: "8"}), job("big"), group("big"))
    assert f"requests 16 {GPU}, but queue vision is limited to 8" in found.reasons


def test_full_parent_queue_is_reported() -> None:
    queues = [
        queue("science", capability={GPU: "16"}, parent="root"),
        queue("vision", parent="science"),
        queue("language", parent="science"),
    ]
    busy = (group("busy", "language", min_member=1), pod("busy", on="n"))
    found = single_waiting(node(64), *queues, *busy, group("late"), pod("late"))
    assert f"queue science is full: it uses 8 of 16 {GPU}" in found.reasons
    big = single_waiting(node(64), *queues, *busy, group("big", min_member=3), pod("big"))
    assert f"requests 24 {GPU}, but queue science is limited to 16" in big.reasons


def test_guarantees_of_other_queues_limit_a_queue() -> None:
    reserving = queue("language", parent="root", guarantee={"resource": {GPU: "8"}})
    queues = [queue("root"), reserving, queue(parent="root", capability={GPU: "24"})]
    big = single_waiting(node(24), *queues, job("big"), group("big", min_member=3))
    limited = "queue vision is limited to 16, because other queues are guaranteed 8"
    assert f"requests 24 {GPU}, but {limited}" in big.reasons
    assert not any("used its share" in reason for reason in big.reasons)
    busy = (group("busy", min_member=1), pod("busy", on="n"))
    found = single_waiting(node(24), *queues, *busy, group("late"), pod("late"))
    full = f"queue vision is full: it uses 8 of 16 {GPU}, because other queues are guaranteed 8"
    assert full in found.reasons


def test_guarantees_limit_the_children_of_a_queue() -> None:
    queues = [
        queue("science", capability={GPU: "16"}, parent="root"),
        queue("vision", parent="science"),
        queue("language", parent="science", guarantee={"resource": {GPU: "8"}}),
        queue("other", parent="root", guarantee={"resource": {GPU: "8"}}),
    ]
    found = single_waiting(node(64), queue("root"), *queues, job("big"), group("big"))
    limited = "queue vision is limited to 8, because other queues are guaranteed 8"
    assert f"requests 16 {GPU}, but {limited}" in found.reasons


def test_queue_that_has_used_its_share_is_reported() -> None:
    others = (queue("language"), group("other", "language", min_member=1), pod("other", on="n"))
    found = single_waiting(node(64), queue(), *others, group("late"), pod("late"), pod("late"))
    assert any("queue vision has used its share" in reason for reason in found.reasons)
    assert any(reason.endswith("language") for reason in found.reasons)


def test_share_is_no_reason_if_all_jobs_of_other_queues_are_completed() -> None:
    others = (queue("language"), group("other", "language", phase="Completed"))
    found = single_waiting(node(64), queue(), *others, group("late"), pod("late"), pod("late"))
    assert found.reasons == (f"Volcano: {MISSING}",)


def test_unbound_claims_are_reported_with_their_latest_event() -> None:
    def claim(name: str, phase: str) -> dict[str, Any]:
        metadata = {"namespace": "ml", "name": name}
        return {"kind": "PersistentVolumeClaim", "metadata": metadata, "status": {"phase": phase}}

    def event(time: str, message: str, kind: str = "PersistentVolumeClaim") -> dict[str, Any]:
        involved = {"kind": kind, "namespace": "ml", "name": "data"}
        times = {"lastTimestamp": f"2026-01-01T00:00:0{time}Z", "involvedObject": involved}
        return {"kind": "Event", "reason": "ProvisioningFailed", "message": message, **times}

    waits = pod("late")
    names = ("data", "shared", "quiet", "absent")
    waits["spec"]["volumes"] = [{"persistentVolumeClaim": {"claimName": name}} for name in names]
    waits["spec"]["volumes"].append({"emptyDir": {}})
    claims = (claim("data", "Pending"), claim("shared", "Bound"), claim("quiet", "Pending"))
    events = (event("2", 'class "nsf" not found'), event("1", "early"), event("3", "x", "Pod"))
    others = (queue("language"), group("other", "language", min_member=1), pod("other", on="n"))
    found = single_waiting(node(64), queue(), *others, group("late"), waits, *claims, *events)
    assert found.reasons == (
        'claim data is not bound: class "nsf" not found',
        "claim quiet is not bound: it has no events",
        f"Volcano: {MISSING}",
    )


def test_pods_not_created_by_volcano_are_reported() -> None:
    late = group("late")
    found, name = single_waiting(node(64), queue(), job("late"), late), late["metadata"]["name"]
    assert found.reasons[0] == (
        "Volcano admitted the job, but has not created its pods: `kubectl describe "
        "jobs.batch.volcano.sh late --namespace ml` shows failures; if there are none, `kubectl "
        f"patch podgroups.scheduling.volcano.sh {name} --namespace=ml --type=merge "
        """'--patch={"status": {"phase": "Pending"}}'` admits the job again"""
    )
    assert not any("has used its share" in reason for reason in found.reasons)


def rejected(message: str, second: int = 0) -> dict[str, Any]:
    """Return an event about a pod of the job `late` that the API server rejected."""
    return {
        "kind": "Event",
        "involvedObject": {"kind": "Job", "namespace": "ml", "name": "late"},
        "type": "Warning",
        "reason": "FailedCreate",
        "lastTimestamp": f"2026-01-01T00:00:0{second}Z",
        "message": message,
    }


QUOTA = 'exceeded quota: "workloads", limited: requests.nvidia.com/gpu=32'


@pytest.mark.parametrize("pods", [0, 1])
@pytest.mark.parametrize(
    "message",
    [
        f'Error creating: pods "late-1-jk87f" is forbidden: {QUOTA}',
        "Error creating pods: [failed to create pod late-worker-0, err: "
        'Status:"Failure", Message:"pods \\"late-worker-0\\" is forbidden: '
        + QUOTA.replace('"', '\\"')
        + '", Reason:"Forbidden", Code:403}} failed to create pod late-master-0, err: …',
    ],
    ids=["Job", "Volcano Job"],
)
def test_reason_for_pods_rejected_by_the_api_server_comes_from_events(
    message: str, pods: int
) -> None:
    cluster = node(64), queue(), job("late"), rejected("earlier"), rejected(message, 1)
    found = single_waiting(*cluster, group("late"), *[pod("late")] * pods)
    assert found.reasons[0] == f"the API server rejects pods of the job: {QUOTA}"
    assert not any("share" in text or "admits" in text for text in found.reasons)
    found = single_waiting(*cluster, group("late"), *[pod("late")] * 2)
    assert not any("rejects" in text for text in found.reasons)


def test_only_a_volcano_job_is_reported_as_admitted_without_pods() -> None:
    gang = group("done")
    del gang["metadata"]["ownerReferences"]
    found = single_waiting(node(64), queue(), job_of_kind("Job", {}), gang)
    assert not any("Volcano admitted" in text for text in found.reasons)


def failed(job: str) -> dict[str, Any]:
    """Return a job's pod that has failed on a node."""
    ended = pod(job, on="n")
    return {**ended, "status": {"phase": "Failed"}}


def test_failure_missed_by_volcano_is_reported() -> None:
    found = single_waiting(
        node(64), queue(), job("late"), group("late"), failed("late"), pod("late")
    )
    assert found.reasons[0] == (
        "Volcano has not restarted the job after the failure of late-0: if this does not change "
        "within a minute, `kubectl delete pods late-0 --namespace=ml` restarts it"
    )


def test_failed_pod_that_is_deleted_or_replaced_is_not_reported() -> None:
    deleted = failed("late")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:02Z"
    other = group("late")
    other["metadata"]["ownerReferences"][0]["apiVersion"] = "batch/v1"
    for objects in ((group("late"), deleted), (other, failed("late"))):
        found = single_waiting(node(64), queue(), job("late"), *objects, pod("late"))
        assert not any("has not restarted" in reason for reason in found.reasons)


def test_a_running_elastic_job_is_not_restarted_for_a_failed_pod() -> None:
    running = pod("elastic", on="n")
    pods = (running, failed("elastic"), pod("elastic"))
    found = single_waiting(node(64), queue(), job("elastic"), group("elastic", min_member=1), *pods)
    assert found.state == "1 of 2 pods are scheduled (running, can scale up)"
    assert not any("has not restarted" in reason for reason in found.reasons)


def test_pod_message_replaces_the_generic_message_of_its_podgroup() -> None:
    message = "0/1 nodes are unavailable: 1 node(s) had untolerated taint."
    found = single_waiting(
        node(64), queue(), group("late"), pod("late", message=message), pod("late", message=message)
    )
    assert found.reasons == (f"Volcano: {message}",)


def test_reason_comes_from_the_podgroup_if_pods_have_planned_nodes() -> None:
    """The pods' messages only name the planned nodes."""
    reason = (
        "late-1: 0/3 nodes are unavailable: 2 node(s) didn't find available persistent volumes."
    )
    late = group("late")
    late["status"]["conditions"][-1]["message"] = f"{MISSING}. Origin reason is {reason}"
    planned = (
        f"Pod ml/late-{number} can possibly be assigned to n, once resource is released and "
        "minAvailable is satisfied"
        for number in range(2)
    )
    found = single_waiting(
        node(64), queue(), late, *(pod("late", message=message) for message in planned)
    )
    assert found.reasons == (f"Volcano: {reason}",)


def test_reason_for_an_unadmitted_job_comes_from_events() -> None:
    event = {
        "kind": "Event",
        "involvedObject": {"uid": "uid-late"},
        "type": "Normal",
        "reason": "Unschedulable",
        "message": "resource in cluster is overused",
    }
    found = single_waiting(node(), queue(), event, job("late"), group("late", phase="Pending"))
    assert found.reasons[-1] == "Volcano: resource in cluster is overused"


def test_closed_and_missing_queues_are_reported() -> None:
    closed = single_waiting(node(64), queue(state="Closed"), job("late"), group("late"))
    assert closed.reasons[0].startswith("queue vision is Closed: `vcctl queue operate")
    missing = single_waiting(node(64), queue("default"), job("late"), group("late"))
    assert missing.reasons[0] == "queue vision does not exist"


def test_job_without_a_podgroup_is_reported_if_its_queue_does_not_exist() -> None:
    """Volcano does not create the PodGroup again if a job restarts in a deleted queue."""
    for phase in ("Restarting", "Pending"):
        late = job("late", phase) | {"spec": {"queue": "vision"}}
        assert single_waiting(node(64), queue("default"), late) == Waiting(
            "ml", "late", "vision", "no PodGroup was created", ("queue vision does not exist",)
        )
    # Volcano creates the PodGroup within a second if the queue exists.
    assert waiting(Snapshot.of([node(64), queue(), late])) == []
    # The user is not allowed to list queues.
    assert waiting(Snapshot.of([node(64), late])) == []


def test_unlistable_nodes_and_queues_are_not_reported_as_reasons() -> None:
    """By default, team members may list neither nodes nor queues."""
    late = (group("late"), pod("late"), pod("late"))
    for visible in ((), (node(64),), (queue(),)):
        assert single_waiting(*visible, *late).reasons == (f"Volcano: {MISSING}",)


def test_usage_is_a_bound_if_only_one_namespace_is_visible() -> None:
    def reasons(*objects: dict[str, Any]) -> tuple[str, ...]:
        late = (group("late"), pod("late"), pod("late"))
        (found,) = waiting(Snapshot.of([*objects, *late], "ml"))
        return found.reasons[:-1]

    assert reasons(node(64), queue()) == ()
    busy = (group("busy", min_member=1), pod("busy", on="n"))
    assert reasons(node(), node(), queue(), *busy) == (
        f"requests 16 {GPU}, but at most 8 of 16 are free",
    )
    assert reasons(node(64), queue(capability={GPU: "16"}), *busy) == (
        f"queue vision is full: it uses at least 8 of 16 {GPU}",
    )


def test_elastic_job_below_its_maximum_size_is_reported() -> None:
    pods = (pod("elastic", on="n"), pod("elastic", on="n"), pod("elastic"))
    found = single_waiting(node(16), queue(), group("elastic"), *pods)
    assert found.state == "2 of 3 pods are scheduled (running, can scale up)"
    assert f"requests 8 {GPU}, but only 0 of 16 are free" in found.reasons


def test_suspended_job_is_reported_with_its_resume_command() -> None:
    found = single_waiting(job("late", "Aborted"), group("late"))
    assert (found.name, found.state) == ("ml/late", "suspended")
    assert "python -m gpu_platform resume late --namespace ml" in found.reasons[0]


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated"])
def test_finished_job_is_not_waiting(phase: str) -> None:
    assert waiting(Snapshot.of([group("done"), job("done", phase)])) == []


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Job", {"conditions": [{"type": "Complete", "status": "True"}]}),
        ("PyTorchJob", {"conditions": [{"type": "Failed", "status": "True"}]}),
        ("TrainJob", {"conditions": [{"type": "Complete", "status": "True"}]}),
        ("RayJob", {"jobDeploymentStatus": "Complete"}),
    ],
)
def test_leftover_podgroup_of_a_finished_job_is_not_waiting(
    kind: str, status: dict[str, Any]
) -> None:
    assert waiting(Snapshot.of([group("done"), job_of_kind(kind, status)])) == []


def test_podgroup_of_a_removed_job_is_not_waiting() -> None:
    assert waiting(Snapshot.of([queue(), group("gone", phase="Pending")])) == []


def test_a_job_suspended_by_its_settings_is_reported_once() -> None:
    suspended = job_of_kind("PyTorchJob", {"conditions": [{"type": "Suspended", "status": "True"}]})
    found = single_waiting(suspended, group("done", phase="Pending"), queue())
    resume = "`state: running` or, for a run outside of the stack, `suspend: false` resumes it"
    assert str(found) == f"ml/done: suspended\n  {resume}"


def test_job_owned_by_a_suspended_job_is_not_reported_separately() -> None:
    owned_job = job_of_kind("Job", {"conditions": [{"type": "Suspended", "status": "True"}]})
    owned_job["metadata"]["ownerReferences"] = [{"name": "done", "controller": True}]
    ray_job = job_of_kind("RayJob", {"jobDeploymentStatus": "Suspended"})
    assert single_waiting(owned_job, ray_job, group("done")).job == "done"


def test_the_job_set_of_a_suspended_train_job_is_not_reported_separately() -> None:
    status = {"conditions": [{"type": "Suspended", "status": "True"}]}
    owned_job = job_of_kind("JobSet", status)
    owned_job["metadata"]["ownerReferences"] = [{"name": "done", "controller": True}]
    assert single_waiting(owned_job, job_of_kind("TrainJob", status), group("done")).job == "done"


def test_gang_with_succeeded_pods_is_not_waiting() -> None:
    done = pod("digits", on="n")
    done["status"]["phase"] = "Succeeded"
    gang = (job("digits", "Running"), group("digits", phase="Running"), done)
    assert waiting(Snapshot.of([node(16), queue(), *gang, pod("digits", on="n")])) == []
    assert waiting(Snapshot.of([node(16), queue(), *gang, done])) == []


def test_unscheduled_pod_without_a_podgroup_is_reported() -> None:
    alone = pod(None, message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    found = single_waiting(node(), queue(), group("runs", min_member=1), pod("runs", on="n"), alone)
    assert str(found) == (
        "ml/None-0: the pod is not scheduled\n"
        "  0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )
