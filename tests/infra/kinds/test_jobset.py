from typing import Any

import pytest

from infra.manifests import Manifest
from tests.infra.examples import problems
from tests.infra.jobs import configuration, job, kind_of, objects, problems_of

BOTH_KINDS = pytest.mark.parametrize("kind", ["jobset", "trainjob"])


def job_set(kind: str = "jobset", **changes: Any) -> Manifest:
    if kind == "jobset":
        found: Manifest = kind_of(job(kind, **changes), "JobSet")["spec"]
    else:
        found = kind_of(job(kind, **changes), "TrainingRuntime")["spec"]["template"]["spec"]
    return found


def inner_job_spec(kind: str = "jobset", **changes: Any) -> Manifest:
    (replicated,) = job_set(kind, **changes)["replicatedJobs"]
    assert replicated["replicas"] == 1
    found: Manifest = replicated["template"]["spec"]
    return found


def test_gang_is_one_indexed_job_with_a_podgroup_in_the_queue() -> None:
    group, found = objects(job("jobset", nodes=4))
    assert (group["kind"], found["apiVersion"]) == ("PodGroup", "jobset.x-k8s.io/v1alpha2")
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (4, "research")
    job_spec = inner_job_spec(nodes=4)
    assert (job_spec["completions"], job_spec["parallelism"]) == (4, 4)
    annotations = job_spec["template"]["metadata"]["annotations"]
    assert annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    assert found["metadata"]["labels"]["volcano.sh/queue-name"] == "research"


def test_train_job_refers_to_its_runtime_without_overrides() -> None:
    group, runtime, found = objects(job("trainjob", nodes=4))
    assert [group["kind"], runtime["kind"], found["kind"]] == [
        "PodGroup",
        "TrainingRuntime",
        "TrainJob",
    ]
    assert found["spec"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": runtime["metadata"]["name"],
        }
    }
    assert (group["spec"]["minMember"], runtime["spec"]["mlPolicy"]) == (4, {"numNodes": 4})
    job_spec = inner_job_spec("trainjob", nodes=4)
    assert (job_spec["completions"], job_spec["parallelism"]) == (4, 4)


def test_job_and_container_have_the_names_that_trainer_expects() -> None:
    (replicated,) = job_set("trainjob")["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert replicated["name"] == container["name"] == "node"
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


@pytest.mark.parametrize(("kind", "name"), [("jobset", "worker"), ("trainjob", "node")])
def test_pods_rendezvous_at_the_hostname_of_pod_0(kind: str, name: str) -> None:
    (container,) = inner_job_spec(kind)["template"]["spec"]["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["MASTER_ADDR"]["value"] == f"job-0123abcd-{name}-0-0.job-0123abcd"
    path = env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert "--nnodes=2" in container["command"]


def test_pods_of_a_job_set_find_each_other_before_they_are_ready() -> None:
    assert job_set()["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


@BOTH_KINDS
def test_a_failed_pod_restarts_all_pods_but_a_fatal_exit_code_ends_the_run(kind: str) -> None:
    assert job_set(kind, retries=5)["failurePolicy"] == {
        "maxRestarts": 5,
        "rules": [
            {
                "name": "fatalExitCode",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    job_spec = inner_job_spec(kind, fatal_exit_codes=[3, 64])
    assert job_spec["backoffLimit"] == 0
    fatal = job_spec["podFailurePolicy"]["rules"][0]
    (container,) = job_spec["template"]["spec"]["containers"]
    assert fatal["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [3, 64],
    }


def test_suspended_run_sets_suspend_in_the_job_set_or_the_train_job() -> None:
    assert job_set(state="suspended")["suspend"] is True
    assert "suspend" not in job_set()
    assert kind_of(job("trainjob", state="suspended"), "TrainJob")["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("success", "policy"), [("first", {"rules": [{"succeededIndexes": "0"}]}), ("all", None)]
)
def test_success_policy_requires_the_first_pod_or_all_pods(
    success: str, policy: dict[str, Any] | None
) -> None:
    assert inner_job_spec(success=success).get("successPolicy") == policy


def test_run_deadline_is_rejected_because_job_sets_have_none() -> None:
    (sentence,) = problems_of(job("jobset", deadline_seconds=60))
    assert "deadline_seconds to 60, which kind 'jobset' does not support" in sentence
    assert "set attempt_deadline_seconds" in sentence


@pytest.mark.parametrize(("length", "nodes", "is_valid"), [(36, 10, True), (38, 10, False)])
def test_job_set_limits_the_length_of_pod_names(length: int, nodes: int, is_valid: bool) -> None:
    values = configuration(job("jobset"))
    values["training"]["jobs"] = {"j" * length: job("jobset", nodes=nodes)}
    assert (problems(values) == []) is is_valid
