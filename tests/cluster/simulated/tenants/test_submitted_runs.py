"""Runs that a member of a team submits with only the rights of the team's Role."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.platform import Platform

JOB = {
    "queue": "research",
    "priority_class": "training",
    "nodes": 2,
    "gpus_per_node": 2,
    "cpu": 4,
    "memory": "16Gi",
    # No node has this label, so the run waits.
    "node_selector": {"example.com/zone": "nowhere"},
    "hyperparameters": {"model": "digits-net", "dataset": "digits", "epochs": 3},
}
CREDENTIALS = {"client-certificate": "crt", "client-key": "key"}
Member = Callable[[str], str]


def write_kubeconfig(cluster: Platform, user: str, group: str) -> None:
    """Write member.yaml, whose only credential is a certificate of a user with one group."""
    (authority,) = (cluster.state / cluster.nodes).rglob("pki/ca.key")
    signer = f"-CA {authority.with_suffix('.crt')} -CAkey {authority} -CAcreateserial -days 1"
    cluster.shell(
        f"openssl req -new -newkey rsa:2048 -nodes -keyout user.key -subj /O={group}/CN={user}"
        f" 2>/dev/null | openssl x509 -req {signer} -out user.crt 2>/dev/null"
    )
    config = yaml.safe_load(cluster.shell("kubectl config view --raw --output yaml"))
    files = {name: str(cluster.checkout / f"user.{ext}") for name, ext in CREDENTIALS.items()}
    for each in config["users"]:
        each["user"] = files
    (cluster.checkout / "member.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def member(cluster: Platform) -> Iterator[Member]:
    """Return the program's commands with the rights of the group `vision`."""
    before = cluster.stack_file.read_text()

    def bind(config: dict[str, Any]) -> None:
        config["gpu-platform:tenancy"]["groups"] = {"members": ["vision"]}

    cluster.edit(bind)
    cluster.shell("pulumi up --stack simulated --yes --skip-preview")
    write_kubeconfig(cluster, "ann", "vision")
    (cluster.checkout / "job.yaml").write_text(yaml.safe_dump({"waiting": JOB}))
    options = f"--namespace {cluster.namespace} --kubeconfig member.yaml"
    yield lambda command: f"python -m gpu_platform {command} {options}"
    cluster.stack_file.write_text(before)


@pytest.fixture(scope="module")
def run(cluster: Platform, member: Member) -> str:
    """The name of a run that was submitted."""
    return cluster.shell(member("run job.yaml")).strip()


def state(cluster: Platform, member: Member, run: str) -> str:
    (line,) = (line for line in cluster.shell(member("list")).splitlines() if line.startswith(run))
    return line


def test_a_submitted_run_waits_in_the_queue(cluster: Platform, member: Member, run: str) -> None:
    assert "waiting" in state(cluster, member, run)
    assert "already exists" in cluster.shell(f"{member('run job.yaml')} 2>&1")


def test_free_gpus_in_the_queue_are_shown_if_the_member_can_read_it(
    cluster: Platform, member: Member, run: str
) -> None:
    unread = cluster.shell(f"{member('run job.yaml --dry-run')} 2>&1 >/dev/null")
    assert f"{run}: the number of free nvidia.com/gpu in queue research is unknown" in unread
    cluster.shell(
        "kubectl create clusterrole vision-queues --verb=get"
        " --resource=queues.scheduling.volcano.sh --resource-name=research"
        " && kubectl create clusterrolebinding vision-queues --clusterrole=vision-queues"
        " --group=vision"
    )
    read = cluster.shell(f"{member('run job.yaml --dry-run')} 2>&1 >/dev/null")
    cluster.shell("kubectl delete clusterrolebinding,clusterrole vision-queues")
    queue = cluster.kubectl("get", "queues.scheduling.volcano.sh", "research")
    allocated = int(queue["status"]["allocated"].get("nvidia.com/gpu", 0))
    assert f"{run}: {32 - allocated} of 32 nvidia.com/gpu are left in queue research" in read


def test_a_run_is_suspended_and_resumed(cluster: Platform, member: Member, run: str) -> None:
    job = f"kubectl wait jobs.batch.volcano.sh/{run} -n {cluster.namespace} --timeout=600s"
    cluster.shell(member(f"suspend {run}"))
    cluster.shell(f"{job} --for=jsonpath={{.status.state.phase}}=Aborted")
    assert "suspended" in state(cluster, member, run)
    cluster.shell(member(f"resume {run}"))
    cluster.shell(f"{job} --for=jsonpath={{.status.state.phase}}=Pending")


def test_adding_the_job_to_the_stack_keeps_its_submitted_run(
    cluster: Platform, member: Member, run: str
) -> None:
    before = cluster.kubectl("get", "jobs.batch.volcano.sh", run, "-n", cluster.namespace)

    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:training"]["jobs"]["waiting"] = JOB

    cluster.edit(add)
    cluster.shell("pulumi up --stack simulated --yes --skip-preview")
    after = cluster.kubectl("get", "jobs.batch.volcano.sh", run, "-n", cluster.namespace)
    assert cluster.run_name("waiting") == run
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    templates = [[task["template"] for task in job["spec"]["tasks"]] for job in (before, after)]
    assert templates[0] == templates[1]


def test_run_is_followed_until_it_ends(cluster: Platform, member: Member) -> None:
    quick = {key: value for key, value in JOB.items() if key != "node_selector"}
    (cluster.checkout / "quick.yaml").write_text(yaml.safe_dump({"quick": quick}))
    name = cluster.shell(f"{member('run quick.yaml --follow')} 2>errors").splitlines()[0]
    errors = (cluster.checkout / "errors").read_text().splitlines()
    assert errors[-1] == f"{name}: succeeded"
    cluster.shell(member(f"stop {name}"))


def test_the_pod_group_of_a_stopped_run_is_deleted(cluster: Platform, member: Member) -> None:
    indexed = {**JOB, "kind": "indexed", "nodes": 1}
    (cluster.checkout / "indexed.yaml").write_text(yaml.safe_dump({"indexed": indexed}))
    name = cluster.shell(member("run indexed.yaml")).strip()
    groups = f"kubectl get podgroups -n {cluster.namespace} --output name"
    group = f"podgroup.scheduling.volcano.sh/{name}"
    assert group in cluster.shell(groups).splitlines()
    cluster.shell(member(f"stop {name}"))
    assert group not in cluster.shell(groups).splitlines()


def test_stopped_run_no_longer_exists(cluster: Platform, member: Member, run: str) -> None:
    cluster.shell(member(f"stop {run}"))
    output = cluster.shell(f"! {member(f'stop {run}')} 2>&1")
    assert f"has no run '{run}'" in output


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"queue": "nowhere"}, "queue is 'nowhere'"),
        ({"env": {"SETTING": "hf_" + "abcdEFGH" * 4 + "ab"}}, "mandatory rule no-literal-secrets"),
    ],
)
def test_unsupported_job_is_rejected_before_it_is_created(
    cluster: Platform, member: Member, job: dict[str, Any], message: str
) -> None:
    (cluster.checkout / "wrong.yaml").write_text(yaml.safe_dump({"wrong": JOB | job}))
    assert message in cluster.shell(f"! {member('run wrong.yaml')} 2>&1")
    assert "wrong" not in cluster.shell(member("list"))


def test_submission_to_another_namespace_is_denied(cluster: Platform, member: Member) -> None:
    command = member("run job.yaml").replace(cluster.namespace, "default")
    assert "cannot get resource" in cluster.shell(f"! {command} 2>&1")
