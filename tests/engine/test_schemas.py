"""Manifests match the schemas of all supported Kubernetes releases and of operators."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks
from gitops.environments.difference import values_of
from gitops.stack_file import document
from infra.settings import StackSettings, validate
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from kube.kinds import KINDS
from tests.infra.conftest import Provision
from tests.infra.examples import SECRET, stacks
from tests.infra.jobs import job, objects
from tests.operators.definitions import GATEWAY_API, VOLCANO, GoModule, module_folder
from tests.operators.test_1_definitions import DEFINITIONS
from tools.environments import environment, run

RELEASES = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
PROGRAM = Path(__file__).parent / "schemas" / "validate.py"


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python of a virtual environment with the schemas."""
    return environment("schemas")


def is_builtin(manifest: dict[str, Any]) -> bool:
    """Return whether the API group belongs to Kubernetes itself."""
    group = str(manifest["apiVersion"]).rpartition("/")[0]
    return "." not in group or (
        group.endswith(".k8s.io") and not group.endswith((".x-k8s.io", "gateway.networking.k8s.io"))
    )


def violations(python: Path, folder: Path, manifests: dict[str, Any]) -> list[str]:
    """Return the violations of the schemas of all releases."""
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
def test_manifests_match_the_strict_schemas_of_every_release(
    provision: Provision, python: Path, tmp_path: Path
) -> None:
    found = {}
    for stack, (values, secrets) in STACKS.items():
        plan = provision(values, tuple(secrets))
        manifests = {
            f"{stack}: {name}": plan.inputs(name)
            for name, request in plan.resources.items()
            if request.type.startswith("kubernetes:") and "helm.sh" not in request.type
        }
        builtin = {name: manifest for name, manifest in manifests.items() if is_builtin(manifest)}
        assert len(builtin) > 5, stack
        found |= builtin
    assert violations(python, tmp_path, found) == []


def test_misspelled_field_violates_the_schema_of_every_release(
    python: Path, tmp_path: Path
) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selectors": {"app": "a"}}}
    found = violations(python, tmp_path, {"misspelled": service})
    assert len(found) == len(RELEASES)
    assert all("selectors" in text for text in found)


_FLOWS = "installer/helm/chart/volcano/charts/jobflow/crd/bases/*.yaml"
DEFINITION_FILES = {
    VOLCANO: ("installer/helm/chart/volcano/crd/bases/*.yaml", _FLOWS),
    **{GoModule(name, pinned): files for name, (pinned, files) in DEFINITIONS.items()},
    # Routes are created only for services and notebooks.
    GATEWAY_API: ("config/crd/standard/gateway.networking.k8s.io_*.yaml",),
}
"""Go modules of operators, and their files with custom resource definitions."""

WITHOUT_SCHEMA = {"keda.sh", "monitoring.coreos.com"}
"""Groups whose objects only an API server validates, in tests/operators."""


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with unknown fields forbidden, as in strict validation."""
    found = dict(schema)
    if properties := schema.get("properties"):
        found["properties"] = {name: strict(each) for name, each in properties.items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = strict(schema[key])
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") else found


def served(file: Path) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield (apiVersion, kind) and the strict schema for each version in a file."""
    for definition in yaml.load_all(file.read_text(), yaml.CSafeLoader):
        if definition is None or definition["kind"] != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            name = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            yield name, strict(version["schema"]["openAPIV3Schema"])


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Strict schemas of custom resources, by apiVersion and kind."""
    folder = tmp_path_factory.mktemp("modules")
    return {
        name: schema
        for module, patterns in DEFINITION_FILES.items()
        for pattern in patterns
        for file in module_folder(module, folder).glob(pattern)
        for name, schema in served(file)
    }


def custom_violations(
    definitions: Mapping[tuple[str, str], dict[str, Any]], manifest: dict[str, Any]
) -> list[str]:
    """Return a custom resource's violations of its definition."""
    schema = definitions[manifest["apiVersion"], manifest["kind"]]
    found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stack", STACKS)
def test_custom_resources_of_stacks_match_their_definitions(
    stack: str, provision: Provision, definitions: dict[tuple[str, str], dict[str, Any]]
) -> None:
    values, secrets = STACKS[stack]
    plan = provision(values, tuple(secrets))
    stack_objects = [
        plan.inputs(name) for name, r in plan.resources.items() if r.type.startswith("kubernetes:")
    ]
    custom = [
        each
        for each in stack_objects
        if "apiVersion" in each
        and not is_builtin(each)
        and each["apiVersion"].partition("/")[0] not in WITHOUT_SCHEMA
    ]
    assert {text for each in custom for text in custom_violations(definitions, each)} == set()
    assert custom or stack == "every key 1"


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_every_kind_match_their_definitions(
    kind: str, definitions: dict[tuple[str, str], dict[str, Any]]
) -> None:
    custom = [each for each in objects(job(kind)) if not is_builtin(each)]
    assert custom
    assert {text for each in custom for text in custom_violations(definitions, each)} == set()


def test_misspelled_field_in_a_custom_resource_is_rejected(
    definitions: dict[tuple[str, str], dict[str, Any]],
) -> None:
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "spec": {"wieght": 1}}
    (found,) = custom_violations(definitions, queue)
    assert "wieght" in found


def declared(annotation: Any, seen: set[type] | None = None) -> Iterator[tuple[str, str]]:
    """Yield each model with each of its keys."""
    seen = set() if seen is None else seen
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model and annotation not in seen:
        seen.add(annotation)
        for name, field in annotation.model_fields.items():
            yield annotation.__qualname__, name
            yield from declared(field.annotation, seen)
    for part in get_args(annotation):
        yield from declared(part, seen)


def used(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each model with each of the keys that a configuration sets."""
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield type(value).__qualname__, name
            yield from used(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from used(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from used(item)


def test_every_key_is_used_by_one_of_the_stacks() -> None:
    keys = set(declared(StackSettings))
    for values in stacks():
        secrets = SECRET & values.keys()
        settings = validate(values, secrets)
        for concern in values.keys() - secrets:
            keys.discard(("StackSettings", concern))
            keys -= set(used(getattr(settings, concern)))
    keys -= {("TrainingConfig", name) for name in DERIVED_HYPERPARAMETERS}
    assert not keys, "add these keys to tests/infra/every_key.yaml"
