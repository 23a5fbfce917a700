"""Records of custom kinds in the configuration."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kube.workloads import WORKLOAD_KINDS
from kube.workloads.record import steps
from policies.binding import Binding
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate
from policies.resources import Resource
from policies.rule import ConfigurationError
from policies.views import View
from tests.policies import manifests
from tests.policies.harness import evaluate_rule

ROOT = Path(__file__).parents[2]
CONTAINER = {
    "name": "main",
    "image": "registry.example.com/a:latest",
    "resources": {"limits": {"nvidia.com/gpu": 8}},
}
TRAINER = {
    "apiVersion": "example.com/v1",
    "kind": "Trainer",
    "metadata": {"name": "digits", "namespace": "team"},
    "spec": {"queue": "team", "workers": [{"container": CONTAINER, "replicas": 4}]},
}
NAME = "Trainer.example.com"


def documented() -> dict[str, Any]:
    """Return the example from docs/policies.md."""
    text = (ROOT / "docs" / "policies.md").read_text()
    return next(
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        if '"kinds"' in block
    )


def findings(config: dict[str, Any], manifest: Any = None) -> dict[str, str]:
    found = evaluate([Document("a.yaml", manifest or TRAINER, None)], configure(config, RULES))
    return {item.rule: item.message for item in found if item.mandatory}


def test_recorded_kind_is_no_longer_unknown() -> None:
    assert "kind-known" in findings({})
    assert "kind-known" not in findings(documented())


def test_rules_evaluate_the_containers_of_a_recorded_kind() -> None:
    found = findings(documented())
    assert "spec.workers[0].container.image" in found["image-tag-fixed"]
    assert "spec.workers[0].container" in found["run-as-non-root"]


def test_budget_counts_the_pods_of_a_recorded_kind() -> None:
    config = {**documented(), "gpu-budget": {"maxGpus": 31}}
    assert "found 32 GPUs" in findings(config)["gpu-budget"]


PRIVILEGED_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a"},
    "spec": {"hostPID": True, "containers": [CONTAINER]},
}


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ({"worker": {"resources": {"limits": {"nvidia.com/gpu": 8}}}}, "gpu-budget"),
        ({"workers": [{"gpus": {"nvidia.com/gpu": 8}}]}, "gpu-budget"),
        ({"gpus": [{"type": "nvidia.com/gpu", "number": 8}]}, "gpu-budget"),
        ({"gpus": ["nvidia.com/gpu"]}, "gpu-budget"),
        ({"gpu": "nvidia.com/gpu"}, "gpu-budget"),
        ({"worker": {"resources": {"limits": {"gpu": "8"}}}}, "gpu-budget"),
        ({"worker": {"resources": {"gpu": {"count": 8}}}}, "gpu-budget"),
        ({"worker": {"securityContext": {"privileged": True}}}, "not-privileged"),
        ({"worker": {"hostPID": True}}, "no-host-namespaces"),
        ({"worker": {"modelUri": "oci://example.com/model:latest"}}, "image-tag-fixed"),
        ({"example.com/worker": CONTAINER}, "image-tag-fixed"),
        ({"files": {"pod.yaml": json.dumps(PRIVILEGED_POD)}}, "no-host-namespaces"),
        ({"files": [PRIVILEGED_POD]}, "no-host-namespaces"),
    ],
    ids=[
        *("limits", "map of resources", "list of resources", "list of names", "name"),
        *("limit without a resource name", "number of GPUs", "container", "pod", "model"),
        *("key with dots", "manifest as text", "manifest"),
    ],
)
def test_proposed_record_makes_rules_read_the_object(spec: dict[str, Any], rule: str) -> None:
    manifest = {**TRAINER, "spec": spec}
    record = findings({}, manifest)["kind-known"].split('such as "kinds": ')[1].splitlines()[0]
    found = findings({"kinds": json.loads(record), "gpu-budget": {"maxGpus": 0}}, manifest)
    assert "kind-known" not in found
    assert rule in found


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 2, "roles": [{"replicas": 3, "pod": {"containers": [CONTAINER]}}]},
        {"replicas": 2, "workers": [{**CONTAINER, "replicas": 3}]},
        {"replicas": 6, "worker": {"resources": CONTAINER["resources"]}},
    ],
    ids=["pod", "container", "accelerator"],
)
def test_proposed_record_counts_the_replicas(spec: dict[str, Any]) -> None:
    manifest = {**TRAINER, "spec": spec}
    record = findings({}, manifest)["kind-known"].split('such as "kinds": ')[1].splitlines()[0]
    found = findings({"kinds": json.loads(record), "gpu-budget": {"maxGpus": 0}}, manifest)
    assert "found 48 GPUs" in found["gpu-budget"]


TEMPLATE = {"template": {"spec": {"containers": [CONTAINER]}}}
RUNNERS = "actions.github.com/v1alpha1"
GROVE = "grove.io/v1alpha1"
ROLES = "workloads.x-k8s.io/v1alpha2"
ENTRY_AND_WORKERS = {"entryTemplate": TEMPLATE["template"], "workerReplicas": 4} | {
    "workerTemplate": TEMPLATE["template"]
}


def cliques(member: str, scaling: dict[str, Any]) -> dict[str, Any]:
    """Return a PodCliqueSet with two replicas, three pods each, and a scaling group."""
    clique = {"name": "a", "spec": {"replicas": 3, "podSpec": {"containers": [CONTAINER]}}}
    group = {"name": "g", "cliqueNames": [member], **scaling}
    return {"replicas": 2, "template": {"cliques": [clique], "podCliqueScalingGroups": [group]}}


@pytest.mark.parametrize(
    ("api", "kind", "spec", "gpus"),
    [
        (
            "sagemaker.amazonaws.com/v1",
            "HyperPodPyTorchJob",
            {"replicaSpecs": [{"replicas": 2, "maxReplicas": 3, **TEMPLATE}]},
            "24",
        ),
        (
            "orchestration.aibrix.ai/v1alpha1",
            "RoleSet",
            {"roles": [{"replicas": 2, "podGroupSize": 3, **TEMPLATE}]},
            "48",
        ),
        (
            "orchestration.aibrix.ai/v1alpha1",
            "StormService",
            {"replicas": 3, "template": {"spec": {"roles": [{"replicas": 2, **TEMPLATE}]}}},
            "48",
        ),
        (
            "orchestration.aibrix.ai/v1alpha1",
            "RayClusterFleet",
            {"replicas": 2, "template": {"spec": {"headGroupSpec": TEMPLATE}}},
            "16",
        ),
        (
            "agents.x-k8s.io/v1beta1",
            "Sandbox",
            {"podTemplate": {"spec": {"containers": [CONTAINER]}}},
            "8",
        ),
        (
            "extensions.agents.x-k8s.io/v1beta1",
            "SandboxTemplate",
            {"podTemplate": {"spec": {"containers": [CONTAINER]}}},
            "an unlimited number of",
        ),
        (GROVE, "PodCliqueSet", cliques("b", {"replicas": 9}), "48"),
        (GROVE, "PodCliqueSet", cliques("a", {"replicas": 2}), "96"),
        (GROVE, "PodCliqueSet", cliques("a", {"scaleConfig": {"maxReplicas": 4}}), "192"),
        (
            "workload.serving.volcano.sh/v1alpha1",
            "ModelServing",
            {"replicas": 2, "template": {"roles": [{"replicas": 3, **ENTRY_AND_WORKERS}]}},
            "240",
        ),
        (
            ROLES,
            "RoleBasedGroup",
            {"roles": [{"replicas": 2, "standalonePattern": TEMPLATE}]},
            "16",
        ),
        (
            ROLES,
            "RoleBasedGroup",
            {"roles": [{"replicas": 2, "leaderWorkerPattern": {"size": 3, **TEMPLATE}}]},
            "48",
        ),
        (
            ROLES,
            "RoleBasedGroup",
            {
                "roles": [
                    {
                        "replicas": 2,
                        "customComponentsPattern": {"components": [{"size": 4, **TEMPLATE}]},
                    }
                ]
            },
            "64",
        ),
        (
            "workloads.x-k8s.io/v1alpha1",
            "RoleBasedGroup",
            {"roles": [{"replicas": 2, "leaderWorkerSet": {"size": 3}, **TEMPLATE}]},
            "48",
        ),
        (
            ROLES,
            "RoleBasedGroup",
            {
                "roles": [
                    {
                        "replicas": 2,
                        "rolloutStrategy": {"rollingUpdate": {"maxSurge": "100%"}},
                        "standalonePattern": TEMPLATE,
                    }
                ]
            },
            "32",
        ),
        (
            ROLES,
            "RoleBasedGroupSet",
            {
                "replicas": 3,
                "groupTemplate": {"spec": {"roles": [{"standalonePattern": TEMPLATE}]}},
            },
            "24",
        ),
        (RUNNERS, "AutoscalingRunnerSet", {"maxRunners": 3, **TEMPLATE}, "24"),
        (RUNNERS, "AutoscalingRunnerSet", TEMPLATE, "an unlimited number of"),
    ],
)
def test_pods_of_operators_are_known_and_counted(
    api: str, kind: str, spec: dict[str, Any], gpus: str
) -> None:
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    found = findings({"gpu-budget": {"maxGpus": 1}}, manifest)
    assert "kind-known" not in found
    assert f"found {gpus} GPUs" in found["gpu-budget"]


@pytest.mark.parametrize(("version", "fixed"), [("3.2", True), ("latest", False), (None, False)])
def test_images_of_the_network_operator_are_checked(version: str | None, fixed: bool) -> None:
    image = {"repository": "nvcr.io/nvidia/mellanox", "image": "doca-driver", "version": version}
    manifest = {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "a"},
        "spec": {"ofedDriver": image, "secondaryNetwork": {"multus": image}},
    }
    found = findings({}, manifest)
    assert "kind-known" not in found
    assert ("image-tag-fixed" not in found) is fixed


def test_removed_api_group_needs_another_version_instead_of_a_record() -> None:
    old = {**manifests.deployment(), "apiVersion": "extensions/v1beta1"}
    (message,) = evaluate_rule("kind-known", old)
    assert 'apiVersion: found "extensions/v1beta1"; write "apps/v1": Kubernetes 1.16' in message


def test_kind_without_pods_needs_only_an_empty_record() -> None:
    manifest = {**TRAINER, "spec": {"image": "registry.example.com/a"}}
    assert findings({"kinds": {NAME: {}}}, manifest) == {}


@pytest.mark.parametrize(
    ("api", "kind", "fields"),
    [
        ("gpu.example.com/v1", "Quota", {"spec": {"gpus": 8}}),
        (
            "example.com/v1",
            "Collector",
            {
                "spec": {
                    "podAnnotations": {"prometheus.io/port": "8889"},
                    "template": {"metadata": {"labels": {"example.com/shard": "1"}}},
                    "selector": {"matchLabels": {"example.com/shard": "1"}},
                    "nodeSelector": {"example.com/tier": "1"},
                }
            },
        ),
        ("image.toolkit.fluxcd.io/v1", "ImageRepository", {"spec": {"image": "example.com/a"}}),
        (
            "karpenter.k8s.aws/v1",
            "EC2NodeClass",
            {"spec": {"userData": "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {}"}},
        ),
        (
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            {"rules": [{"resources": ["gpuclusters/status"], "verbs": ["update"]}]},
        ),
    ],
)
def test_kinds_that_run_no_pods_need_no_record(api: str, kind: str, fields: dict[str, Any]) -> None:
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": "a"}, **fields}
    assert "kind-known" not in findings({}, manifest)


@pytest.mark.parametrize(
    ("api", "kind", "fields"),
    [
        (
            "kind.x-k8s.io/v1alpha4",
            "Cluster",
            {"nodes": [{"image": "kindest/node", "extraMounts": [{"hostPath": "/dev/null"}]}]},
        ),
        ("k3d.io/v1alpha5", "Simple", {"image": "rancher/k3s:latest"}),
        (
            "eksctl.io/v1alpha5",
            "ClusterConfig",
            {"nodeGroups": [{"overrideBootstrapCommand": "apiVersion: a/v1\nkind: A\nspec: {}"}]},
        ),
        ("skaffold/v4beta11", "Config", {"build": {"artifacts": [{"image": "app"}]}}),
    ],
)
def test_configuration_files_of_tools_are_accepted(
    api: str, kind: str, fields: dict[str, Any]
) -> None:
    assert (
        findings({}, {"apiVersion": api, "kind": kind, "metadata": {"name": "a"}, **fields}) == {}
    )


def test_proposed_addition_to_a_record_makes_rules_read_the_field() -> None:
    manifest = {**TRAINER, "spec": {"worker": CONTAINER, "files": {"a.yaml": "x"}}}
    manifest["spec"]["files"]["a.yaml"] = json.dumps(PRIVILEGED_POD)
    record = {"pods": [{"at": "spec.worker", "containers": [""]}]}
    message = findings({"kinds": {NAME: record}}, manifest)["kind-known"]
    assert "found a manifest in an unknown field" in message
    added = json.loads(message.split("or add ")[1].split(" to the record")[0])
    assert "no-host-namespaces" in findings({"kinds": {NAME: {**record, **added}}}, manifest)


def test_pack_reads_kind_records_from_its_configuration() -> None:
    binding = Binding()
    binding.configure(documented())
    resource = Resource("kubernetes:", TRAINER, kinds=binding._kinds)
    (workload,) = View(resource).workloads
    assert workload.queue(workload.pods[0]).text == "team"


@pytest.mark.parametrize(
    ("record", "expected_parts"),
    [
        ({"podz": []}, ("kinds.Trainer.example.com.podz", "write one of", "pods")),
        ({"pods": [{"where": "spec"}]}, ("pods.0.at", "pods.0.where")),
        ({"pods": [{"at": "spec..template"}]}, ("'spec..template'", "separate the keys with dots")),
        ({"pods": [{"at": 5}]}, ("pods.0.at", "found 5", "string")),
        ({"pods": "spec"}, ("pods: found 'spec'", "should be a valid list")),
        *(
            (record, ("'a..b'", "separate the keys with dots"))
            for record in (
                {"job": {"queue": "a..b"}},
                {"scaler": {"target": "a..b", "minimum": "a", "maximum": "b"}},
                {"rollout": {"at": "a..b"}},
                {"claims": [{"at": "a..b", "spec": "spec"}]},
                {"pods": [{"at": "spec", "devices": [{"each": "a..b"}]}]},
                {"pods": [{"at": "spec", "fields": {"resources": "a..b"}}]},
            )
        ),
        ({"roles": ["cooking"]}, ("roles.0", "found 'cooking'", "'training'")),
        ({"roles": []}, ("roles: found []", "at least one role")),
        ({"patterns": [""]}, ("patterns: found ''", "hides every pod")),
        ({"patterns": ["spec"]}, ("patterns: found 'spec'", "hides every pod")),
        ({"kind": "Other"}, ("kind: found 'Other'", "the key contains the kind")),
        ([], ("found []", "write an object")),
    ],
)
def test_invalid_kind_record_is_rejected(record: Any, expected_parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as error:
        configure({"kinds": {NAME: record}}, RULES)
    assert all(part in str(error.value) for part in expected_parts)


@pytest.mark.parametrize(
    "record", [{}, {"pods": []}, {"pods": [{"at": "spec.other"}]}, {"patterns": [""]}]
)
def test_record_for_a_built_in_kind_must_keep_its_pods(record: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"found no entry for spec\.template\.spec"):
        configure({"kinds": {"Deployment.apps": record}}, RULES)
    whole = {"pods": [{"at": "spec.template.spec"}, *record.get("pods", [])]}
    configure({"kinds": {"Deployment.apps": whole}}, RULES)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"unseen": "nothing"},
        {"patterns": ["spec.other.spec"]},
        {"pods": [{"at": "spec.other.spec"}]},
    ],
)
def test_record_does_not_hide_pods_at_other_paths(record: Any) -> None:
    container = {"name": "a", "image": "a:1.0", "securityContext": {"privileged": True}}
    hidden = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "a", "namespace": "ml"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    found = findings({"kinds": {"Thing.example.com": record}}, hidden)
    assert "not-privileged" in found


def test_paths_of_all_built_in_records_are_valid() -> None:
    for record in WORKLOAD_KINDS.values():
        for pods in record.pods:
            assert steps(pods.at) or not pods.at
            for count in pods.count:
                assert all(steps(path) for path in (*count.paths, *count.maxima))


def test_ids_of_records_are_unique() -> None:
    assert all(key == (record.group, record.kind.lower()) for key, record in WORKLOAD_KINDS.items())


def test_message_about_a_field_that_changes_pods_demands_no_missing_fields() -> None:
    inference = {"preset": {"name": "phi-4"}}
    workspace = {"apiVersion": "kaito.sh/v1beta1", "kind": "Workspace", "inference": inference}
    (message,) = evaluate_rule("kind-known", {**workspace, "metadata": {"name": "a"}})
    assert "inference: found" in message
    assert "remove it: no rule can check how it changes pods" in message


def test_label_keys_are_not_accelerators() -> None:
    expression = {"key": "gpu-platform.dev/workload", "operator": "Exists"}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "allow", "namespace": "ml"},
        "spec": {"podSelector": {"matchExpressions": [expression]}},
    }
    assert evaluate_rule("kind-known", policy) == []
