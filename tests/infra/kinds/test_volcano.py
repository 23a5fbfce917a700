from dataclasses import replace
from types import ModuleType

import pytest

from infra.kinds import mpi, tensorflow, volcano
from infra.kinds.gang import Gang
from infra.manifests import Manifest
from tests.infra.test_pods import POD

GANG = Gang(
    name="digits-0123abcd",
    namespace="ml",
    queue="research",
    size=4,
    processes=2,
    pod=replace(POD, command=["-m", "training", "--epochs=3"]),
    retries=5,
    priority_class="high",
)


def build(gang: Gang) -> Manifest:
    (job,) = volcano.build(gang)
    return job


def test_a_stopped_run_is_terminated_by_a_command_to_its_job() -> None:
    job, command = volcano.build(replace(GANG, stop=True))
    assert job == build(GANG)
    assert command["apiVersion"] == "bus.volcano.sh/v1alpha1"
    assert command["action"] == "TerminateJob"
    assert command["target"]["name"] == job["metadata"]["name"]


@pytest.mark.parametrize("size", [1, 2, 4, 33])
def test_a_gang_is_as_large_as_its_tasks(size: int) -> None:
    spec = build(replace(GANG, size=size))["spec"]
    assert spec["minAvailable"] == size
    assert sum(task["replicas"] for task in spec["tasks"]) == size


def test_the_job_has_its_queue_and_its_retries() -> None:
    job = build(GANG)
    assert job["apiVersion"] == "batch.volcano.sh/v1alpha1"
    assert job["kind"] == "Job"
    assert job["metadata"]["name"] == "digits-0123abcd"
    assert {key: job["spec"][key] for key in job["spec"] if key not in ("tasks", "plugins")} == {
        "schedulerName": "volcano",
        "queue": "research",
        "minAvailable": 4,
        "maxRetry": 5,
        "priorityClassName": "high",
        "policies": [
            {"exitCode": 64, "action": "TerminateJob"},
            {"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"},
        ],
    }


@pytest.mark.parametrize("kind", [volcano, mpi, tensorflow])
def test_tasks_state_what_the_webhook_would_add(kind: ModuleType) -> None:
    (job,) = (each for each in kind.build(GANG) if each["kind"] == "Job")
    assert [task["maxRetry"] for task in job["spec"]["tasks"]] == [3] * len(job["spec"]["tasks"])


def test_pulumi_neither_awaits_the_job_nor_fails_if_it_exists() -> None:
    assert build(GANG)["metadata"]["annotations"] == {
        "pulumi.com/skipAwait": "true",
        "pulumi.com/patchForce": "true",
    }


def test_the_plugins_set_ranks_and_publish_host_names_early() -> None:
    assert build(GANG)["spec"]["plugins"] == {
        "pytorch": ["--master=master", "--worker=worker", "--port=23456"],
        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
        "env": [],
    }


def test_all_pods_are_equal_and_are_not_restarted_in_place() -> None:
    tasks = build(GANG)["spec"]["tasks"]
    assert [(task["name"], task["replicas"]) for task in tasks] == [("master", 1), ("worker", 3)]
    assert tasks[0]["template"] == tasks[1]["template"]
    assert tasks[0]["template"]["spec"]["restartPolicy"] == "Never"
    assert tasks[0]["template"]["spec"]["schedulerName"] == "volcano"


def test_the_pods_meet_at_the_master() -> None:
    template = build(GANG)["spec"]["tasks"][0]["template"]
    assert template["spec"]["containers"][0]["command"] == [
        "python3",
        "-m",
        "training.launch",
        "--nnodes=4",
        "--nproc-per-node=2",
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
        "-m",
        "training",
        "--epochs=3",
    ]


def test_a_single_node_needs_no_rendezvous() -> None:
    spec = build(replace(GANG, size=1))["spec"]
    (task,) = spec["tasks"]
    command = task["template"]["spec"]["containers"][0]["command"]
    assert "plugins" not in spec
    assert "--standalone" in command
    assert not any("$(" in part for part in command)


def test_an_elastic_gang_starts_with_its_minimum_and_its_master() -> None:
    spec = build(replace(GANG, min_size=2))["spec"]
    assert {task["name"]: task["minAvailable"] for task in spec["tasks"]} == {
        "master": 1,
        "worker": 1,
    }
    assert (spec["minAvailable"], spec["minSuccess"]) == (2, 2)
    assert sum(task["replicas"] for task in spec["tasks"]) == 4


def test_an_elastic_gang_keeps_running_when_a_pod_is_evicted() -> None:
    spec = build(replace(GANG, min_size=2))["spec"]
    command = spec["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert spec["policies"][-1] == {"events": ["PodFailed"], "action": "RestartJob"}
    assert command[3:9] == [
        "--nnodes=2:4",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=$(MASTER_ADDR):$(MASTER_PORT)",
        "--rdzv-id=digits-0123abcd",
        "--max-restarts=5",
    ]


def test_the_processes_of_an_elastic_gang_meet_in_a_fresh_store_each_time() -> None:
    def variables(gang: Gang) -> list[str]:
        container = build(gang)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        return [variable["name"] for variable in container["env"]]

    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in variables(replace(GANG, min_size=2))
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in variables(GANG)


def test_each_fatal_exit_code_ends_the_job_and_precedes_the_events() -> None:
    policies = build(replace(GANG, fatal_exit_codes=(3, 64)))["spec"]["policies"]
    assert policies[:-1] == [
        {"exitCode": 3, "action": "TerminateJob"},
        {"exitCode": 64, "action": "TerminateJob"},
    ]


def test_a_job_may_succeed_with_its_first_pod() -> None:
    master, worker = build(replace(GANG, success="first"))["spec"]["tasks"]
    assert master["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    assert "policies" not in worker


def test_a_custom_command_is_unchanged_and_has_the_gangs_variables() -> None:
    own = replace(GANG, custom_command=True, pod=replace(POD, command=["accelerate", "launch"]))
    container = build(own)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert container["command"] == ["accelerate", "launch"]
    assert (env["NNODES"], env["NPROC_PER_NODE"]) == ("4", "2")
    assert "pytorch" in build(own)["spec"]["plugins"]


def test_the_network_topology_applies_to_the_whole_job() -> None:
    topology = {"mode": "hard", "highestTierAllowed": 2}
    assert build(replace(GANG, network_topology=topology))["spec"]["networkTopology"] == topology
