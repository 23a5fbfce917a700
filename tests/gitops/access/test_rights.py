"""Rights of pipelines for the objects of a stack."""

import itertools
from typing import Any

import pytest
import yaml

from gitops.__main__ import main
from gitops.access.rights import Object, access, plural, snapshots
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
def made() -> list[dict[str, Any]]:
    return list(access("prod", OBJECTS, {"preview": ["ci"], "update": ["cd"]}))


def allowed(made: list[dict[str, Any]], role: str, namespace: str, resource: str) -> dict[str, str]:
    """Return the names for which each verb is allowed, or `*`."""
    found = {}
    for manifest in made:
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
def test_resources_are_plurals_of_kinds(kind: str, resource: str) -> None:
    assert plural(kind) == resource


def test_each_namespace_has_a_role_for_its_own_objects(made: list[dict[str, Any]]) -> None:
    assert "patch" in allowed(made, UPDATE, "gpu-system", "daemonsets")
    assert allowed(made, UPDATE, "ml", "daemonsets") == {}
    assert allowed(made, UPDATE, "", "deployments") == {}


def test_objects_of_other_teams_cannot_be_changed(made: list[dict[str, Any]]) -> None:
    for resource, name in (("queues", "research"), ("validatingadmissionpolicies", "rules")):
        verbs = allowed(made, UPDATE, "", resource)
        assert {verbs[verb] for verb in ("patch", "update", "delete")} == {name}
    assert allowed(made, UPDATE, "ml", "roles")["escalate"] == "team-members"


@pytest.mark.parametrize("role", [PREVIEW, UPDATE])
def test_other_secrets_cannot_be_read(made: list[dict[str, Any]], role: str) -> None:
    verbs = allowed(made, role, "ml", "secrets")
    assert verbs["get"] == "pull"
    assert verbs.keys().isdisjoint({"list", "watch"})


def test_admission_policies_see_everything_that_previews_write(made: list[dict[str, Any]]) -> None:
    assert set(allowed(made, PREVIEW, "", "validatingadmissionpolicies")) == {"get"}
    assert allowed(made, PREVIEW, "ml", "deployments").keys() == {"get", "create", "patch"}


def test_previewers_are_limited_to_dry_runs_before_they_get_rights(
    made: list[dict[str, Any]],
) -> None:
    policy, binding = made[:2]
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert "'ci'" in policy["spec"]["matchConditions"][0]["expression"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_only_updates_need_no_policy() -> None:
    made = access("prod", OBJECTS, {"preview": [], "update": ["cd"]})
    assert {manifest["apiVersion"] for manifest in made} == {"rbac.authorization.k8s.io/v1"}


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
def test_groups_that_would_get_wrong_rights_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["access", "--stack", "prod", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_snapshots_list_what_the_scheduler_sees_and_no_secrets() -> None:
    made = list(snapshots(["viewers"], "volcano-system"))
    for resource in ("nodes", "pods", "queues", "podgroups", "priorityclasses", "deployments"):
        assert allowed(made, "gpu-platform-snapshot", "", resource) == {"list": "*"}
    assert allowed(made, "gpu-platform-snapshot", "", "pods/log") == {"get": "*"}
    assert allowed(made, "gpu-platform-snapshot", "", "configmaps") == {}
    assert allowed(made, "gpu-platform-snapshot", "volcano-system", "configmaps") == {"list": "*"}
    assert allowed(made, "gpu-platform-snapshot", "", "secrets") == {}


def test_kubectl_reads_every_group_as_a_string(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "--stack", "prod", "--snapshotters", "1e3", "y", "08"]) == 0
    documents = yaml.load_all(capsys.readouterr().out, Loader)
    subjects = [each.get("subjects", []) for each in documents]
    assert {"1e3", "y", "08"} == {each["name"] for each in itertools.chain(*subjects)}
