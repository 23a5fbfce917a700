from dataclasses import replace

import pytest

from infra.kinds import BUILDERS, volcano
from infra.kinds.gang import Gang
from infra.manifests import Manifest
from kube.kinds import JobKind
from tests.infra.jobs import job, kind_of
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


def test_stopped_run_adds_a_command_that_terminates_its_job() -> None:
    job, command = volcano.build(replace(GANG, stop=True))
    assert job == build(GANG)
    assert command["apiVersion"] == "bus.volcano.sh/v1alpha1"
    assert command["action"] == "TerminateJob"
    assert command["target"]["name"] == job["metadata"]["name"]


@pytest.mark.parametrize("size", [1, 2, 4, 33])
def test_gang_size_equals_the_replicas_of_all_tasks(size: int) -> None:
    spec = build(replace(GANG, size=size))["spec"]
    assert spec["minAvailable"] == size
    assert sum(task["replicas"] for task in spec["tasks"]) == size


def test_job_has_queue_priority_and_restart_policies() -> None:
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


@pytest.mark.parametrize("kind", ["volcano", "mpi", "tensorflow"])
def test_tasks_set_the_defaults_that_the_webhook_would_add(kind: JobKind) -> None:
    (job,) = (each for each in BUILDERS[kind](GANG) if each["kind"] == "Job")
    assert [task["maxRetry"] for task in job["spec"]["tasks"]] == [3] * len(job["spec"]["tasks"])


def test_pulumi_neither_waits_for_the_job_nor_fails_if_it_exists() -> None:
    assert build(GANG)["metadata"]["annotations"] == {
        "pulumi.com/skipAwait": "true",
        "pulumi.com/patchForce": "true",
    }


def test_plugins_set_ranks_and_publish_hostnames_early() -> None:
    assert build(GANG)["spec"]["plugins"] == {
        "pytorch": ["--master=master", "--worker=worker", "--port=23456"],
        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
        "env": [],
    }


def test_all_pods_have_the_same_template_and_are_not_restarted_in_place() -> None:
    tasks = build(GANG)["spec"]["tasks"]
    assert [(task["name"], task["replicas"]) for task in tasks] == [("master", 1), ("worker", 3)]
    assert tasks[0]["template"] == tasks[1]["template"]
    assert tasks[0]["template"]["spec"]["restartPolicy"] == "Never"
    assert tasks[0]["template"]["spec"]["schedulerName"] == "volcano"


def test_pods_rendezvous_at_the_master() -> None:
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


def test_each_rendezvous_of_an_elastic_gang_uses_a_new_store() -> None:
    def variables(gang: Gang) -> list[str]:
        container = build(gang)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        return [variable["name"] for variable in container["env"]]

    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in variables(replace(GANG, min_size=2))
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in variables(GANG)


def test_policies_for_fatal_exit_codes_precede_those_for_events() -> None:
    policies = build(replace(GANG, fatal_exit_codes=(3, 64)))["spec"]["policies"]
    assert policies[:-1] == [
        {"exitCode": 3, "action": "TerminateJob"},
        {"exitCode": 64, "action": "TerminateJob"},
    ]


def test_job_can_succeed_with_its_first_pod() -> None:
    master, worker = build(replace(GANG, success="first"))["spec"]["tasks"]
    assert master["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    assert "policies" not in worker


def test_custom_command_is_unchanged_and_gets_the_gangs_variables() -> None:
    custom_gang = replace(
        GANG, custom_command=True, pod=replace(POD, command=["accelerate", "launch"])
    )
    container = build(custom_gang)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert container["command"] == ["accelerate", "launch"]
    assert (env["NNODES"], env["NPROC_PER_NODE"]) == ("4", "2")
    assert "pytorch" in build(custom_gang)["spec"]["plugins"]


def test_the_network_topology_applies_to_the_whole_job() -> None:
    topology = {"mode": "hard", "highestTierAllowed": 2}
    assert build(replace(GANG, network_topology=topology))["spec"]["networkTopology"] == topology


def spec_of(kind: JobKind, **changes: object) -> Manifest:
    found: Manifest = kind_of(job(kind, **changes), "Job")["spec"]
    return found


def test_every_pod_of_a_plain_job_runs_the_unchanged_command() -> None:
    (task,) = spec_of("plain", nodes=3, command=["./train", "--fast"])["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert task["replicas"] == 3
    assert container["command"] == ["./train", "--fast"]


def test_plugins_of_a_plain_job_provide_pod_index_and_peer_names() -> None:
    assert sorted(spec_of("plain")["plugins"]) == ["env", "svc"]


def test_plain_command_gets_variables_for_gang_size_and_run_directory() -> None:
    (task,) = spec_of("plain", nodes=4, min_nodes=2)["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (env["NNODES"], env["NPROC_PER_NODE"]) == ("2:4", "4")
    assert env["RUN_DIR"] == "/checkpoints/job-0123abcd"


def test_an_elastic_plain_job_starts_and_succeeds_with_its_minimum() -> None:
    job_spec = spec_of("plain", nodes=4, min_nodes=2)
    assert job_spec["minAvailable"] == job_spec["minSuccess"] == 2
    assert job_spec["tasks"][0]["minAvailable"] == 2
    assert job_spec["policies"][-1] == {"events": ["PodFailed"], "action": "RestartJob"}


def test_all_pods_of_tensorflow_are_workers_and_the_plugin_lists_them() -> None:
    job_spec = spec_of("tensorflow", nodes=3)
    (task,) = job_spec["tasks"]
    assert (task["name"], task["replicas"], job_spec["minAvailable"]) == ("worker", 3, 3)
    assert job_spec["plugins"]["tensorflow"] == ["--worker=worker", "--port=2222"]


def test_one_tensorflow_process_per_pod_uses_all_its_gpus() -> None:
    (container,) = spec_of("tensorflow")["tasks"][0]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python3", "-m", "examples.tensorflow"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_single_tensorflow_pod_needs_no_plugin() -> None:
    assert "plugins" not in spec_of("tensorflow", nodes=1)
