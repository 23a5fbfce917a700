"""Roles for a team in its namespace."""

import pytest
from pydantic import ValidationError

from gitops.access import plural
from infra.manifests import Manifest
from infra.settings.tenancy import TenancySettings
from infra.team_access import MEMBERS, VIEWERS, team_access
from kube.kinds import KINDS
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import Document
from policies.evaluation import evaluate
from tests.infra.jobs import job, objects


def built(**groups: list[str]) -> dict[tuple[str, str], Manifest]:
    tenancy = TenancySettings.model_validate({"namespace": "vision", "groups": groups})
    return {(item["kind"], item["metadata"]["name"]): item for item in team_access(tenancy)}


def test_no_roles_are_created_without_groups() -> None:
    assert built() == {}


def test_each_group_is_bound_to_its_role_in_the_namespace() -> None:
    found = built(members=["vision", "leads"], viewers=["guests"])
    assert set(found) == {
        (kind, name) for kind in ("Role", "RoleBinding") for name in (MEMBERS, VIEWERS)
    }
    binding = found["RoleBinding", MEMBERS]
    assert binding["metadata"]["namespace"] == "vision"
    assert binding["roleRef"]["name"] == MEMBERS
    assert [subject["name"] for subject in binding["subjects"]] == ["vision", "leads"]
    assert {subject["kind"] for subject in binding["subjects"]} == {"Group"}


def created(name: str) -> set[tuple[str, str]]:
    """Return the group and the plural of each resource that a role may create."""
    role = built(members=["vision"], viewers=["guests"])["Role", name]
    rules = [rule for rule in role["rules"] if "create" in rule["verbs"]]
    return {(rule["apiGroups"][0], each) for rule in rules for each in rule["resources"]}


def test_viewers_cannot_submit_runs() -> None:
    assert created(VIEWERS) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_members_can_submit_all_kinds_but_not_create_network_objects(kind: str) -> None:
    manifests = objects(job(kind, **({} if kind == "notebook" else {"nodes": 1})))
    required_resources = {
        (manifest["apiVersion"].rpartition("/")[0], plural(manifest["kind"]))
        for manifest in manifests
    }
    network_kinds = {
        "notebook": {
            ("", "services"),
            ("networking.k8s.io", "networkpolicies"),
            ("gateway.networking.k8s.io", "httproutes"),
        },
        "ray": {("networking.k8s.io", "networkpolicies")},
    }
    assert required_resources - created(MEMBERS) == network_kinds.get(kind, set())


def test_policy_pack_accepts_the_roles() -> None:
    documents = [
        Document("roles.yaml", manifest, None)
        for manifest in built(members=["vision"], viewers=["guests"]).values()
    ]
    assert evaluate(documents, configure({}, RULES), whole_stack=False) == []


@pytest.mark.parametrize("name", ["system:authenticated", "system:masters", ""])
def test_system_groups_are_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match=r"has the prefix system:|at least 1 character"):
        TenancySettings.model_validate({"namespace": "vision", "groups": {"members": [name]}})
