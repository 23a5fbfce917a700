import shlex
import subprocess
from typing import Any

import pytest

from infra.manifests import Manifest
from kube.names import PROMETHEUS_ANNOTATION
from tests.infra.jobs import job, kind_of


def spec(**changes: object) -> Manifest:
    found: Manifest = kind_of(job("mpi", **changes), "Job")["spec"]
    return found


def containers(**changes: object) -> dict[str, Manifest]:
    return {
        task["name"]: task["template"]["spec"]["containers"][0] for task in spec(**changes)["tasks"]
    }


def test_the_launcher_belongs_to_the_gang() -> None:
    job_spec = spec(nodes=4)
    assert {task["name"]: task["replicas"] for task in job_spec["tasks"]} == {
        "launcher": 1,
        "worker": 4,
    }
    assert job_spec["minAvailable"] == 5


def test_plugins_generate_ssh_keys_and_the_launchers_host_list() -> None:
    assert spec()["plugins"] == {
        "mpi": ["--master=launcher", "--worker=worker", "--port=2222"],
        "ssh": ["--ssh-key-file-path=/ssh"],
        "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"],
        "env": [],
    }


def test_job_completes_with_the_launcher_since_sshd_never_exits() -> None:
    policies = {task["name"]: task.get("policies") for task in spec()["tasks"]}
    assert policies == {
        "launcher": [{"event": "TaskCompleted", "action": "CompleteJob"}],
        "worker": None,
    }
    assert {"exitCode": 64, "action": "TerminateJob"} in spec()["policies"]


def test_only_workers_have_gpus_and_the_launcher_has_the_configured_size() -> None:
    found = containers(launcher={"cpu": "2", "memory": "3Gi"})
    assert found["worker"]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert found["launcher"]["resources"] == {
        "requests": {"cpu": "2", "memory": "3Gi"},
        "limits": {"memory": "3Gi"},
    }


def test_only_workers_are_scraped() -> None:
    hyperparameters = {"model": "digits-net", "dataset": "digits", "metrics_port": 9400}
    job_spec = spec(hyperparameters=hyperparameters, annotations={"a": "b"})
    found = {task["name"]: task["template"]["metadata"] for task in job_spec["tasks"]}
    worker, launcher = found["worker"]["annotations"], found["launcher"]["annotations"]
    assert worker.keys() - launcher.keys() == {
        f"{PROMETHEUS_ANNOTATION}{name}" for name in ("scrape", "port", "path")
    }
    assert launcher["a"] == "b"


def run_launcher(command: list[str], hosts: str) -> list[str]:
    """Return the launcher's mpirun arguments, with stubs for `mpirun` and `ssh`."""
    script = (
        command[2].replace("exec mpirun", "exec printf '%s\\n'").replace("until ssh", "until true")
    )
    completed = subprocess.run(
        [*command[:2], script, *command[3:]],
        env={"MPI_HOST": hosts, "SLOTS": "4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return completed.stdout.splitlines()


def test_the_launcher_starts_a_process_for_each_gpu_of_each_host() -> None:
    started = run_launcher(containers()["launcher"]["command"], "a.run,b.run")
    assert started[:4] == ["--host", "a.run:4,b.run:4", "-np", "8"]
    assert started[-4:] == ["--model=digits-net", "--dataset=digits", *started[-2:]]


def test_launcher_passes_variables_that_ssh_sessions_lack() -> None:
    found = containers(
        env={"LOUD": "1"}, env_from={"TOKEN": {"secret": "hub", "key": "token"}}, omp_threads=3
    )
    started = run_launcher(found["launcher"]["command"], "a.run")
    passed_variables = {started[i + 1] for i, part in enumerate(started) if part == "-x"}
    assert {"PATH", "HOME", "MASTER_ADDR", "MASTER_PORT", "RUN_NAME"} <= passed_variables
    assert {"LOUD", "TOKEN", "OMP_NUM_THREADS", "SLOTS"} <= passed_variables


def test_each_process_gets_the_name_of_its_node() -> None:
    found = containers()
    started = run_launcher(found["launcher"]["command"], "a.run")
    assert "NODE_NAME" not in started
    assert found["worker"]["command"][-1].endswith(" -o SetEnv=NODE_NAME=$NODE_NAME")
    custom = containers(command=["python3", "program.py"], hyperparameters=None)
    assert "NODE_NAME" not in custom["worker"]["command"][-1]


@pytest.mark.parametrize(
    "network",
    [
        {},
        {"rdma": {"resource": "rdma/hca", "interface": "ib0"}},
        {"rdma": {"resource": "rdma/hca", "interface": "ib0", "hca": "mlx5"}},
        {
            "rdma": {"resource": "rdma/hca", "interface": "ib0", "hca": "mlx5"},
            "nccl": {"network": "infiniband"},
        },
    ],
)
def test_every_variable_that_the_launcher_passes_has_a_value(network: dict[str, Any]) -> None:
    launcher = containers(**network)["launcher"]
    started = run_launcher(launcher["command"], "a.run")
    passed_variables = {started[i + 1] for i, part in enumerate(started) if part == "-x"}
    env = {variable["name"]: variable.get("value") for variable in launcher["env"]}
    # PATH comes from the image, MASTER_ADDR from the launcher's script.
    assert passed_variables - env.keys() == {"PATH", "MASTER_ADDR"}
    if rdma := network.get("rdma"):
        assert env["NCCL_SOCKET_IFNAME"] == rdma["interface"]
        assert env.get("NCCL_IB_HCA") == rdma.get("hca")


def test_processes_get_torchruns_rank_variables() -> None:
    started = run_launcher(containers()["launcher"]["command"], "a.run,b.run")
    process_command = started[started.index("sh") :]
    program = [*process_command[: process_command.index("python3")], "env"]
    completed = subprocess.run(
        program,
        env={
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            "SLOTS": "4",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in completed.stdout.splitlines())
    assert (found["RANK"], found["WORLD_SIZE"]) == ("5", "8")
    assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == ("1", "4")
    assert found["GROUP_RANK"] == "1"


def test_custom_command_replaces_the_training_program() -> None:
    command = containers(command=["./solve", "a b"], hyperparameters=None)["launcher"]["command"]
    assert command[-2:] == ["./solve", "a b"]
    assert shlex.split(command[2])


def test_launcher_is_not_counted_when_workers_are_spread() -> None:
    templates = {task["name"]: task["template"] for task in spec()["tasks"]}
    (spread,) = templates["worker"]["spec"]["topologySpreadConstraints"]
    selected_labels = spread["labelSelector"]["matchLabels"].items()
    assert selected_labels <= templates["worker"]["metadata"]["labels"].items()
    assert not selected_labels <= templates["launcher"]["metadata"]["labels"].items()
    assert "topologySpreadConstraints" not in templates["launcher"]["spec"]


def test_launcher_does_not_request_the_workers_ephemeral_storage() -> None:
    found = containers(ephemeral_storage="20Gi")
    assert found["worker"]["resources"]["limits"]["ephemeral-storage"] == "20Gi"
    assert "ephemeral-storage" not in found["launcher"]["resources"]["limits"]
