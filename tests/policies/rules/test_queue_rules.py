"""Rules that compare the requests of workloads with the quotas of Volcano and Kueue queues."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import UNKNOWN_VALUE, Manifest, changed, evaluate_rule
from tests.policies.rules.test_scheduling_rules import LABEL, batch_job, job_set, local_queue

RULE = "training-queue-declared"
RESOURCE = "nvidia.com/gpu"
MINIMUM = "metadata/annotations/kueue.x-k8s.io~job-min-parallelism"
# This Job has two pods with eight GPUs each.
JOB = batch_job((LABEL, "team"))
RUNTIME_POD = "spec/template/spec/replicatedJobs/0/template/spec/template"
EIGHT = [("spec/template/spec/containers/0/resources/limits/nvidia.com~gpu", 8)]


def cluster_queue(
    *flavors: dict[str, Any], name: str = RESOURCE, cohort: str | None = None
) -> Manifest:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "team"},
        "spec": {
            **({"cohort": cohort} if cohort else {}),
            "resourceGroups": [
                {
                    "coveredResources": [name],
                    "flavors": [
                        {"name": f"flavor-{index}", "resources": [{"name": name, **quota}]}
                        for index, quota in enumerate(flavors)
                    ],
                }
            ],
        },
    }


def quota_messages(job: Manifest, queue: Manifest, **config: Any) -> list[str]:
    """Return the messages about a Job in a LocalQueue of the ClusterQueue."""
    return evaluate_rule(RULE, changed(job, *EIGHT), local_queue("training"), queue, config=config)


def test_job_larger_than_the_quota_of_its_cluster_queue_is_rejected() -> None:
    assert quota_messages(JOB, cluster_queue({"nominalQuota": 16})) == []
    (message,) = quota_messages(JOB, cluster_queue({"nominalQuota": 15}))
    assert "16 nvidia.com/gpu" in message
    assert "at most 15, the quota of ClusterQueue team" in message


def test_pods_of_one_specification_must_fit_into_one_flavor() -> None:
    (message,) = quota_messages(JOB, cluster_queue({"nominalQuota": 8}, {"nominalQuota": 12}))
    assert "at most 12" in message
    assert quota_messages(JOB, cluster_queue({"nominalQuota": 8}, {"nominalQuota": 16})) == []


def test_only_queues_in_a_cohort_can_borrow_quota() -> None:
    borrowing = {"nominalQuota": 8, "borrowingLimit": 8}
    assert quota_messages(JOB, cluster_queue(borrowing, cohort="research")) == []
    assert quota_messages(JOB, cluster_queue({"nominalQuota": 0}, cohort="research")) == []
    assert quota_messages(JOB, cluster_queue({**borrowing, "borrowingLimit": 7}, cohort="research"))
    assert quota_messages(JOB, cluster_queue(borrowing))


def test_job_is_rejected_if_its_cluster_queue_does_not_cover_the_resource() -> None:
    (message,) = quota_messages(JOB, cluster_queue({"nominalQuota": 64}, name="cpu"))
    assert "at most 0" in message


@pytest.mark.parametrize(
    "edit",
    [
        ("spec/resourceGroups/0/flavors/0/resources/0/nominalQuota", UNKNOWN_VALUE),
        ("spec/resourceGroups", UNKNOWN_VALUE),
        ("metadata/name", "other"),
    ],
)
def test_job_is_not_compared_with_an_unknown_quota(edit: tuple[str, Any]) -> None:
    assert quota_messages(JOB, changed(cluster_queue({"nominalQuota": 1}), edit)) == []


def test_job_with_partial_admission_is_not_compared_with_the_quota() -> None:
    assert quota_messages(changed(JOB, (MINIMUM, "1")), cluster_queue({"nominalQuota": 8})) == []


def test_kueue_label_is_ignored_if_kueue_is_not_a_queue_system() -> None:
    queue = cluster_queue({"nominalQuota": 1})
    messages = quota_messages(JOB, queue, queueSystems=["volcano"])
    assert not any("quota of" in message for message in messages)


def test_volcano_job_larger_than_the_quota_of_its_queue_is_rejected() -> None:
    small_queue = changed(manifests.queue(), ("spec/capability", {RESOURCE: 1}))
    (message,) = evaluate_rule(RULE, manifests.volcano_job(), small_queue)
    assert "the quota of Queue research" in message
    assert evaluate_rule(RULE, manifests.volcano_job(), manifests.queue()) == []


def test_volcano_job_larger_than_the_quota_of_a_parent_queue_is_rejected() -> None:
    unlimited = ("spec/capability", {})
    queue = changed(manifests.queue(), unlimited, ("spec/parent", "science"))
    parent = changed(
        manifests.queue(), unlimited, ("metadata/name", "science"), ("spec/parent", "company")
    )
    # Volcano rejects cycles, but a stack may contain one.
    small_grandparent = changed(
        manifests.queue(),
        ("spec/capability", {RESOURCE: 1}),
        ("metadata/name", "company"),
        ("spec/parent", "science"),
    )
    (message,) = evaluate_rule(RULE, manifests.volcano_job(), queue, parent, small_grandparent)
    assert "at most 1, the quota of Queue company" in message
    assert evaluate_rule(RULE, manifests.volcano_job(), queue, parent) == []


@pytest.mark.parametrize(
    "queue",
    [
        cluster_queue({"nominalQuota": 1_000_000}),
        cluster_queue({"nominalQuota": "1M"}),
        cluster_queue({"nominalQuota": "1e100"}),
        cluster_queue({"nominalQuota": "many"}),
        cluster_queue({"nominalQuota": "many"}, name="nvidia.com/gpumem"),
        cluster_queue({"nominalQuota": 8, "borrowingLimit": 1_000_000}),
        cluster_queue({"nominalQuota": 1_000_000}, name="volcano.sh/vgpu-number"),
        changed(manifests.queue(), ("spec/capability", {RESOURCE: 1_000_000})),
        changed(manifests.queue(), ("spec/guarantee/resource", {RESOURCE: 1_000_000})),
    ],
)
def test_queues_with_an_effectively_unlimited_quota_are_rejected(queue: Manifest) -> None:
    assert evaluate_rule("queue-quota-bounded", queue)


@pytest.mark.parametrize(
    "queue",
    [
        cluster_queue({"nominalQuota": 32}),
        cluster_queue({"nominalQuota": "64Ti"}, name="memory"),
        cluster_queue({"nominalQuota": 81920}, name="nvidia.com/total-gpumem"),
        changed(manifests.queue(), ("spec/capability", {"volcano.sh/vgpu-memory": 81920})),
    ],
)
def test_queues_with_a_reasonable_quota_pass(queue: Manifest) -> None:
    assert evaluate_rule("queue-quota-bounded", queue) == []
    assert not evaluate_rule("queue-quota-bounded", queue, config={"maxGpus": 32})


def runtime_and_train_job(annotations: dict[str, str], **labels: str) -> list[Manifest]:
    """Return a Kubeflow runtime with pod annotations, and a TrainJob with labels."""
    runtime = changed(
        job_set("TrainingRuntime"),
        ("metadata/name", "torch"),
        (f"{RUNTIME_POD}/metadata", {"annotations": annotations}),
    )
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "x", "labels": {f"kueue.x-k8s.io/{k}": v for k, v in labels.items()}},
        "spec": {"runtimeRef": {"kind": "TrainingRuntime", "name": "torch"}},
    }
    return [runtime, train_job]


@pytest.mark.parametrize("rule", ["training-queue-named", "training-gang-whole"])
def test_kueue_reads_the_label_of_a_train_job_and_not_of_its_runtime(rule: str) -> None:
    runtime, train_job = runtime_and_train_job({}, **{"queue-name": "team"})
    assert evaluate_rule(rule, runtime, train_job) == []
    queues = {"existingQueues": ["team"]}
    assert evaluate_rule(RULE, runtime, train_job, config=queues) == []
    labeled = changed(runtime, ("metadata/labels", {"kueue.x-k8s.io/queue-name": "team"}))
    unlabeled = changed(train_job, ("metadata/labels", {}))
    (message,) = evaluate_rule(RULE, labeled, unlabeled, config=queues)
    assert 'TrainJob "x": metadata.labels["kueue.x-k8s.io/queue-name"]: not set' in message


def test_train_job_of_a_runtime_with_a_volcano_queue_needs_no_label() -> None:
    stack = runtime_and_train_job({"scheduling.volcano.sh/queue-name": "team"})
    assert evaluate_rule(RULE, *stack, config={"existingQueues": ["team"]}) == []


def test_runtime_without_kueue_must_name_its_volcano_queue() -> None:
    stack = runtime_and_train_job({})
    assert evaluate_rule("training-queue-named", *stack, config={"queueSystems": ["volcano"]})


def test_train_jobs_of_one_runtime_are_compared_with_the_quota_separately() -> None:
    runtime, train_job = runtime_and_train_job({"scheduling.volcano.sh/queue-name": "research"})
    runtime = changed(runtime, (f"{RUNTIME_POD}/{EIGHT[0][0].removeprefix('spec/template/')}", 8))
    jobs = [changed(train_job, ("metadata/name", name)) for name in ("x", "y")]
    queue = changed(manifests.queue(), ("spec/capability", {RESOURCE: 8}))
    assert evaluate_rule(RULE, runtime, *jobs, queue) == []
    larger = changed(jobs[0], ("spec/trainer/numNodes", 2))
    (message,) = evaluate_rule(RULE, runtime, larger, jobs[1], queue)
    assert "16 nvidia.com/gpu in one workload" in message
