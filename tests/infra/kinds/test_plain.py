from infra.manifests import Manifest
from tests.infra.jobs import job, kind_of


def spec(**changes: object) -> Manifest:
    found: Manifest = kind_of(job("plain", **changes), "Job")["spec"]
    return found


def test_every_pod_runs_the_unchanged_command() -> None:
    (task,) = spec(nodes=3, command=["./train", "--fast"])["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert task["replicas"] == 3
    assert container["command"] == ["./train", "--fast"]


def test_plugins_provide_pod_index_and_peer_names() -> None:
    assert sorted(spec()["plugins"]) == ["env", "svc"]


def test_command_gets_variables_for_gang_size_and_run_directory() -> None:
    (container,) = spec(nodes=4, min_nodes=2)["tasks"][0]["template"]["spec"]["containers"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (env["NNODES"], env["NPROC_PER_NODE"]) == ("2:4", "4")
    assert env["RUN_DIR"] == "/checkpoints/job-0123abcd"


def test_an_elastic_job_starts_and_succeeds_with_its_minimum() -> None:
    job_spec = spec(nodes=4, min_nodes=2)
    assert job_spec["minAvailable"] == job_spec["minSuccess"] == 2
    assert job_spec["tasks"][0]["minAvailable"] == 2
    assert job_spec["policies"][-1] == {"events": ["PodFailed"], "action": "RestartJob"}
