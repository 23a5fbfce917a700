"""The node health controller: its permissions, pod and settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.manifests import Manifest
from infra.node_health import NodeHealthArgs, manifests
from infra.pods import GpuNodes
from infra.settings.node_health import NodeHealthSettings
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate
from recorder.node_health import parser
from tests.infra.examples import good, problems

CONFIGURATIONS = Path(__file__).parents[2] / "policies/config"
NODES = GpuNodes(resource="nvidia.com/gpu", node_selector={"nvidia.com/gpu.present": "true"})


def built(*, isolated: bool = True, **settings: Any) -> dict[str, Manifest]:
    return manifests(
        NodeHealthArgs(
            health=NodeHealthSettings.model_validate(settings),
            namespace="ml",
            image="registry/recorder@sha256:1",
            gpu_nodes=NODES,
            isolated=isolated,
        )
    )


def permissions(role: Manifest) -> set[tuple[str, str]]:
    return {(kind, verb) for r in role["rules"] for kind in r["resources"] for verb in r["verbs"]}


def test_controller_can_change_nodes_evict_pods_and_write_events() -> None:
    objects = built()
    nodes, pods, events = (objects[f"{name}-role"] for name in ("nodes", "pods", "events"))
    assert nodes["kind"] == "ClusterRole"
    assert permissions(nodes) == {("nodes", "list"), ("nodes", "patch"), ("nodes/status", "patch")}
    assert pods["metadata"]["namespace"] == "ml"
    assert permissions(pods) == {("pods", "list"), ("pods", "watch"), ("pods/eviction", "create")}
    assert events["metadata"]["namespace"] == "default"
    assert permissions(events) == {("events", "create")}
    for name in ("nodes", "pods", "events"):
        [subject] = objects[f"{name}-binding"]["subjects"]
        assert subject["namespace"] == "gpu-node-health"


def test_controller_has_a_separate_restricted_namespace() -> None:
    labels = built()["namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert built()["deployment"]["metadata"]["namespace"] == "gpu-node-health"


def test_only_one_controller_runs_at_a_time() -> None:
    spec = built()["deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_program_accepts_the_options_of_its_command() -> None:
    settings = {"slow_reports": 3, "prometheus": "http://prometheus:9090", "xids": [48, 79]}
    [container] = built(max_nodes=4, **settings)["deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    python, flag, module, *options = container["command"]
    assert (python, flag, module) == ("python3", "-m", "recorder.node_health")
    read = parser().parse_args(options)
    assert (read.max_nodes, read.slow_reports, read.xid) == (4, 3, [48, 79])
    assert (read.namespace, read.resource) == ("ml", "nvidia.com/gpu")


def test_isolated_controller_can_reach_only_the_api_server_and_prometheus() -> None:
    def ports(**settings: Any) -> set[tuple[int, str]]:
        spec = built(api_ports=[6443], **settings)["network"]["spec"]
        assert (spec["policyTypes"], "ingress" in spec) == (["Ingress", "Egress"], False)
        [rule] = spec["egress"]
        return {(each["port"], each["protocol"]) for each in rule["ports"]}

    assert ports() == {(6443, "TCP")}
    # DNS pods listen on 5353 on OpenShift.
    names = {(port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")}
    assert ports(prometheus="http://prometheus.monitoring:9090") == {
        *((6443, "TCP"), (9090, "TCP")),
        *names,
    }
    assert "network" not in built(isolated=False)


@pytest.mark.parametrize("environment", ["dev", "staging", "prod"])
def test_policies_accept_the_controller_only_in_its_namespace(environment: str) -> None:
    settings = json.loads((CONFIGURATIONS / f"{environment}.json").read_text())
    [registry, *_] = settings["image-registry-allowed"]["allowedRegistries"]

    def violated_rules(**changed: Any) -> set[str]:
        objects = built(**changed)
        pod = objects["deployment"]["spec"]["template"]["spec"]
        pod["containers"][0]["image"] = f"{registry}/recorder@sha256:{'3' * 64}"
        documents = [Document("objects.yaml", each, None) for each in objects.values()]
        return {
            found.rule
            for found in evaluate(documents, configure(settings, RULES), whole_stack=False)
        }

    assert violated_rules() == set()
    assert "no-hidden-token" in violated_rules(namespace="elsewhere")


def configured(**node_health: Any) -> dict[str, Any]:
    values = good()
    values["images"]["workloads"]["recorder"] = dict(values["images"]["workloads"]["training"])
    values["gpu"] = {"node_health": node_health}
    return values


def test_a_controller_with_its_image_is_accepted() -> None:
    assert problems(configured()) == []


def test_undeclared_image_is_reported() -> None:
    [problem] = problems(configured(image="nowhere"))
    assert "gpu-platform:gpu.node_health.image is 'nowhere'" in problem


def test_controller_namespace_must_be_unique() -> None:
    [problem] = problems(configured(namespace="ml"))
    assert "gpu-platform:gpu.node_health.namespace" in problem


def test_xids_without_prometheus_are_rejected() -> None:
    [problem] = problems(configured(xids=[79]))
    assert "sets xids, but not prometheus, from which Xid errors are read" in problem
