"""Manifests against the schemas of every supported release of Kubernetes."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks
from gitops.environments.difference import values_of
from gitops.stack_file import document
from tests.environments import environment, run
from tests.infra.conftest import Provision
from tests.infra.every_key import stacks
from tests.infra.test_every_key import SECRET

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
@pytest.mark.parametrize("stack", STACKS)
def test_manifests_meet_the_strict_schemas_of_every_release(
    stack: str, provision: Provision, python: Path, tmp_path: Path
) -> None:
    values, secrets = STACKS[stack]
    plan = provision(values, tuple(secrets))
    manifests = {
        name: plan.inputs(name)
        for name, made in plan.resources.items()
        if made.type.startswith("kubernetes:") and "helm.sh" not in made.type
    }
    known = {name: manifest for name, manifest in manifests.items() if of_kubernetes(manifest)}
    assert len(known) > 5
    assert violations(python, tmp_path, known) == []


def test_a_misspelt_field_violates_every_release(python: Path, tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"selectors": {"app": "a"}}}
    found = violations(python, tmp_path, {"misspelt": service})
    assert len(found) == len(RELEASES)
    assert all("selectors" in text for text in found)
