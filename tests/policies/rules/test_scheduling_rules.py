"""Rules for queues, gangs and retries with Volcano and Kueue."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, Manifest, changed, evaluate_rule

POD = "spec/tasks/0/template/spec"
MAIN = f"{POD}/containers/0"
LABEL = "metadata/labels/kueue.x-k8s.io~queue-name"
VOLCANO_ONLY = {"queueSystems": ["volcano"]}
KUEUE_ONLY = {"queueSystems": ["kueue"]}
RULES = ("training-scheduler", "training-queue-named", "training-gang-whole")


def job(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.volcano_job(), *edits)


def batch_job(*edits: tuple[str, Any]) -> Manifest:
    """Return a Job with two pods that does not use Volcano."""
    volcano = (
        ("spec/template/metadata/annotations", REMOVED),
        ("spec/template/spec/schedulerName", REMOVED),
    )
    return changed(manifests.batch_job(), *volcano, *edits)


@pytest.mark.parametrize("rule", RULES)
def test_job_with_a_kueue_label_needs_no_volcano_settings(rule: str) -> None:
    assert evaluate_rule(rule, batch_job())
    assert evaluate_rule(rule, batch_job((LABEL, "team"))) == []
    assert evaluate_rule(rule, batch_job((LABEL, "team")), config=KUEUE_ONLY) == []
    assert evaluate_rule(rule, batch_job((LABEL, "team")), config=VOLCANO_ONLY)


def test_kueue_label_is_required_if_kueue_is_the_only_queue_system() -> None:
    assert evaluate_rule("training-queue-named", manifests.batch_job()) == []
    (message,) = evaluate_rule("training-queue-named", manifests.batch_job(), config=KUEUE_ONLY)
    assert 'metadata.labels["kueue.x-k8s.io/queue-name"]: not set' in message


def test_kueue_label_is_not_sufficient_for_a_volcano_job() -> None:
    labeled = job((LABEL, "team"), ("spec/queue", REMOVED))
    assert evaluate_rule("training-queue-named", labeled)
    assert evaluate_rule("training-gang-whole", job((LABEL, "team"), ("spec/minAvailable", 1)))


def test_kueue_label_may_be_on_the_job_template_of_a_cron_job() -> None:
    template = batch_job((LABEL, "team"))
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": manifests.metadata("nightly"),
        "spec": {"jobTemplate": {key: template[key] for key in ("metadata", "spec")}},
    }
    assert evaluate_rule("training-queue-named", cron) == []


def test_kueue_label_on_one_job_of_a_job_set_does_not_form_a_gang() -> None:
    template = batch_job((LABEL, "team"), ("metadata/name", REMOVED))
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": manifests.metadata("pretrain"),
        "spec": {"replicatedJobs": [{"name": "worker", "replicas": 2, "template": template}]},
    }
    for rule in RULES:
        assert evaluate_rule(rule, job_set)
        assert evaluate_rule(rule, changed(job_set, (LABEL, "team"))) == []


@pytest.mark.parametrize(("minimum", "accepted"), [("1", False), ("2", True)])
def test_partial_admission_is_rejected_unless_the_workload_is_elastic(
    minimum: str, accepted: bool
) -> None:
    manifest = batch_job(
        (LABEL, "team"), ("metadata/annotations/kueue.x-k8s.io~job-min-parallelism", minimum)
    )
    assert (evaluate_rule("training-gang-whole", manifest) == []) is accepted
    elastic = {"elasticWorkloads": ["training/Job/*"]}
    assert evaluate_rule("training-gang-whole", manifest, config=elastic) == []


def local_queue(namespace: str) -> Manifest:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "team", "namespace": namespace},
        "spec": {"clusterQueue": "team"},
    }


def test_local_queue_must_be_in_the_namespace_of_the_job() -> None:
    labeled = batch_job((LABEL, "team"))
    assert evaluate_rule("training-queue-declared", labeled)
    assert evaluate_rule("training-queue-declared", labeled, local_queue("other"))
    assert evaluate_rule("training-queue-declared", labeled, local_queue("training")) == []
    config = {"existingQueues": ["team"]}
    assert evaluate_rule("training-queue-declared", labeled, config=config) == []


def test_multiple_pods_of_a_kind_without_gangs_need_a_podgroup() -> None:
    (message,) = evaluate_rule("training-gang-whole", job_set(parallelism=2))
    assert "the name of a PodGroup" in message
    assert evaluate_rule("training-gang-whole", job_set(parallelism=1)) == []
    labeled = {"metadata": {"name": "x", "labels": {"kueue.x-k8s.io/queue-name": "team"}}}
    assert evaluate_rule("training-gang-whole", {**job_set(parallelism=2), **labeled}) == []


def test_multiple_pods_of_a_kubeflow_runtime_need_a_policy_for_their_podgroup() -> None:
    runtime = job_set("TrainingRuntime", parallelism=2)
    config = {"queueSystems": ["volcano"]}
    (message,) = evaluate_rule("training-gang-whole", runtime, config=config)
    assert "spec.podGroupPolicy.volcano: not set; write {}" in message
    grouped = changed(runtime, ("spec/podGroupPolicy", {"volcano": {}}))
    assert evaluate_rule("training-gang-whole", grouped, config=config) == []


def test_node_name_is_rejected_because_it_bypasses_the_scheduler() -> None:
    (message,) = evaluate_rule("training-scheduler", job((f"{POD}/nodeName", "gpu-1")))
    assert 'nodeName: found "gpu-1"' in message


def test_empty_scheduler_of_a_task_is_the_scheduler_of_its_job() -> None:
    assert evaluate_rule("training-scheduler", job((f"{POD}/schedulerName", ""))) == []
    assert evaluate_rule("training-scheduler", batch_job(("spec/template/spec/schedulerName", "")))


def rules(*rules_: dict[str, Any]) -> dict[str, Any]:
    return {"rules": list(rules_)}


EXIT_CODES = {"onExitCodes": {"operator": "NotIn", "values": [0]}}
DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        (job((f"{POD}/restartPolicy", "OnFailure")), 'restartPolicy: found "OnFailure"'),
        (job((f"{MAIN}/restartPolicy", "OnFailure")), "containers[0].restartPolicy"),
        (job((f"{MAIN}/restartPolicyRules", [{"action": "Restart"}])), "restartPolicyRules[0]"),
        (batch_job(("spec/backoffLimitPerIndex", 1_000_000)), "backoffLimitPerIndex"),
        (batch_job(("spec/backoffLimitPerIndex", 11)), "a retry limit of at most 10"),
        (
            batch_job(("spec/podFailurePolicy", rules({"action": "Ignore", **EXIT_CODES}))),
            'podFailurePolicy.rules[0].action: found "Ignore"',
        ),
        (
            changed(manifests.pytorch_job(), ("spec/runPolicy", REMOVED)),
            "runPolicy.backoffLimit: not set",
        ),
    ],
    ids=[
        "pod restarts in place",
        "container restarts in place",
        "container restart rules",
        "high limit per index",
        "limit per index above the maximum",
        "ignored failures",
        "no run policy",
    ],
)
def test_unlimited_retries_are_rejected(manifest: Manifest, found: str) -> None:
    assert found in "\n".join(evaluate_rule("training-retries-bounded", manifest))


@pytest.mark.parametrize(
    "manifest",
    [
        batch_job(("spec/template/spec/restartPolicy", "OnFailure")),
        batch_job(("spec/podFailurePolicy", rules({"action": "Ignore", **DISRUPTION}))),
        batch_job(("spec/podFailurePolicy", rules({"action": "FailJob", **EXIT_CODES}))),
        batch_job(("spec/backoffLimitPerIndex", 2)),
        batch_job(("spec/backoffLimit", REMOVED), ("spec/backoffLimitPerIndex", 2)),
        job((f"{MAIN}/restartPolicy", "Never")),
    ],
    ids=[
        "restarts counted by the Job",
        "ignored disruptions",
        "failures that fail the Job",
        "low limit per index",
        "only a limit per index",
        "container never restarts",
    ],
)
def test_bounded_retries_pass(manifest: Manifest) -> None:
    assert evaluate_rule("training-retries-bounded", manifest) == []


def job_set(kind: str = "JobSet", **policy: Any) -> Manifest:
    inner = {"backoffLimit": 0, **{k: policy.pop(k) for k in list(policy) if k in INNER}}
    spec = {
        "failurePolicy": policy,
        "replicatedJobs": [
            {
                "name": "node",
                "template": {"spec": {**inner, "template": batch_job()["spec"]["template"]}},
            }
        ],
    }
    group = "jobset.x-k8s.io/v1alpha2" if kind == "JobSet" else "trainer.kubeflow.org/v1alpha1"
    whole = spec if kind == "JobSet" else {"template": {"spec": spec}}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "x"}, "spec": whole}


INNER = ("backoffLimit", "parallelism")
UNCOUNTED = {"action": "RestartJobSetAndIgnoreMaxRestarts"}


@pytest.mark.parametrize("kind", ["JobSet", "TrainingRuntime", "ClusterTrainingRuntime"])
def test_restarts_of_job_sets_must_be_bounded(kind: str) -> None:
    assert evaluate_rule("training-retries-bounded", job_set(kind, maxRestarts=3)) == []
    assert evaluate_rule("training-retries-bounded", job_set(kind, maxRestarts=1_000_000))
    assert evaluate_rule("training-retries-bounded", job_set(kind, backoffLimit=1_000_000))
    assert evaluate_rule("training-retries-bounded", job_set(kind, **rules(UNCOUNTED)))
    disrupted = {**UNCOUNTED, "onJobFailureReasons": ["PodFailurePolicy"]}
    assert evaluate_rule("training-retries-bounded", job_set(kind, **rules(disrupted))) == []


def test_podgroup_of_a_runtime_must_match_the_nodes_of_its_train_job() -> None:
    runtime = job_set("TrainingRuntime")
    runtime["metadata"] = manifests.metadata("torch")
    inner = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    inner["template"]["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "indexed"}
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": manifests.metadata("x"),
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": "torch"},
            "trainer": {"numNodes": 2},
        },
    }
    group = manifests.pod_group()
    assert evaluate_rule("training-pod-group-whole", runtime, group)
    assert evaluate_rule("training-pod-group-whole", runtime, group, train_job) == []
    larger = changed(train_job, ("spec/trainer/numNodes", 3))
    assert evaluate_rule("training-pod-group-whole", runtime, group, larger)


def test_only_system_workloads_may_set_a_node_name() -> None:
    manifest = job((f"{POD}/nodeName", "gpu-1"))
    assert evaluate_rule("node-not-chosen", manifest)
    config = {"systemWorkloads": ["training/Job.batch.volcano.sh/digits"]}
    assert evaluate_rule("node-not-chosen", manifest, config=config) == []


def test_priority_class_of_a_gang_must_be_known() -> None:
    gang = ("spec/runPolicy/schedulingPolicy/priorityClass", "urgent")
    manifest = changed(manifests.pytorch_job(), gang)
    stack = (manifest, manifests.priority_class())
    (message,) = evaluate_rule("priority-class-known", *stack)
    assert "schedulingPolicy.priorityClass" in message
    assert (
        evaluate_rule(
            "priority-class-known", *stack, config={"existingPriorityClasses": ["urgent"]}
        )
        == []
    )


@pytest.mark.parametrize("rule", ["training-scheduler", "training-queue-named"])
def test_label_in_the_remediation_exempts_a_job_with_one_gpu(rule: str) -> None:
    spec = {"template": {"spec": {**manifests.pod_spec(), "restartPolicy": "Never"}}}
    metadata = manifests.metadata("smoke")
    smoke = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    (message,) = evaluate_rule(rule, smoke)
    key, value = message.split("the ")[-1].removesuffix(" label.").split(": ")
    labeled = changed(smoke, ("spec/template/metadata", {"labels": {key: value}}))
    assert evaluate_rule(rule, labeled) == []
