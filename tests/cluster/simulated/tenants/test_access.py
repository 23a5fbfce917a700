"""Pipelines with the rights that `python -m gitops access` prints."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.platform import Platform

LIMITED = "only dry runs are allowed"
PULUMI = "pulumi {} --stack simulated --non-interactive"
Group = Callable[[str], str]


@pytest.fixture(scope="module")
def as_group(cluster: Platform) -> Iterator[Group]:
    """Return a function for commands with a group's rights, and change the queue's weight."""
    before = cluster.stack_file.read_text()
    folder = cluster.checkout
    options = "--stack simulated --previewers ci --updaters cd --snapshotters viewers"
    cluster.shell(f"python -m gitops access {options} >rights.yaml")
    cluster.shell("kubectl apply --filename rights.yaml")
    admin = yaml.safe_load(cluster.shell("kubectl config view --raw --output yaml"))

    def command(group: str) -> str:
        for user in admin["users"]:
            user["user"] |= {"as": "ann", "as-groups": [group, "system:authenticated"]}
        (folder / f"{group}.yaml").write_text(yaml.safe_dump(admin))
        return f"KUBECONFIG={folder / group}.yaml"

    def change(config: dict[str, Any]) -> None:
        config["gpu-platform:volcano"]["queues"]["research"]["weight"] = 7

    cluster.edit(change)
    yield command
    cluster.stack_file.write_text(before)
    cluster.shell("kubectl delete --filename rights.yaml")


def weight(cluster: Platform) -> int:
    return int(cluster.kubectl("get", "queue.scheduling.volcano.sh", "research")["spec"]["weight"])


def test_previewer_sees_every_change_but_makes_none(cluster: Platform, as_group: Group) -> None:
    previewer = as_group("ci")
    assert "1 to update" in cluster.shell(f"{previewer} {PULUMI.format('preview')}")
    update = PULUMI.format("up --yes --skip-preview")
    assert LIMITED in cluster.shell(f"! {previewer} {update} 2>&1")
    assert weight(cluster) == 1


@pytest.mark.parametrize(
    "command",
    [
        'patch queue.scheduling.volcano.sh research --type=merge -p \'{"spec":{"weight":9}}\'',
        "create deployment other --image=registry.example.com/a:1.0",
        "create rolebinding other --clusterrole=edit --group=ci",
        "create clusterrolebinding other --clusterrole=cluster-admin --group=ci",
        "delete deployment digits",
        "get secrets --all-namespaces",
        "delete validatingadmissionpolicy gpu-platform-preview-simulated",
        "label validatingadmissionpolicybinding gpu-platform-preview-simulated a=b",
    ],
)
def test_previewer_is_denied_everything_else(
    cluster: Platform, as_group: Group, command: str
) -> None:
    denied_command = f"{as_group('ci')} kubectl --namespace {cluster.namespace} {command}"
    output = cluster.shell(f"! {denied_command} 2>&1")
    assert LIMITED in output or "forbidden" in output.lower()


def test_snapshotter_can_only_read_what_the_scheduler_reads(
    cluster: Platform, as_group: Group
) -> None:
    output = cluster.shell(f"{as_group('viewers')} python -m gitops snapshot --out seen.yaml 2>&1")
    # Simulated nodes run no pods, so no Deployment or ConfigMap exists for the scheduler.
    (warning,) = (line for line in output.splitlines() if line.startswith("warning: "))
    assert "configuration of Volcano's scheduler was not found" in warning
    seen = yaml.safe_load((cluster.checkout / "seen.yaml").read_text())
    assert seen["nodes"]
    assert {queue["name"] for queue in seen["queues"]} >= {"research"}
    for request in ("get secrets --all-namespaces", "delete pods --all --dry-run=server"):
        refused = f"! {as_group('viewers')} kubectl --namespace {cluster.namespace} {request} 2>&1"
        assert "forbidden" in cluster.shell(refused)


def test_updater_can_update_the_stack_but_not_objects_of_others(
    cluster: Platform, as_group: Group
) -> None:
    updater = as_group("cd")
    cluster.shell(f"{updater} {PULUMI.format('up --yes --skip-preview')}")
    assert weight(cluster) == 7
    for request in (
        "delete namespaces/kube-system",
        "patch queues.scheduling.volcano.sh/default",
        "list secrets",
        "create clusterrolebindings.rbac.authorization.k8s.io",
    ):
        answer = cluster.shell(f"{updater} kubectl auth can-i {request} 2>&1 || true")
        assert answer.splitlines()[-1] == "no", request
