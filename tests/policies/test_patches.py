"""Type tokens are ignored, and patches that may create an object are evaluated as that object."""

from typing import Any

import pytest
from pulumi_policy import ResourceValidationArgs, proxy

from policies.binding import Binding
from policies.catalogue import RULES
from policies.resources import Resource
from policies.rules.network_policies import namespace_default_deny
from policies.views import Stack, View
from tests.policies import manifests
from tests.policies.harness import Manifest, changed, options, type_of

EXISTING = {"manifest-readable": {"existingObjects": ["training/*/*"]}}
CONTAINER = {"name": "main", "image": "evil.example.com/miner:latest"}
HOST_PATH = {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}


def resource(api_version: str, kind: str, spec: Any) -> Manifest:
    metadata = {"name": "web", "namespace": "training"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def rejecting_rules(token: str, manifest: Manifest, config: Manifest | None = None) -> set[str]:
    """Return the mandatory resource rules that reject a resource with the given type token."""
    binding = Binding()
    binding.configure(config or {})
    names = set()
    for rule, policy in zip(RULES, binding.policies(RULES), strict=True):
        if rule.scope != "stack" and rule.level.value == "mandatory":
            found: list[str] = []

            def report(text: str, urn: str | None = None, found: list[str] = found) -> None:
                found.append(text)

            settings = (config or {}).get(rule.name)
            validated: Any = policy
            validated.validate(arguments(token, manifest, settings), report)
            assert not any("itself failed" in text for text in found)
            names |= {rule.name} if found else set()
    return names


def arguments(token: str, manifest: Manifest, config: Manifest | None) -> ResourceValidationArgs:
    props = proxy.unknown_checking_proxy(manifest)
    return ResourceValidationArgs(token, props, "urn:resource", "web", options(), None, config)


def template(**pod: Any) -> Manifest:
    return {"template": {"spec": pod}}


PRIVILEGED_POD = resource(
    "v1",
    "Pod",
    {"hostPID": True, "containers": [{**CONTAINER, "securityContext": {"privileged": True}}]},
)


@pytest.mark.parametrize(
    "token",
    [
        *("yaml/v1:Pod", "yaml/v2:ConfigGroup", "yaml:ConfigFile", "yaml:Pod"),
        *("helm.sh/v3:Pod", "helm.sh/v4:Chart", "helm.sh/v3:Chart", "helm.sh/v3:ReleasePatch"),
        *("kustomize/v1:Pod", "kustomize/v2:Directory", "kustomize:Directory"),
        *("core/v1:ConfigMap", "example.com/v1:Unheard", "core/v1:PodPatch", "x"),
    ],
)
def test_type_token_does_not_hide_the_real_kind(token: str) -> None:
    rules = rejecting_rules(f"kubernetes:{token}", PRIVILEGED_POD)
    assert {"not-privileged", "no-host-namespaces", "image-tag-fixed"} <= rules


POD_PATCHES: list[tuple[str, Manifest]] = [
    (kind, resource(version, kind, place(template(hostPID=True, **HOST_PATH))))  # type: ignore[operator]
    for version, kind, place in [
        ("apps/v1", "Deployment", dict),
        ("apps/v1", "StatefulSet", dict),
        ("apps/v1", "DaemonSet", dict),
        ("batch/v1", "Job", dict),
        ("batch/v1", "CronJob", lambda spec: {"jobTemplate": {"spec": spec}}),
        ("batch.volcano.sh/v1alpha1", "Job", lambda spec: {"tasks": [spec]}),
        ("kubeflow.org/v1", "PyTorchJob", lambda spec: {"pytorchReplicaSpecs": {"Worker": spec}}),
        ("v1", "Pod", lambda spec: spec["template"]["spec"]),
    ]
]


@pytest.mark.parametrize("config", [{}, EXISTING], ids=["object may be absent", "object exists"])
@pytest.mark.parametrize(("kind", "patch"), POD_PATCHES, ids=[kind for kind, _ in POD_PATCHES])
def test_pod_patch_without_containers_is_found_by_its_path(
    kind: str, patch: Manifest, config: Manifest
) -> None:
    rules = rejecting_rules(type_of(patch, "Patch"), patch, config)
    assert {"no-host-namespaces", "no-host-path"} <= rules
    assert ("manifest-readable" in rules) == (not config)


def test_patch_that_makes_a_pod_run_as_root_is_rejected() -> None:
    patch = resource("apps/v1", "Deployment", template(securityContext={"runAsUser": 0}))
    assert rejecting_rules(type_of(patch, "Patch"), patch, EXISTING) == {"run-as-non-root"}


def test_patch_that_may_create_a_job_is_evaluated_like_the_complete_job() -> None:
    limits = {"nvidia.com/gpu": "8", "memory": "256Gi"}
    pod = {"restartPolicy": "Never", "containers": [{**CONTAINER, "resources": {"limits": limits}}]}
    patch = resource("batch/v1", "Job", {"parallelism": 4, "backoffLimit": 10, **template(**pod)})
    whole = rejecting_rules(type_of(patch), patch)
    assert {"shm-mounted", "training-scheduler", "training-queue-named", "run-as-non-root"} <= whole
    assert rejecting_rules(type_of(patch, "Patch"), patch) == whole
    assert rejecting_rules(type_of(patch, "Patch"), patch, EXISTING) == {"image-tag-fixed"}


@pytest.mark.parametrize(
    "patch",
    [
        resource("apps/v1", "Deployment", {"replicas": 5000}),
        resource("batch/v1", "Job", {"parallelism": 5000}),
        resource("batch.volcano.sh/v1alpha1", "Job", {"queue": "other"}),
        resource("ray.io/v1", "RayJob", {"suspend": False}),
        resource("apps/v1", "StatefulSet", None),
    ],
    ids=lambda patch: patch["kind"],
)
def test_patch_without_pods_is_rejected_unless_the_object_exists(patch: Manifest) -> None:
    assert "manifest-readable" in rejecting_rules(type_of(patch, "Patch"), patch)
    assert rejecting_rules(type_of(patch, "Patch"), patch, EXISTING) == set()


def test_only_the_fields_set_by_a_patch_of_an_existing_job_are_evaluated() -> None:
    spec = {"queue": "other", "minAvailable": 1, "maxRetry": 100_000}
    patch = resource("batch.volcano.sh/v1alpha1", "Job", spec)
    rules = rejecting_rules(type_of(patch, "Patch"), patch, EXISTING)
    assert rules == {"training-retries-bounded"}


@pytest.mark.parametrize("manifest", manifests.whole_stack(), ids=lambda manifest: manifest["kind"])
def test_patch_with_a_complete_good_object_passes(manifest: Manifest) -> None:
    assert rejecting_rules(type_of(manifest, "Patch"), manifest) == set()


def test_patch_that_changes_only_metadata_passes() -> None:
    patch = changed(resource("v1", "Namespace", {}), ("metadata/labels", {"team": "vision"}))
    assert rejecting_rules(type_of(patch, "Patch"), patch) == set()


def test_items_of_a_list_that_a_patch_replaces_are_complete() -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    role = {**resource("rbac.authorization.k8s.io/v1", "ClusterRole", {}), "rules": [rule]}
    assert rejecting_rules(type_of(role, "Patch"), role, EXISTING) == {"rbac-least-privilege"}


@pytest.mark.parametrize(
    "patch",
    [
        resource("networking.k8s.io/v1", "NetworkPolicy", {"ingress": [{}]}),
        resource("networking.k8s.io/v1", "NetworkPolicy", {"podSelector": {}, "ingress": [{}]}),
        resource("projectcalico.org/v3", "NetworkPolicy", {"ingress": [{"action": "Allow"}]}),
        resource("crd.antrea.io/v1beta1", "NetworkPolicy", {"ingress": [{"action": "Allow"}]}),
    ],
    ids=lambda patch: f"{patch['apiVersion']} {patch['spec']}",
)
def test_patch_that_opens_an_existing_network_policy_is_rejected(patch: Manifest) -> None:
    resources = [Resource(type_of(item), item) for item in manifests.whole_stack()]
    opening = Resource(type_of(patch, "Patch"), patch, existing=["training/*/*"])
    stack = Stack([View(item) for item in (*resources, opening)])
    config = namespace_default_deny.configure({})
    reported = [violation.resource for violation in namespace_default_deny.check(stack, config)]
    assert reported == [opening]
