from infra.manifests import Manifest
from kube.kinds.record import RENDEZVOUS_PORT
from tests.infra.jobs import job, kind_of, objects


def spec(**changes: object) -> Manifest:
    found: Manifest = kind_of(job("pytorch", **changes), "PyTorchJob")["spec"]
    return found


def container(**changes: object) -> Manifest:
    (found,) = spec(**changes)["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    return dict(found)


def test_master_and_workers_add_up_to_the_gang() -> None:
    replicas = spec(nodes=4)["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {
        "Master": 1,
        "Worker": 3,
    }
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    assert list(spec(nodes=1)["pytorchReplicaSpecs"]) == ["Master"]


def test_run_policy_contains_the_job_wide_settings() -> None:
    job_spec = spec(nodes=4, retries=5, deadline_seconds=60)
    assert job_spec["nprocPerNode"] == "4"
    assert job_spec["runPolicy"] == {
        "cleanPodPolicy": "Running",
        # five failures with four pods each; one more exceeds the limit
        "backoffLimit": 21,
        "activeDeadlineSeconds": 60,
        "schedulingPolicy": {"minAvailable": 4, "queue": "research", "priorityClass": "training"},
    }


def test_pods_join_a_podgroup_with_the_size_of_the_gang() -> None:
    group, found = objects(job("pytorch", nodes=4))
    template = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert (group["kind"], group["spec"]["minMember"]) == ("PodGroup", 4)
    assert group["spec"]["queue"] == "research"
    assert group["metadata"]["name"] == found["metadata"]["name"]
    name = template["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    assert name == group["metadata"]["name"]
    assert template["spec"]["schedulerName"] == "volcano"


def test_the_container_has_the_name_that_the_operator_expects() -> None:
    assert container()["name"] == "pytorch"


def test_pods_rendezvous_at_the_address_from_the_operator() -> None:
    command = container()["command"]
    assert command[:5] == ["python3", "-m", "training.launch", "--nnodes=2", "--nproc-per-node=4"]
    assert "--node-rank=$(RANK)" in command
    assert "--master-addr=$(MASTER_ADDR)" in command


def test_suspended_run_sets_suspend_in_the_run_policy() -> None:
    assert spec(state="suspended")["runPolicy"]["suspend"] is True
    assert "suspend" not in spec()["runPolicy"]


def test_elastic_job_has_only_workers_that_rendezvous_at_worker_0() -> None:
    job_spec = spec(nodes=4, min_nodes=2, retries=7)
    (worker,) = job_spec["pytorchReplicaSpecs"].values()
    (container_spec,) = worker["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container_spec["env"]}
    assert job_spec["elasticPolicy"] == {
        "minReplicas": 2,
        "maxReplicas": 4,
        "maxRestarts": 7,
        "rdzvBackend": "c10d",
        "rdzvId": "job-0123abcd",
        "rdzvPort": RENDEZVOUS_PORT,
    }
    assert job_spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == 2
    assert worker["replicas"] == 4
    assert env["MASTER_ADDR"] == "job-0123abcd-worker-0"
    assert "--nnodes=2:4" in container_spec["command"]
    assert "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)" in container_spec["command"]
