"""Manifests against the schemas of every supported release of Kubernetes, and of operators."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks
from gitops.environments.difference import values_of
from gitops.stack_file import document
from kube.kinds import KINDS
from tests.infra.conftest import Provision
from tests.infra.every_key import stacks
from tests.infra.jobs import job, objects
from tests.infra.test_every_key import SECRET
from tests.operators.definitions import GATEWAY_API, VOLCANO, GoModule, module_folder
from tests.operators.test_1_definitions import DEFINITIONS
from tools.environments import environment, run

RELEASES = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
PROGRAM = Path(__file__).parent / "schemas" / "validate.py"


@pytest.fixture(scope="module")
def python() -> Path:
    """A virtual environment with the schemas."""
    return environment("schemas")


def of_kubernetes(manifest: dict[str, Any]) -> bool:
    """Return whether the API belongs to Kubernetes itself, whose groups are not those of others."""
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    return "." not in group or (
        group.endswith(".k8s.io") and not group.endswith((".x-k8s.io", "gateway.networking.k8s.io"))
    )


def violations(python: Path, folder: Path, manifests: dict[str, Any]) -> list[str]:
    """Return what the schemas of all releases refuse."""
    file = folder / "manifests.json"
    file.write_text(json.dumps(manifests))
    found: list[str] = json.loads(run([str(python), str(PROGRAM), str(file), *RELEASES]))
    return found


STACKS = {
    name: values_of(document(CHECKOUT / f"Pulumi.{name}.yaml")["config"])
    for name in known_stacks(CHECKOUT)
} | {
    f"every key {number}": (values, SECRET & values.keys())
    for number, values in enumerate(stacks())
}


@pytest.mark.timeout(300)
def test_manifests_meet_the_strict_schemas_of_every_release(
    provision: Provision, python: Path, tmp_path: Path
) -> None:
    found = {}
    for stack, (values, secrets) in STACKS.items():
        plan = provision(values, tuple(secrets))
        manifests = {
            f"{stack}: {name}": plan.inputs(name)
            for name, made in plan.resources.items()
            if made.type.startswith("kubernetes:") and "helm.sh" not in made.type
        }
        known = {name: manifest for name, manifest in manifests.items() if of_kubernetes(manifest)}
        assert len(known) > 5, stack
        found |= known
    assert violations(python, tmp_path, found) == []


def test_a_misspelt_field_violates_every_release(python: Path, tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selectors": {"app": "a"}}}
    found = violations(python, tmp_path, {"misspelt": service})
    assert len(found) == len(RELEASES)
    assert all("selectors" in text for text in found)


_FLOWS = "installer/helm/chart/volcano/charts/jobflow/crd/bases/*.yaml"
OF_MODULES = {
    VOLCANO: ("installer/helm/chart/volcano/crd/bases/*.yaml", _FLOWS),
    **{GoModule(name, pinned): files for name, (pinned, files) in DEFINITIONS.items()},
    # Also the routes that no job has.
    GATEWAY_API: ("config/crd/standard/gateway.networking.k8s.io_*.yaml",),
}
"""Files with the definitions of custom resources, by the modules of their operators."""

WITHOUT_SCHEMA = {"keda.sh", "monitoring.coreos.com"}
"""Groups whose objects only an API server validates, in tests/operators."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a definition without unknown fields, as strict validation reads it."""
    found = dict(schema)
    if properties := schema.get("properties"):
        found["properties"] = {name: closed(each) for name, each in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = closed(schema[key])
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def served(file: Path) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield (apiVersion, kind) and the strict schema of each version of the definitions."""
    for definition in yaml.load_all(file.read_text(), yaml.CSafeLoader):
        if definition is None or definition["kind"] != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            name = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            yield name, closed(version["schema"]["openAPIV3Schema"])


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Strict schemas of custom resources, by apiVersion and kind."""
    anywhere = tmp_path_factory.mktemp("modules")
    return {
        name: schema
        for module, patterns in OF_MODULES.items()
        for pattern in patterns
        for file in module_folder(module, anywhere).glob(pattern)
        for name, schema in served(file)
    }


def custom_violations(
    definitions: Mapping[tuple[str, str], dict[str, Any]], manifest: dict[str, Any]
) -> list[str]:
    """Return what the definition of a custom resource refuses."""
    schema = definitions[manifest["apiVersion"], manifest["kind"]]
    found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stack", STACKS)
def test_custom_resources_of_stacks_meet_their_definitions(
    stack: str, provision: Provision, definitions: dict[tuple[str, str], dict[str, Any]]
) -> None:
    values, secrets = STACKS[stack]
    plan = provision(values, tuple(secrets))
    made = [
        plan.inputs(name) for name, r in plan.resources.items() if r.type.startswith("kubernetes:")
    ]
    custom = [
        each
        for each in made
        if "apiVersion" in each
        and not of_kubernetes(each)
        and each["apiVersion"].partition("/")[0] not in WITHOUT_SCHEMA
    ]
    assert {text for each in custom for text in custom_violations(definitions, each)} == set()
    assert custom or stack == "every key 1"


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_every_kind_meet_their_definitions(
    kind: str, definitions: dict[tuple[str, str], dict[str, Any]]
) -> None:
    custom = [each for each in objects(job(kind)) if not of_kubernetes(each)]
    assert custom
    assert {text for each in custom for text in custom_violations(definitions, each)} == set()


def test_a_misspelt_field_of_a_custom_resource_is_refused(
    definitions: dict[tuple[str, str], dict[str, Any]],
) -> None:
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "spec": {"wieght": 1}}
    (found,) = custom_violations(definitions, queue)
    assert "wieght" in found
