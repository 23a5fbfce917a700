"""The stack recognizes its cluster, whatever the kubeconfig calls it."""

import json
from typing import Any

import pytest

from gitops.errors import BLOCKED, CHANGES, UNCHANGED
from tests.cluster.platform import Platform

SETTING = "gpu-platform:cluster"


def preview(cluster: Platform, **config: Any) -> tuple[int, str]:
    """Return status and output of a preview with other settings of the cluster."""
    cluster.edit(lambda settings: settings[SETTING].update(config))
    command = f"python -m gitops preview --stack {cluster.stack} --out preview"
    words = f"status=0; {command} || status=$?; echo status=$status; cat preview/comment.md"
    said = cluster.shell(words)
    return int(said.partition("status=")[2].split()[0]), said


@pytest.fixture
def configuration(cluster: Platform) -> Any:
    """The stack's configuration, restored afterwards."""
    before = cluster.stack_file.read_text()
    yield
    cluster.stack_file.write_text(before)


def test_a_renamed_context_replaces_nothing(cluster: Platform, configuration: Any) -> None:
    copy = cluster.state / "renamed.kubeconfig"
    context = f"gpu-platform-{cluster.nodes}"
    cluster.shell(
        f"cp $KUBECONFIG {copy} && "
        f"kubectl --kubeconfig {copy} config rename-context {context} renamed"
    )
    status, _ = preview(cluster, context="renamed", kubeconfig=str(copy))
    report = json.loads((cluster.checkout / "preview" / "report.json").read_text())
    assert status in (UNCHANGED, CHANGES)
    assert report["counts"]["replace"] == report["counts"]["delete"] == 0
    assert report["counts"]["create"] == 0


def test_a_stack_of_another_cluster_is_refused(cluster: Platform, configuration: Any) -> None:
    stack = f"--stack {cluster.stack}"
    original, copy = cluster.state / "original.json", cluster.state / "moved.json"
    cluster.shell(f"pulumi stack export {stack} --file {original}")
    state = json.loads(original.read_text())
    (root,) = (r for r in state["deployment"]["resources"] if r["type"] == "pulumi:pulumi:Stack")
    root["outputs"]["cluster"]["uid"] = "of-another-cluster"
    copy.write_text(json.dumps(state))
    cluster.shell(f"pulumi stack import {stack} --file {copy}")
    try:
        status, said = preview(cluster)
        assert status == BLOCKED
        assert "would move to another cluster" in said
    finally:
        cluster.shell(f"pulumi stack import {stack} --file {original}")
