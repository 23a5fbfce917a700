"""RBAC rights that pipelines get for a stack's objects."""

import itertools
from typing import Any

import pytest
import yaml

from gitops.__main__ import main
from gitops.access import Object, access, plural, snapshots
from policies.kubernetes_yaml import Loader

OBJECTS = [
    Object("", "", "namespaces", "ml"),
    Object("", "scheduling.volcano.sh", "queues", "research"),
    Object("", "admissionregistration.k8s.io", "validatingadmissionpolicies", "rules"),
    Object("ml", "", "secrets", "pull"),
    Object("ml", "apps", "deployments", "digits"),
    Object("ml", "rbac.authorization.k8s.io", "roles", "team-members"),
    Object("gpu-system", "apps", "daemonsets", "plugin"),
]
PREVIEW, UPDATE = "gpu-platform-preview-prod", "gpu-platform-update-prod"


@pytest.fixture
def manifests() -> list[dict[str, Any]]:
    return list(access("prod", OBJECTS, {"preview": ["ci"], "update": ["cd"]}))


def allowed(
    manifests: list[dict[str, Any]], role: str, namespace: str, resource: str
) -> dict[str, str]:
    """Return the names for which each verb is allowed, or `*`."""
    found = {}
    for manifest in manifests:
        metadata = manifest["metadata"]
        if metadata["name"] == role and metadata.get("namespace", "") == namespace:
            for rule in manifest.get("rules", []):
                if resource in rule["resources"]:
                    names = ",".join(rule.get("resourceNames", ["*"]))
                    found |= dict.fromkeys(rule["verbs"], names)
    return found


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("Job", "jobs"),
        ("NetworkPolicy", "networkpolicies"),
        ("StorageClass", "storageclasses"),
        ("Endpoints", "endpoints"),
        ("InferenceService", "inferenceservices"),
    ],
)
def test_resource_name_is_the_plural_of_the_kind(kind: str, resource: str) -> None:
    assert plural(kind) == resource


def test_each_namespace_has_a_role_for_its_own_objects(manifests: list[dict[str, Any]]) -> None:
    assert "patch" in allowed(manifests, UPDATE, "gpu-system", "daemonsets")
    assert allowed(manifests, UPDATE, "ml", "daemonsets") == {}
    assert allowed(manifests, UPDATE, "", "deployments") == {}


def test_pipelines_cannot_change_objects_of_other_teams(manifests: list[dict[str, Any]]) -> None:
    for resource, name in (("queues", "research"), ("validatingadmissionpolicies", "rules")):
        verbs = allowed(manifests, UPDATE, "", resource)
        assert {verbs[verb] for verb in ("patch", "update", "delete")} == {name}
    assert allowed(manifests, UPDATE, "ml", "roles")["escalate"] == "team-members"


@pytest.mark.parametrize("role", [PREVIEW, UPDATE])
def test_pipelines_cannot_read_other_secrets(manifests: list[dict[str, Any]], role: str) -> None:
    verbs = allowed(manifests, role, "ml", "secrets")
    assert verbs["get"] == "pull"
    assert verbs.keys().isdisjoint({"list", "watch"})


def test_previews_cannot_delete_objects_or_change_admission_policies(
    manifests: list[dict[str, Any]],
) -> None:
    assert set(allowed(manifests, PREVIEW, "", "validatingadmissionpolicies")) == {"get"}
    assert allowed(manifests, PREVIEW, "ml", "deployments").keys() == {"get", "create", "patch"}


def test_dry_run_policy_is_created_before_preview_rights(manifests: list[dict[str, Any]]) -> None:
    policy, binding = manifests[:2]
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert "'ci'" in policy["spec"]["matchConditions"][0]["expression"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_update_rights_alone_need_no_admission_policy() -> None:
    manifests = access("prod", OBJECTS, {"preview": [], "update": ["cd"]})
    assert {manifest["apiVersion"] for manifest in manifests} == {"rbac.authorization.k8s.io/v1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "add --previewers GROUP"),
        (["--previewers", "system:authenticated"], "use a custom group"),
        (["--previewers", "it's"], "use a custom group"),
        (
            ["--previewers", "ci", "--updaters", "ci"],
            "ci cannot be used for both previews and updates",
        ),
    ],
)
def test_unsuitable_groups_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["access", "--stack", "prod", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_snapshot_role_lists_scheduling_objects_but_not_secrets() -> None:
    manifests = list(snapshots(["viewers"], "volcano-system"))
    for resource in ("nodes", "pods", "queues", "podgroups", "priorityclasses", "deployments"):
        assert allowed(manifests, "gpu-platform-snapshot", "", resource) == {"list": "*"}
    assert allowed(manifests, "gpu-platform-snapshot", "", "pods/log") == {"get": "*"}
    assert allowed(manifests, "gpu-platform-snapshot", "", "configmaps") == {}
    assert allowed(manifests, "gpu-platform-snapshot", "volcano-system", "configmaps") == {
        "list": "*"
    }
    assert allowed(manifests, "gpu-platform-snapshot", "", "secrets") == {}


def test_group_names_are_always_yaml_strings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "--stack", "prod", "--snapshotters", "1e3", "y", "08"]) == 0
    documents = yaml.load_all(capsys.readouterr().out, Loader)
    subjects = [each.get("subjects", []) for each in documents]
    assert {"1e3", "y", "08"} == {each["name"] for each in itertools.chain(*subjects)}
