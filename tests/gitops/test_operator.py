import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks

FOLDER = CHECKOUT / "gitops" / "operator"
SCHEMA = json.loads((Path(__file__).parent / "data" / "operator.schema.json").read_text())
RESOURCES: list[dict[str, Any]] = [
    resource
    for file in sorted(FOLDER.glob("*.yaml"))
    for resource in yaml.safe_load_all(file.read_text())
]


@pytest.mark.parametrize(
    "resource", RESOURCES, ids=lambda r: f"{r['kind']}-{r['metadata']['name']}"
)
def test_resources_match_the_operators_schema(resource: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(resource)


def test_schema_rejects_unknown_fields() -> None:
    stack = {**RESOURCES[0], "spec": {**RESOURCES[0]["spec"], "policyPacks": []}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(stack)


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [resource for resource in RESOURCES if resource["kind"] == kind]


def test_dev_staging_and_prod_have_a_stack_and_a_program_each() -> None:
    platforms = {r["spec"]["stack"] for r in of_kind("Stack") if "projectRepo" in r["spec"]}
    assert platforms == {"dev", "staging", "prod"} <= set(known_stacks(CHECKOUT))
    programs = {(r["metadata"]["namespace"], r["metadata"]["name"]) for r in of_kind("Program")}
    referred = {
        (r["metadata"]["namespace"], r["spec"]["programRef"]["name"])
        for r in of_kind("Stack")
        if "programRef" in r["spec"]
    }
    assert len(programs) == 3
    assert referred == programs


def test_deleting_a_stack_resource_destroys_nothing() -> None:
    assert not any(r["spec"].get("destroyOnFinalize") for r in of_kind("Stack"))


def test_restricted_workspaces_use_an_image_for_their_user() -> None:
    workspaces = [
        resource["spec"]["workspaceTemplate"]["spec"]
        for resource in of_kind("Stack")
        if "workspaceTemplate" in resource["spec"]
    ]
    assert workspaces
    # The operator runs the image as user 1000, which has no home directory in the image for root.
    for workspace in workspaces:
        assert workspace["securityProfile"] == "restricted"
        assert workspace["image"].endswith("-nonroot")


def test_secret_values_come_only_from_kubernetes_secrets() -> None:
    for resource in of_kind("Stack"):
        for reference in resource["spec"]["envRefs"].values():
            assert reference["type"] == "Secret"
            assert set(reference) == {"type", "secret"}


def test_prerequisites_of_each_stack_exist() -> None:
    stacks = {(r["metadata"]["namespace"], r["metadata"]["name"]) for r in of_kind("Stack")}
    for resource in of_kind("Stack"):
        for needed in resource["spec"].get("prerequisites", []):
            assert (resource["metadata"]["namespace"], needed["name"]) in stacks
