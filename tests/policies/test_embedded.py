"""Objects embedded as text in other objects."""

import json
from typing import Any

import pytest
import yaml

from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate
from policies.resources import Resource
from policies.values import UNKNOWN
from policies.views import View, flatten

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: ml}\n"
CONTAINER = "{name: a, image: 'a:1', securityContext: {privileged: true}}"
PRIVILEGED = f"{POD}spec: {{containers: [{CONTAINER}]}}\n"
UNREADABLE = "found an unreadable manifest; write a complete manifest"


def config_map(text: str) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "ml"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": text}}


def messages(manifest: dict[str, Any], rule: str = "") -> list[str]:
    found = evaluate([Document("a.yaml", manifest, None)], configure({}, RULES))
    return [item.message for item in found if item.mandatory and rule in ("", item.rule)]


@pytest.mark.parametrize(
    "text",
    [
        f"{POD}spec: " + "[" * 100_000 + "]" * 100_000,
        f"{POD}spec: &a\n  containers: [{{name: a, image: 'a:1'}}]\n  x: *a\n",
        "\n".join(
            [
                f"{POD}a0: &a0 [{', '.join('x' * 9)}]",
                *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)),
            ]
        ),
        f"{POD}a: \ud800\n",
    ],
    ids=[
        "nested too deeply",
        "refers to itself",
        "aliases multiply its size",
        "unpaired surrogate",
    ],
)
def test_embedded_text_that_cannot_be_read_safely_is_ignored(text: str) -> None:
    assert messages(config_map(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tcp}\ndata: {9000: 'ml/server:9000'}\n",
        PRIVILEGED.replace("{name: a,", "{annotations: {1: a, 2026-01-01: b}, name: a,", 1),
    ],
)
def test_embedded_text_with_non_string_keys_is_read(text: str) -> None:
    found = messages(config_map(text))
    assert not any("itself failed" in message for message in found)
    assert bool(found) is ("privileged" in text)


@pytest.mark.parametrize("note", ["🚀", "\ud83d"])
def test_embedded_json_with_escaped_surrogates_is_read(note: str) -> None:
    pod = yaml.safe_load(PRIVILEGED)
    pod["metadata"]["annotations"] = {"note": note}
    assert messages(config_map(json.dumps(pod)), "not-privileged")


def test_embedded_text_is_read_as_kubectl_reads_it() -> None:
    assert messages(config_map(PRIVILEGED.replace("true", "y")), "not-privileged")


def test_deeply_nested_json_patch_is_not_read() -> None:
    mutate = {"patchesJson6902": "[" * 100_000}
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "a"},
        "spec": {"rules": [{"name": "a", "mutate": mutate}]},
    }
    assert messages(json.loads(json.dumps(policy)), "kind-known")


def workflow(manifest: str) -> dict[str, Any]:
    template = {"name": "a", "resource": {"action": "create", "manifest": manifest}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "a", "namespace": "ml"},
        "spec": {"entrypoint": "a", "templates": [template]},
    }


BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "a"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "ml"}],
}
BINDINGS = {"apiVersion": "v1", "kind": "List", "items": [BINDING]}


def objects(manifest: dict[str, Any], kind: str) -> list[Resource]:
    return [
        view.resource
        for view in flatten([View(Resource("kubernetes:", manifest))])
        if view.resource.kind == kind
    ]


@pytest.mark.parametrize(
    "text",
    [
        PRIVILEGED.replace("{name: a,", "{name: {{workflow.name}},", 1),
        PRIVILEGED + "---\na: @x\n",
        "{{inputs.parameters.manifest}}",
        "a text",
        f"{POD}spec: " + "[" * 100_000,
    ],
    ids=[
        "templated name",
        "invalid second document",
        "only a parameter",
        "no manifest",
        "nested too deeply",
    ],
)
def test_unreadable_manifest_in_a_workflow_is_rejected(text: str) -> None:
    (message,) = messages(workflow(text), "kind-known")
    assert f"spec.templates[0].resource.manifest: {UNREADABLE}" in message


@pytest.mark.parametrize("text", [PRIVILEGED, "", f"# a\n---\n{PRIVILEGED}---\n"])
def test_readable_manifest_in_a_workflow_is_evaluated(text: str) -> None:
    assert messages(workflow(text), "kind-known") == []


@pytest.mark.parametrize("steps", ["steps", "dag"])
def test_items_over_which_a_workflow_iterates_are_not_containers(steps: str) -> None:
    step = {"name": "scan", "template": "scan", "withItems": [{"image": "debian", "tag": "9"}]}
    template = {"steps": [[step]]} if steps == "steps" else {"dag": {"tasks": [step]}}
    manifest = {**workflow(""), "spec": {"templates": [{"name": "main", **template}]}}
    assert messages(manifest, "kind-known") == []


@pytest.mark.parametrize(
    ("group", "kind", "spec"),
    [
        ("fleet.cattle.io", "Bundle", {"resources": [{"content": f"{POD}spec: @x"}]}),
        ("fluxcd.controlplane.io", "ResourceSet", {"resourcesTemplate": f"{POD}spec: @x"}),
    ],
)
def test_unreadable_manifest_in_a_bundle_is_rejected(group: str, kind: str, spec: Any) -> None:
    manifest = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    (message,) = messages(manifest, "kind-known")
    assert UNREADABLE in message


@pytest.mark.parametrize(
    ("group", "kind", "spec"),
    [
        ("workload.codeflare.dev", "AppWrapper", {"components": [{"template": BINDING}]}),
        ("argoproj.io", "Workflow", {"templates": [{"resource": {"manifest": str(BINDING)}}]}),
        (
            "argoproj.io",
            "CronWorkflow",
            {"workflowSpec": {"templates": [{"resource": {"manifest": str(BINDINGS)}}]}},
        ),
        ("argoproj.io", "WorkflowTaskSet", {"tasks": {"a": {"resource": {"manifest": BINDING}}}}),
        *(
            (
                "argoproj.io",
                "Sensor",
                {"triggers": [{"template": {name: {"source": {"resource": BINDING}}}}]},
            )
            for name in ("k8s", "argoWorkflow")
        ),
        (
            "workload.codeflare.dev",
            "AppWrapper",
            {"components": [{"template": {**workflow(str(BINDING)), "metadata": {"name": "a"}}}]},
        ),
    ],
)
def test_embedded_object_without_a_namespace_is_in_the_namespace_of_its_parent(
    group: str, kind: str, spec: Any
) -> None:
    manifest = {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": "a", "namespace": "kube-system"},
        "spec": spec,
    }
    (binding,) = objects(manifest, "RoleBinding")
    assert binding.address == "kube-system/RoleBinding/a"
    assert messages(manifest, "rbac-least-privilege")
    manifest["metadata"] = {"name": "a", "namespace": "ml"}
    assert not messages(manifest, "rbac-least-privilege")
    manifest["metadata"] = {"name": "a", "namespace": UNKNOWN}
    (binding,) = objects(manifest, "RoleBinding")
    assert binding.namespace is None


def test_value_inherited_by_all_templates_of_a_workflow_is_reported_once() -> None:
    manifest = workflow(PRIVILEGED)
    container = {"image": "a:1"}
    manifest["spec"]["templates"] = [{"name": name, "container": container} for name in "ab"]
    manifest["spec"]["hostNetwork"] = True
    manifest["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    (message,) = messages(manifest, "no-host-namespaces")
    assert "spec.hostNetwork: found true" in message
    undeclared = messages(manifest, "claim-declared")
    assert len(undeclared) == len(set(undeclared))


def test_embedded_object_keeps_its_explicit_namespace() -> None:
    manifest = workflow(PRIVILEGED.replace("namespace: ml", "namespace: other"))
    (pod,) = objects(manifest, "Pod")
    assert pod.namespace == "other"


def test_object_in_a_cluster_scoped_template_may_be_in_any_namespace() -> None:
    manifest = {**workflow(str(BINDING)), "kind": "ClusterWorkflowTemplate"}
    del manifest["metadata"]["namespace"]
    (binding,) = objects(manifest, "RoleBinding")
    assert binding.namespace is None


def test_claim_used_by_a_cluster_scoped_template_must_be_declared() -> None:
    pod = yaml.safe_load(POD)
    del pod["metadata"]["namespace"]
    claims = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    container = {"name": "a", "resources": {"claims": [{"name": "gpus"}]}}
    pod["spec"] = {"containers": [container], "resourceClaims": claims}
    manifest = {**workflow(str(pod)), "kind": "ClusterWorkflowTemplate"}
    del manifest["metadata"]["namespace"]
    assert messages(manifest, "claim-declared")
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    documents = [Document("a.yaml", item, None) for item in (manifest, claim)]
    found = evaluate(documents, configure({"gpu-budget": {"maxGpus": 2}}, RULES))
    rules = {item.rule for item in found}
    assert "claim-declared" not in rules
    assert "gpu-budget" in rules


@pytest.mark.parametrize(("parallel", "gpus"), [({"parallelTrialCount": 5}, 10), ({}, 6)])
def test_budget_counts_all_trials_that_run_in_parallel(parallel: dict[str, int], gpus: int) -> None:
    container = {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    trial = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"parallelism": 2, "template": {"spec": {"containers": [container]}}},
    }
    manifest = {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": "search", "namespace": "ml"},
        "spec": {**parallel, "trialTemplate": {"trialSpec": trial}},
    }
    found = evaluate(
        [Document("a.yaml", manifest, None)], configure({"gpu-budget": {"maxGpus": 1}}, RULES)
    )
    (message,) = [item.message for item in found if item.rule == "gpu-budget"]
    assert f"found {gpus} GPUs" in message


def test_manifest_for_another_cluster_is_not_in_the_namespace_of_its_parent() -> None:
    manifest = {
        "apiVersion": "work.open-cluster-management.io/v1",
        "kind": "ManifestWork",
        "metadata": {"name": "a", "namespace": "cluster1"},
        "spec": {"workload": {"manifests": [BINDING]}},
    }
    (binding,) = objects(manifest, "RoleBinding")
    assert binding.namespace == "default"


def test_embedded_manifests_before_an_invalid_document_are_read() -> None:
    text = PRIVILEGED + "---\n{{x}}: [\n"
    assert messages(workflow(text), "not-privileged")
    assert messages(config_map(text), "not-privileged")
    assert not messages(config_map(text), "kind-known")


@pytest.mark.parametrize("text", [f"{PRIVILEGED}---#a", f"{POD}---#:\n{PRIVILEGED}"])
def test_embedded_text_is_divided_into_documents_as_kubectl_does(text: str) -> None:
    assert messages(config_map(text), "not-privileged")


def test_embedded_json_with_escaped_keys_is_read() -> None:
    text = PRIVILEGED.replace("apiVersion", '"\\x61piVersion"')
    assert messages(workflow(text), "not-privileged")


def test_items_of_an_embedded_list_do_not_need_a_kind() -> None:
    text = f"apiVersion: v1\nkind: PodList\nitems:\n- spec: {{containers: [{CONTAINER}]}}\n"
    assert messages(config_map(text), "not-privileged")
