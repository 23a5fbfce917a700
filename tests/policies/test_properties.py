"""Property tests: no input crashes a rule, and remediations reduce the number of violations."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.catalogue import RULES
from policies.resources import Resource
from policies.values import UNKNOWN
from policies.views import Stack, View
from tests.policies.harness import evaluate_rule, remediate
from tests.unicode import ALPHABET

WORDS = [
    *("", "0", "1", "1e3", "1000m", "4Gi", "Memory", "ALL", "/dev/shm", "a:latest", "shm"),
    *("Never", "Always", "training", "volcano", "nvidia.com/gpu", "a@sha256:", "$(X)", "\x00"),
]
NAMES = [
    *("containers", "initContainers", "ephemeralContainers", "volumes", "volumeMounts", "env"),
    *("name", "value", "image", "resources", "limits", "requests", "nvidia.com/gpu", "memory"),
    *("cpu", "securityContext", "capabilities", "add", "drop", "emptyDir", "medium", "sizeLimit"),
    *("mountPath", "hostPath", "path", "tolerations", "key", "effect", "template", "spec"),
    *("metadata", "labels", "annotations", "app.kubernetes.io/component", "tasks", "replicas"),
    *("minAvailable", "queue", "selector", "matchLabels", "persistentVolumeClaim", "claimName"),
    *("accessModes", "hard", "podSelector", "policyTypes", "scaleTargetRef", "minReplicas"),
    *("storageClassName", "claimRef", "runPolicy", "schedulingPolicy", "pytorchReplicaSpecs"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.just(UNKNOWN),
    st.sampled_from(WORDS),
    st.text(ALPHABET, max_size=8),
)
KEYS = st.sampled_from(NAMES)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)
PODS = st.fixed_dictionaries(
    {"containers": st.lists(OBJECTS, max_size=2)}, optional={"volumes": VALUES}
)
KINDS = st.sampled_from(
    [
        ("v1", "Pod"),
        ("v1", "Service"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "ResourceQuota"),
        ("apps/v1", "Deployment"),
        ("batch/v1", "Job"),
        ("batch.volcano.sh/v1alpha1", "Job"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup"),
        ("kubeflow.org/v1", "PyTorchJob"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("policy/v1", "PodDisruptionBudget"),
    ]
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    version, kind = draw(KINDS)
    spec = draw(OBJECTS)
    if draw(st.booleans()):
        spec["template"] = {"spec": draw(PODS), "metadata": draw(OBJECTS)}
    return {"apiVersion": version, "kind": kind, "metadata": draw(VALUES), "spec": spec}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(manifests(), max_size=3))
def test_rules_never_crash(stack: list[dict[str, Any]]) -> None:
    views = [View(Resource(f"kubernetes:{m['apiVersion']}:{m['kind']}", m)) for m in stack]
    for rule in RULES:
        config = rule.configure({})
        found = list(rule.check(Stack(views), config)) if rule.scope == "stack" else []
        for view in views:
            found += rule.violations(view, config)
            rule.edits(view, config)
        assert all(violation.text for violation in found)


def has_no_unknown_value(value: Any) -> bool:
    if isinstance(value, dict):
        return all(has_no_unknown_value(item) for item in value.values())
    if isinstance(value, list):
        return all(has_no_unknown_value(item) for item in value)
    return value is not UNKNOWN


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(PODS.filter(has_no_unknown_value))
def test_remediation_that_changes_a_manifest_reduces_the_violations(pod: dict[str, Any]) -> None:
    manifest = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": {"tasks": [{"replicas": 1, "template": {"spec": pod}}]},
    }
    for rule in RULES:
        repaired = remediate(rule.name, manifest) if rule.remedy else None
        if repaired is not None:
            assert len(evaluate_rule(rule.name, repaired)) < len(evaluate_rule(rule.name, manifest))
