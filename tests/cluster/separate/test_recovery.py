"""Documented adoption of existing objects and recovery of a lost state, with a real API server."""

import shlex
from collections.abc import Iterator

import pytest
import yaml

from tests.cluster.platform import Platform
from tests.cluster.separate.test_move import STACK
from tests.readme import blocks

NAME = "recovered"
OBJECTS = {
    "namespace": NAME,
    "queues.scheduling.volcano.sh": NAME,
    "persistentvolume": NAME,
    "persistentvolumeclaim": "checkpoints",
}
CREATED_BY_HAND = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {NAME}}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {{name: {NAME}}}
spec: {{weight: 3}}
"""


@pytest.fixture
def stack(cluster_without_policies: Platform) -> Iterator[Platform]:
    """A cluster with a namespace and a queue, and a stack that declares both."""
    document = yaml.safe_dump({f"gpu-platform:{key}": value for key, value in STACK.items()})
    config = yaml.safe_load(document.replace("moved", NAME))
    context = cluster_without_policies.shell("kubectl config current-context").strip()
    config["gpu-platform:cluster"] = {"context": context}
    file = cluster_without_policies.checkout / f"Pulumi.{NAME}.yaml"
    file.write_text(yaml.safe_dump({"config": config}))
    cluster_without_policies.shell(
        f"kubectl create --filename=- <<< {shlex.quote(CREATED_BY_HAND)}"
    )
    cluster_without_policies.shell(f"pulumi stack init {NAME}")
    try:
        yield cluster_without_policies
    finally:
        cluster_without_policies.shell(f"pulumi destroy --yes --skip-preview --stack {NAME}")
        cluster_without_policies.shell(
            f"pulumi stack rm {NAME} --yes && kubectl delete namespace {NAME}"
        )


def uids(platform: Platform) -> dict[str, str]:
    return {
        kind: platform.kubectl("get", kind, name, "--namespace", NAME)["metadata"]["uid"]
        for kind, name in OBJECTS.items()
    }


def weight(platform: Platform) -> int:
    return int(platform.kubectl("get", "queues.scheduling.volcano.sh", NAME)["spec"]["weight"])


@pytest.mark.slow
def test_objects_are_adopted_and_a_lost_state_is_rebuilt(stack: Platform) -> None:
    page = stack.checkout / "docs" / "recovery.md"
    commands = (block.script for block in blocks(page) if not block.needs)
    adopt, lost = (script.replace("prod", NAME) for script in commands)
    namespace = stack.kubectl("get", "namespace", NAME)["metadata"]["uid"]
    preview = stack.shell(f"python -m gitops preview --stack {NAME} || true")
    assert f"are adopted: `Namespace {NAME}`, `Queue {NAME}`. The update" in preview
    refused = stack.shell(f"! pulumi up --yes --skip-preview --stack {NAME} 2>&1")
    assert "conflict" in refused
    assert "kubectl-create" in refused
    assert weight(stack) == 3
    stack.shell(adopt)
    before = uids(stack)
    assert before["namespace"] == namespace
    assert weight(stack) == 1

    stack.shell(f"pulumi stack rm --force --yes --preserve-config {NAME}")
    stack.shell(lost)
    assert uids(stack) == before
    stack.shell(f"pulumi preview --expect-no-changes --stack {NAME}")

    stack.shell(f"kubectl delete persistentvolumeclaim checkpoints --namespace {NAME}")
    stack.shell(f"kubectl delete persistentvolume {NAME}")
    stack.shell(f"pulumi up --yes --skip-preview --refresh --stack {NAME}")
    after = uids(stack)
    recreated = {kind for kind, uid in after.items() if uid != before[kind]}
    assert recreated == {"persistentvolume", "persistentvolumeclaim"}
