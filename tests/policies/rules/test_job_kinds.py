"""Rules for individual job kinds."""

from typing import Any

import pytest

from tests.policies import manifests
from tests.policies.harness import REMOVED, changed, evaluate_rule


def job_template() -> dict[str, Any]:
    return changed(
        manifests.volcano_job(),
        ("apiVersion", "flow.volcano.sh/v1alpha1"),
        ("kind", "JobTemplate"),
    )


def ray_job(**fields: Any) -> dict[str, Any]:
    pod = manifests.pod_spec(restartPolicy="Never", schedulerName="volcano")
    template = {"metadata": {"labels": dict(manifests.LABELS)}, "spec": pod}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": manifests.metadata("tune"),
        "spec": {
            **fields,
            "rayClusterSpec": {
                "headGroupSpec": {"template": template},
                "workerGroupSpecs": [{"replicas": 3, "template": template}],
            },
        },
    }


def job_set(**failure_policy: Any) -> dict[str, Any]:
    pod = manifests.pod_spec(restartPolicy="Never", schedulerName="volcano")
    template = {"metadata": {"labels": dict(manifests.LABELS)}, "spec": pod}
    job = {"parallelism": 2, "backoffLimit": 0, "template": template}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": manifests.metadata("digits"),
        "spec": {
            "failurePolicy": failure_policy,
            "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": job}}],
        },
    }


def test_restarts_of_a_job_set_must_be_bounded() -> None:
    assert evaluate_rule("training-retries-bounded", job_set()) == []
    assert evaluate_rule("training-retries-bounded", job_set(maxRestarts=3)) == []
    assert evaluate_rule("training-retries-bounded", job_set(maxRestarts=10**6))


@pytest.mark.parametrize("rule", ["training-gang-whole", "training-retries-bounded"])
def test_job_template_of_a_job_flow_is_evaluated_like_a_job(rule: str) -> None:
    assert evaluate_rule(rule, job_template()) == []
    invalid = changed(job_template(), ("spec/minAvailable", 1), ("spec/maxRetry", 99))
    assert evaluate_rule(rule, invalid)


def test_steps_of_a_job_flow_must_have_a_deadline() -> None:
    template = job_template()
    assert evaluate_rule("training-ends", template) == []
    limit = "spec/tasks/0/template/spec/activeDeadlineSeconds"
    (message,) = evaluate_rule("training-ends", changed(template, (limit, REMOVED)))
    assert "activeDeadlineSeconds" in message


def test_elastic_workloads_can_be_configured_by_name_prefix() -> None:
    elastic = changed(manifests.volcano_job(), ("spec/minAvailable", 1))
    matching = {"elasticWorkloads": ["*/Job.batch.volcano.sh/digits*"]}
    assert evaluate_rule("training-gang-whole", elastic, config=matching) == []
    not_matching = {"elasticWorkloads": ["*/Job.batch.volcano.sh/cifar-*"]}
    assert evaluate_rule("training-gang-whole", elastic, config=not_matching)


def test_podgroup_of_an_elastic_workload_may_be_smaller_than_the_workload() -> None:
    group = changed(manifests.pod_group(), ("spec/minMember", 1))
    stack = (manifests.batch_job(), group)
    named = {"elasticWorkloads": ["*/Job/indexed"]}
    assert evaluate_rule("training-pod-group-whole", *stack)
    assert evaluate_rule("training-pod-group-whole", *stack, config=named) == []


@pytest.mark.parametrize(("limit", "is_bounded"), [(31, True), (32, False)])
def test_backoff_limit_of_a_kubeflow_job_is_shared_by_the_restarts_of_all_pods(
    limit: int, is_bounded: bool
) -> None:
    job = changed(manifests.pytorch_job(), ("spec/runPolicy/backoffLimit", limit))
    assert (
        evaluate_rule("training-retries-bounded", job, config={"maxRetries": 10}) == []
    ) == is_bounded


def kubeflow_job(kind: str, specs: str, replica: str, **fields: str) -> dict[str, Any]:
    template = {"metadata": {"labels": dict(manifests.LABELS)}, "spec": manifests.pod_spec()}
    template["spec"].pop("restartPolicy", None)
    return {
        "apiVersion": "kubeflow.org/v2beta1" if kind == "MPIJob" else "kubeflow.org/v1",
        "kind": kind,
        "metadata": manifests.metadata("digits"),
        "spec": {
            "runPolicy": {"backoffLimit": 2},
            specs: {replica: {"replicas": 2, "template": template, **fields}},
        },
    }


@pytest.mark.parametrize(
    ("kind", "specs", "replica"),
    [
        ("MPIJob", "mpiReplicaSpecs", "Worker"),
        ("MPIJob", "mpiReplicaSpecs", "Launcher"),
        ("PyTorchJob", "pytorchReplicaSpecs", "Worker"),
        ("PaddleJob", "paddleReplicaSpecs", "Worker"),
        ("TFJob", "tfReplicaSpecs", "Worker"),
        ("TFJob", "tfReplicaSpecs", "Chief"),
        ("JAXJob", "jaxReplicaSpecs", "Worker"),
        ("MXJob", "mxReplicaSpecs", "Worker"),
        ("XGBoostJob", "xgbReplicaSpecs", "Master"),
    ],
)
def test_restart_policy_may_be_left_to_the_operator(kind: str, specs: str, replica: str) -> None:
    assert evaluate_rule("training-retries-bounded", kubeflow_job(kind, specs, replica)) == []
    restarted = kubeflow_job(kind, specs, replica, restartPolicy="Always")
    assert evaluate_rule("training-retries-bounded", restarted)


def test_retries_of_a_ray_job_must_be_bounded_if_enabled() -> None:
    assert evaluate_rule("training-retries-bounded", ray_job()) == []
    assert evaluate_rule("training-retries-bounded", ray_job(backoffLimit=3)) == []
    assert evaluate_rule("training-retries-bounded", ray_job(backoffLimit=99))


def test_restarts_of_a_training_runtime_must_be_bounded_if_enabled() -> None:
    def runtime(**failure_policy: Any) -> dict[str, Any]:
        template = {"spec": manifests.pod_spec(restartPolicy="Never", schedulerName="volcano")}
        nodes = {"name": "node", "template": {"spec": {"parallelism": 2, "template": template}}}
        job_set = {"replicatedJobs": [nodes], "failurePolicy": failure_policy}
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": manifests.metadata("runtime"),
            "spec": {"template": {"spec": job_set}},
        }

    assert evaluate_rule("training-retries-bounded", runtime()) == []
    assert evaluate_rule("training-retries-bounded", runtime(maxRestarts=3)) == []
    assert evaluate_rule("training-retries-bounded", runtime(maxRestarts=99))


def test_restarts_in_place_are_rejected_for_kinds_without_a_job_controller() -> None:
    worker = "spec/rayClusterSpec/workerGroupSpecs/0/template/spec/restartPolicy"
    (message, _) = evaluate_rule("training-retries-bounded", changed(ray_job(), (worker, "Always")))
    assert 'write "Never", because no limit counts restarts in place' in message


def test_training_runtime_names_the_queue_of_its_pod_group() -> None:
    named = {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}

    def violations(rule: str, job_set: dict[str, Any], pod: dict[str, Any]) -> list[str]:
        template = {**pod, "spec": manifests.pod_spec(schedulerName="volcano")}
        nodes = {"name": "node", "template": {"spec": {"parallelism": 2, "template": template}}}
        runtime = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": manifests.metadata("runtime"),
            "spec": {
                "podGroupPolicy": {"volcano": {}},
                "template": {**job_set, "spec": {"replicatedJobs": [nodes]}},
            },
        }
        return evaluate_rule(rule, runtime)

    assert violations("training-gang-whole", {}, {}) == []
    assert violations("training-queue-named", {"metadata": named}, {}) == []
    (message,) = violations("training-queue-named", {}, {"metadata": named})
    assert 'spec.template.metadata.annotations["scheduling.volcano.sh/queue-name"]' in message


def test_head_pod_of_a_ray_job_belongs_to_its_gang() -> None:
    group = changed(manifests.pod_group(), ("spec/minMember", 4))
    joined: dict[str, Any] = {"scheduling.k8s.io/group-name": "indexed"}
    cluster = "spec/rayClusterSpec"
    job = changed(
        ray_job(),
        (f"{cluster}/headGroupSpec/template/metadata/annotations", joined),
        (f"{cluster}/workerGroupSpecs/0/template/metadata/annotations", joined),
    )
    assert evaluate_rule("training-pod-group-whole", job, group) == []
    smaller = changed(group, ("spec/minMember", 3))
    assert evaluate_rule("training-pod-group-whole", job, smaller)


def test_vendor_specific_gpu_fraction_counts_as_a_gpu() -> None:
    resources = {"limits": {"memory": "16Gi", "baidu.com/a800_80g_cgpu": "1"}}
    place = "spec/tasks/0/template/spec/containers/0/resources"
    job = changed(manifests.volcano_job(), (place, resources))
    assert evaluate_rule("gpu-limit-present", job) == []
    assert evaluate_rule("gpu-cpu-requested", job)
