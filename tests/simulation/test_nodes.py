"""Simulated nodes and the kubectl commands that create them."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.spec import Kind, cluster_spec
from simulation.configuration import SIMULATED_ANNOTATION
from simulation.nodes import NEW_NODE_TAINT, ensure, manifest
from tests.devcluster.conftest import Install


def node(kind: Kind) -> dict[str, Any]:
    document = manifest(3, "A100", tainted=kind is Kind.REAL)
    return json.loads(json.dumps(document))


def test_simulated_nodes_are_tainted_next_to_real_nodes() -> None:
    taint = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
    assert node(Kind.REAL)["spec"]["taints"] == [taint]


def test_simulated_nodes_are_not_tainted_without_real_nodes() -> None:
    assert node(Kind.SIMULATED)["spec"]["taints"] == []


@pytest.mark.parametrize("kind", Kind)
def test_simulated_nodes_are_managed_by_kwok(kind: Kind) -> None:
    key, value = SIMULATED_ANNOTATION.split("=")
    assert node(kind)["metadata"]["annotations"] == {key: value}


@pytest.mark.parametrize("kind", Kind)
def test_a_simulated_node_offers_eight_gpus(kind: Kind) -> None:
    simulated = node(kind)
    assert simulated["metadata"]["name"] == "simulated-3"
    assert simulated["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert simulated["status"]["allocatable"] == simulated["status"]["capacity"]
    assert simulated["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


def test_ensure_waits_until_the_applied_nodes_are_schedulable(
    tmp_path: Path, install: Install
) -> None:
    (tmp_path / "answers").write_text(
        f"True \\nUnknown \\n\nTrue \\nTrue {NEW_NODE_TAINT} {NEW_NODE_TAINT}\\n\n"
        "True \\nTrue example.com/own\\n\n"
    )
    kubectl = install(
        "kubectl",
        f"""echo "$1" >> {tmp_path}/calls
        if [ "$1" = apply ]; then cat > {tmp_path}/applied; fi
        if [ "$1" = get ]; then
          printf "$(sed -n "$(grep -c get {tmp_path}/calls)p" {tmp_path}/answers)"
        fi""",
    )
    ensure(2, "A100", [str(kubectl)])
    applied = json.loads((tmp_path / "applied").read_text())
    assert [item["metadata"]["name"] for item in applied["items"]] == ["simulated-0", "simulated-1"]
    assert (tmp_path / "calls").read_text().split() == ["apply", "get", "get", "get"]


def test_no_request_is_sent_if_no_nodes_are_simulated() -> None:
    ensure(0, "A100", ["/no/such/kubectl"])


def test_four_nodes_are_simulated_by_default_if_there_are_no_real_nodes() -> None:
    assert cluster_spec(Kind.SIMULATED).simulated_nodes == 4
    assert cluster_spec(Kind.SIMULATED, 0).simulated_nodes == 0
    assert cluster_spec(Kind.REAL).simulated_nodes == 0
    assert cluster_spec(Kind.REAL, 3).simulated_nodes == 3
