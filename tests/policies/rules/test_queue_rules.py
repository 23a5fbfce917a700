"""Rules that compare what workloads request with what the queues of Volcano and Kueue grant."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import UNKNOWN_VALUE, Manifest, changed, judge
from tests.policies.rules.test_scheduling_rules import LABEL, batch_job, local_queue

RULE = "training-queue-declared"
RESOURCE = "nvidia.com/gpu"
MINIMUM = "metadata/annotations/kueue.x-k8s.io~job-min-parallelism"
# The Job has two pods with eight GPUs each.
JOB = batch_job((LABEL, "team"))
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


def compared(job: Manifest, queue: Manifest, **config: Any) -> list[str]:
    """The messages about a Job in a LocalQueue of the ClusterQueue."""
    return judge(RULE, changed(job, *EIGHT), local_queue("training"), queue, config=config)


def test_a_job_larger_than_its_cluster_queue_is_refused() -> None:
    assert compared(JOB, cluster_queue({"nominalQuota": 16})) == []
    (message,) = compared(JOB, cluster_queue({"nominalQuota": 15}))
    assert "16 of nvidia.com/gpu" in message
    assert "at most 15, the quota of ClusterQueue team" in message


def test_one_specification_has_all_pods_in_one_flavor() -> None:
    (message,) = compared(JOB, cluster_queue({"nominalQuota": 8}, {"nominalQuota": 12}))
    assert "at most 12" in message
    assert compared(JOB, cluster_queue({"nominalQuota": 8}, {"nominalQuota": 16})) == []


def test_only_queues_of_a_cohort_borrow() -> None:
    borrowing = {"nominalQuota": 8, "borrowingLimit": 8}
    assert compared(JOB, cluster_queue(borrowing, cohort="research")) == []
    assert compared(JOB, cluster_queue({"nominalQuota": 0}, cohort="research")) == []
    assert compared(JOB, cluster_queue({**borrowing, "borrowingLimit": 7}, cohort="research"))
    assert compared(JOB, cluster_queue(borrowing))


def test_a_cluster_queue_that_does_not_cover_the_resource_admits_nothing() -> None:
    (message,) = compared(JOB, cluster_queue({"nominalQuota": 64}, name="cpu"))
    assert "at most 0" in message


@pytest.mark.parametrize(
    "edit",
    [
        ("spec/resourceGroups/0/flavors/0/resources/0/nominalQuota", UNKNOWN_VALUE),
        ("spec/resourceGroups", UNKNOWN_VALUE),
        ("metadata/name", "other"),
    ],
)
def test_an_unknown_quota_is_not_compared(edit: tuple[str, Any]) -> None:
    assert compared(JOB, changed(cluster_queue({"nominalQuota": 1}), edit)) == []


def test_a_job_that_may_shrink_is_not_compared() -> None:
    assert compared(changed(JOB, (MINIMUM, "1")), cluster_queue({"nominalQuota": 8})) == []


def test_without_kueue_its_label_grants_nothing() -> None:
    queue = cluster_queue({"nominalQuota": 1})
    messages = compared(JOB, queue, queueSystems=["volcano"])
    assert not any("quota of" in message for message in messages)


def test_a_volcano_job_larger_than_its_queue_is_refused() -> None:
    limited = changed(manifests.queue(), ("spec/capability", {RESOURCE: 1}))
    (message,) = judge(RULE, manifests.volcano_job(), limited)
    assert "the quota of Queue research" in message
    assert judge(RULE, manifests.volcano_job(), manifests.queue()) == []


def test_a_volcano_job_larger_than_an_ancestor_of_its_queue_is_refused() -> None:
    unlimited = ("spec/capability", {})
    queue = changed(manifests.queue(), unlimited, ("spec/parent", "science"))
    parent = changed(
        manifests.queue(), unlimited, ("metadata/name", "science"), ("spec/parent", "company")
    )
    # Volcano rejects cycles, but a stack may contain one.
    limited = changed(
        manifests.queue(),
        ("spec/capability", {RESOURCE: 1}),
        ("metadata/name", "company"),
        ("spec/parent", "science"),
    )
    (message,) = judge(RULE, manifests.volcano_job(), queue, parent, limited)
    assert "at most 1, the quota of Queue company" in message
    assert judge(RULE, manifests.volcano_job(), queue, parent) == []


@pytest.mark.parametrize(
    "queue",
    [
        cluster_queue({"nominalQuota": 1_000_000}),
        cluster_queue({"nominalQuota": "1M"}),
        cluster_queue({"nominalQuota": "1e100"}),
        cluster_queue({"nominalQuota": "many"}),
        cluster_queue({"nominalQuota": 8, "borrowingLimit": 1_000_000}),
        cluster_queue({"nominalQuota": 1_000_000}, name="volcano.sh/vgpu-number"),
        changed(manifests.queue(), ("spec/capability", {RESOURCE: 1_000_000})),
        changed(manifests.queue(), ("spec/guarantee/resource", {RESOURCE: 1_000_000})),
    ],
)
def test_queues_without_a_reachable_quota_are_refused(queue: Manifest) -> None:
    assert judge("queue-quota-bounded", queue)


@pytest.mark.parametrize(
    "queue",
    [cluster_queue({"nominalQuota": 32}), cluster_queue({"nominalQuota": "64Ti"}, name="memory")],
)
def test_queues_with_a_quota_pass(queue: Manifest) -> None:
    assert judge("queue-quota-bounded", queue) == []
    assert not judge("queue-quota-bounded", queue, config={"maxGpus": 32})
