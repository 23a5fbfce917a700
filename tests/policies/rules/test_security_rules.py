"""Rules for pod security, access and exposure, with rejected and accepted manifests."""

from collections.abc import Callable
from typing import Any

import pytest

from policies.catalogue import RULES
from policies.configuration import configure
from policies.rule import ConfigurationError
from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, evaluate_rule

POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"
CONTAINERS = ("containers/1", "initContainers", "ephemeralContainers")
RBAC = "rbac.authorization.k8s.io/v1"


def deployment(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.deployment(), *edits)


def manifest(version: str, kind: str, **fields: Any) -> Manifest:
    metadata = {"name": "a", "namespace": "team"} | fields.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


# Each control, in each type of container
CONTROLS: list[tuple[str, Manifest]] = [
    ("not-privileged", {"securityContext": {"privileged": True}}),
    ("not-privileged", {"securityContext": {"privileged": "true"}}),
    ("not-privileged", {"securityContext": {"procMount": "Unmasked"}}),
    ("not-privileged", {"securityContext": {"windowsOptions": {"hostProcess": True}}}),
    ("capabilities-dropped", {"securityContext": {"capabilities": {"drop": ["CHOWN"]}}}),
    ("capabilities-dropped", {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}),
    ("no-privilege-escalation", {"securityContext": {"allowPrivilegeEscalation": "false"}}),
    ("run-as-non-root", {"securityContext": {"runAsUser": 0}}),
    ("run-as-non-root", {"securityContext": {"runAsNonRoot": "true"}}),
    ("run-as-non-root", {"securityContext": {"runAsGroup": 0}}),
    ("no-host-ports", {"ports": [{"containerPort": 80, "hostPort": "80"}]}),
    ("security-profiles-kept", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    ("security-profiles-kept", {"securityContext": {"appArmorProfile": {"type": "unconfined"}}}),
    ("security-profiles-kept", {"securityContext": {"seLinuxOptions": {"role": "sysadm_r"}}}),
    ("probes-stay-in-pod", {"startupProbe": {"tcpSocket": {"host": "127.0.0.1", "port": 1}}}),
    ("probes-stay-in-pod", {"lifecycle": {"postStart": {"httpGet": {"host": "a", "port": 1}}}}),
    ("root-filesystem-read-only", {"securityContext": {"readOnlyRootFilesystem": False}}),
]


@pytest.mark.parametrize("place", CONTAINERS)
def test_controls_apply_to_every_type_of_container(place: str) -> None:
    for rule, fields in CONTROLS:
        container = {"name": "other", "image": "example.com/a:1.0", **fields}
        value: Any = container if place.endswith("1") else [container]
        assert evaluate_rule(rule, deployment((f"{POD}/{place}", value))), (rule, fields)


@pytest.mark.parametrize(
    ("rule", "field", "value"),
    [
        ("no-host-namespaces", "hostNetwork", "true"),
        ("no-host-namespaces", "hostIPC", 1),
        ("security-profiles-kept", "securityContext/seLinuxOptions", {"type": "spc_t"}),
        ("sysctls-safe", "securityContext/sysctls", [{"name": "net.core.somaxconn"}]),
        ("volume-types-restricted", "volumes/2", {"name": "v", "gitRepo": {"repository": "a"}}),
        ("run-as-non-root", "securityContext/supplementalGroups", [10001, 0]),
        ("priority-not-of-system", "priority", 2_000_001_000),
        ("tolerations-bounded", "tolerations/1", {"key": "", "operator": "Exists"}),
    ],
)
def test_violations_of_pod_level_controls_are_rejected(rule: str, field: str, value: Any) -> None:
    assert evaluate_rule(rule, deployment((f"{POD}/{field}", value)))


@pytest.mark.parametrize(
    ("rule", "field", "value"),
    [
        ("no-host-ports", f"{MAIN}/ports/0/hostPort", 0),
        ("probes-stay-in-pod", f"{MAIN}/livenessProbe/httpGet/host", ""),
        ("security-profiles-kept", f"{POD}/securityContext/seccompProfile/type", "Localhost"),
        ("security-profiles-kept", f"{POD}/securityContext/seLinuxOptions", {"level": "s0:c1,c2"}),
        ("sysctls-safe", f"{POD}/securityContext/sysctls", [{"name": "net.ipv4.tcp_syncookies"}]),
        ("sysctls-safe", f"{POD}/securityContext/sysctls", [{"name": "net.ipv4.tcp_rmem"}]),
        ("run-as-non-root", f"{POD}/securityContext/supplementalGroups", [100]),
        ("volume-types-restricted", f"{POD}/volumes/2", {"name": "v", "csi": {"driver": "s3"}}),
        ("volume-types-restricted", f"{POD}/volumes/2", {"name": "v", "image": {}}),
        (
            "capabilities-dropped",
            f"{MAIN}/securityContext/capabilities",
            {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        ),
        ("tolerations-bounded", f"{POD}/tolerations/1", {"key": "team", "operator": "Exists"}),
        ("no-host-ports", f"{MAIN}/ports/0/hostPort", UNKNOWN_VALUE),
    ],
)
def test_values_allowed_by_the_pod_security_standards_are_accepted(
    rule: str, field: str, value: Any
) -> None:
    assert evaluate_rule(rule, deployment((field, value))) == []


def test_ipc_lock_is_rejected_even_with_an_rdma_device() -> None:
    edits = (
        (f"{MAIN}/securityContext/capabilities/add", ["IPC_LOCK"]),
        (f"{MAIN}/resources/limits/rdma~hca", 1),
    )
    assert evaluate_rule("capabilities-dropped", deployment(*edits)) != []


def test_capabilities_can_be_allowed_by_configuration() -> None:
    edit = (f"{MAIN}/securityContext/capabilities/add", ["IPC_LOCK"])
    config = {"allowedCapabilities": ["IPC_LOCK"]}
    assert evaluate_rule("capabilities-dropped", deployment(edit), config=config) == []


# Access
def role(kind: str, **rule: Any) -> Manifest:
    return manifest(RBAC, kind, rules=[rule])


@pytest.mark.parametrize(
    "item",
    [
        role("Role", apiGroups=[""], resources=["*"], verbs=["get"]),
        role("Role", apiGroups=["apps"], resources=["deployments"], verbs=["*"]),
        role("Role", apiGroups=["*"], resources=["things"], verbs=["get"]),
        role("Role", apiGroups=["rbac.authorization.k8s.io"], resources=["*"], verbs=["*"]),
        role("Role", apiGroups=[""], resources=["serviceaccounts/token"], verbs=["create"]),
        role("ClusterRole", apiGroups=[""], resources=["pods/attach"], verbs=["create"]),
        role("ClusterRole", apiGroups=[""], resources=["secrets"], verbs=["watch"]),
        role("ClusterRole", nonResourceURLs=["*"], verbs=["get"]),
    ],
)
def test_role_with_too_many_permissions_is_rejected(item: Manifest) -> None:
    assert evaluate_rule("rbac-least-privilege", item)


@pytest.mark.parametrize("verb", ["*", "bind"])
def test_each_verb_is_reported_once(verb: str) -> None:
    classes = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"]}
    item = role("ClusterRole", **classes, verbs=[verb])
    assert len(evaluate_rule("rbac-least-privilege", item)) == 1
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    in_view = changed(item, ("metadata/labels", labels))
    assert len(evaluate_rule("rbac-least-privilege", in_view)) == 1


def test_narrower_access_to_the_kubelet_is_proposed_and_accepted() -> None:
    node = {"apiGroups": [""], "verbs": ["get"]}
    (message,) = evaluate_rule(
        "rbac-least-privilege", role("ClusterRole", resources=["nodes/proxy"], **node)
    )
    for resource in ("nodes/metrics", "nodes/stats", "nodes/pods"):
        assert resource in message
        item = role("ClusterRole", resources=[resource], **node)
        assert evaluate_rule("rbac-least-privilege", item) == []


@pytest.mark.parametrize(
    "item",
    [
        role("ClusterRole", apiGroups=["ray.io"], resources=["*"], verbs=["*"]),
        role("ClusterRole", nonResourceURLs=["/metrics"], verbs=["get"]),
        role("Role", apiGroups=[""], resources=["pods/exec"], verbs=["create"]),
        role("Role", apiGroups=[""], resources=["secrets"], verbs=["get"]),
        role(
            "ClusterRole",
            apiGroups=[""],
            resources=["secrets"],
            resourceNames=["webhook"],
            verbs=["get"],
        ),
        role("ClusterRole", apiGroups=[""], resources=["secrets"], verbs=["create"]),
    ],
)
def test_usual_permissions_of_controllers_are_accepted(item: Manifest) -> None:
    assert evaluate_rule("rbac-least-privilege", item) == []


@pytest.mark.parametrize(("audience", "rejected"), [("api", True), ("sts.amazonaws.com", False)])
def test_only_projected_tokens_for_the_api_server_are_rejected(
    audience: str, rejected: bool
) -> None:
    source = {"serviceAccountToken": {"path": "t", "audience": audience}}
    edit = (f"{POD}/volumes/2", {"name": "t", "projected": {"sources": [source]}})
    assert bool(evaluate_rule("no-hidden-token", deployment(edit))) is rejected


# Exposure
@pytest.mark.parametrize(
    "item",
    [
        manifest("v1", "Service", spec={"type": "ExternalName"}),
        manifest(
            "networking.k8s.io/v1",
            "Ingress",
            metadata={"annotations": {"alb.ingress.kubernetes.io/certificate-arn": "arn:a"}},
            spec={},
        ),
        manifest("example.com/v1", "Gadget", spec={"balancer": {"type": "LoadBalancer"}}),
        manifest("example.com/v1", "Gadget", spec={"ingress": {"enabled": False}}),
        manifest(
            "networking.istio.io/v1",
            "Gateway",
            spec={"servers": [{"port": {"protocol": "HTTP"}, "tls": {"httpsRedirect": True}}]},
        ),
    ],
)
def test_cluster_internal_services_are_not_public(item: Manifest) -> None:
    assert evaluate_rule("service-not-public", item) == []


def test_public_custom_resource_can_be_allowed_by_its_address() -> None:
    ray = manifest("ray.io/v1", "RayCluster", spec={"headGroupSpec": {"serviceType": "NodePort"}})
    assert evaluate_rule("service-not-public", ray)
    allowed = {"allowedServices": ["team/RayCluster.ray.io/a"]}
    assert evaluate_rule("service-not-public", ray, config=allowed) == []


@pytest.mark.parametrize("allowed", ["SYS_PTRACE", "CAP_SYS_PTRACE", "sys_ptrace"])
@pytest.mark.parametrize("added", ["SYS_PTRACE", "CAP_SYS_PTRACE"])
def test_allowed_capabilities_may_have_the_prefix_cap(allowed: str, added: str) -> None:
    profiler = deployment((f"{MAIN}/securityContext/capabilities/add", [added]))
    assert evaluate_rule("capabilities-dropped", profiler)
    config = {"allowedCapabilities": [allowed]}
    assert evaluate_rule("capabilities-dropped", profiler, config=config) == []


# Images
@pytest.mark.parametrize(
    ("tag", "is_moving"),
    [
        *(("stable", True), ("1-latest", True), ("LATEST-gpu", True), ("edge", True)),
        *(("dev-cuda", True), ("head", True), ("latest.12", True)),
        *(("12.4.1-devel-ubuntu22.04", False), ("main-3f2a9bc", False), ("v2-maintained", False)),
        *(("nightly-20260101", False), ("2.5.0-stable", False), ("headless-2", False)),
        *(("release-2026-01-31", False), ("main-2026-01", True)),
    ],
)
def test_only_moving_image_tags_are_rejected(tag: str, is_moving: bool) -> None:
    edit = (f"{MAIN}/image", f"127.0.0.1:5000/team/web:{tag}")
    assert bool(evaluate_rule("image-tag-fixed", deployment(edit))) is is_moving


@pytest.mark.parametrize(
    ("image", "rejected"),
    [
        *(("python:3.12", False), ("docker.io/python:3.12", False), ("library/python:3.12", False)),
        *(("evil/python:3.12", True), ("docker.io/library.evil/python:3.12", True)),
    ],
)
def test_official_images_belong_to_the_repository_library(image: str, rejected: bool) -> None:
    config = {"allowedRegistries": ["docker.io/library"]}
    manifest = deployment((f"{MAIN}/image", image))
    assert bool(evaluate_rule("image-registry-allowed", manifest, config=config)) is rejected


def test_allowed_registries_are_prefixes_without_wildcards() -> None:
    with pytest.raises(ConfigurationError, match=r"ghcr\.io/\*.* contains a wildcard"):
        configure({"image-registry-allowed": {"allowedRegistries": ["ghcr.io/*"]}}, RULES)


def test_missing_image_is_reported_only_once() -> None:
    edit = (f"{MAIN}/image", REMOVED)
    assert evaluate_rule("image-tag-fixed", deployment(edit))
    assert evaluate_rule("image-digest-pinned", deployment(edit)) == []


def test_model_image_is_reported_once() -> None:
    spec = {"predictor": {"model": {"storageUri": "oci://registry.example.com/a"}}}
    service = manifest("serving.kserve.io/v1beta1", "InferenceService", spec=spec)
    (message,) = (
        each for each in evaluate_rule("image-tag-fixed", service) if "storageUri" in each
    )
    assert "registry.example.com/a" in message


@pytest.mark.parametrize(("uri", "rejected"), [("hf://evil/pickle", True), ("hf://team/a", False)])
@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        (
            "InferenceService",
            lambda uri: {"predictor": {"model": {}, "storageUris": [{"uri": uri}]}},
        ),
        ("LLMInferenceService", lambda uri: {"model": {"uri": uri}}),
        (
            "LLMInferenceService",
            lambda uri: {"model": {"uri": "hf://team/a", "lora": {"adapters": [{"uri": uri}]}}},
        ),
    ],
)
def test_models_of_kserve_must_come_from_allowed_sources(
    kind: str, edit: Callable[[str], Manifest], uri: str, rejected: bool
) -> None:
    service = manifest("serving.kserve.io/v1beta1", kind, spec=edit(uri))
    config = {"allowedRegistries": ["registry.example.com", "hf://team"]}
    assert bool(evaluate_rule("image-registry-allowed", service, config=config)) is rejected


@pytest.mark.parametrize(
    ("uri", "rejected"),
    [
        *(("hf://evil/pickle", True), ("oci://evil.com/model:1.0", True), ("s3://models/a", True)),
        *(("hf://team/llama", False), ("oci://registry.example.com/model:1.0", False)),
        ("pvc://models/a", False),
    ],
)
def test_models_must_come_from_allowed_sources(uri: str, rejected: bool) -> None:
    spec = {"trainer": {"image": "registry.example.com/a:1.0"}, "initializer": {"model": {}}}
    job = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", spec=spec)
    job["spec"]["initializer"]["model"]["storageUri"] = uri
    config = {"allowedRegistries": ["registry.example.com", "hf://team"]}
    assert bool(evaluate_rule("image-registry-allowed", job, config=config)) is rejected
