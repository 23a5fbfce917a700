from infra.manifests import Manifest
from tests.infra.jobs import job, kind_of, objects


def job_set(**changes: object) -> Manifest:
    runtime = kind_of(job("trainjob", **changes), "TrainingRuntime")
    found: Manifest = runtime["spec"]["template"]["spec"]
    return found


def inner_job_spec(**changes: object) -> Manifest:
    (replicated,) = job_set(**changes)["replicatedJobs"]
    found: Manifest = replicated["template"]["spec"]
    return found


def test_train_job_refers_to_its_runtime_without_overrides() -> None:
    group, runtime, found = objects(job("trainjob"))
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


def test_the_runtime_has_the_size_of_the_gang() -> None:
    runtime = kind_of(job("trainjob", nodes=4), "TrainingRuntime")
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 4}
    job_spec = inner_job_spec(nodes=4)
    assert (job_spec["completions"], job_spec["parallelism"]) == (4, 4)
    assert kind_of(job("trainjob", nodes=4), "PodGroup")["spec"]["minMember"] == 4


def test_job_and_container_have_the_names_that_trainer_expects() -> None:
    (replicated,) = job_set()["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert replicated["name"] == container["name"] == "node"
    labels = replicated["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def test_a_failed_pod_restarts_all_pods_but_a_fatal_exit_code_ends_the_run() -> None:
    job_spec = inner_job_spec(fatal_exit_codes=[3, 64])
    assert job_set(retries=5)["failurePolicy"] == {
        "maxRestarts": 5,
        "rules": [
            {
                "name": "fatalExitCode",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    assert job_spec["backoffLimit"] == 0
    fatal = job_spec["podFailurePolicy"]["rules"][0]
    assert fatal["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [3, 64]}


def test_pods_rendezvous_at_the_hostname_of_pod_0() -> None:
    (container,) = inner_job_spec()["template"]["spec"]["containers"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["MASTER_ADDR"]["value"] == "job-0123abcd-node-0-0.job-0123abcd"
    path = env["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert "--nnodes=2" in container["command"]


def test_suspended_run_sets_suspend_in_the_train_job() -> None:
    assert kind_of(job("trainjob", state="suspended"), "TrainJob")["spec"]["suspend"] is True
