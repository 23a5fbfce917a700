"""Resource names in all environments, which an upgrade must not change."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from gitops.changed import known_stacks
from gitops.environments.difference import values_of
from gitops.stack_file import document
from tests.infra.conftest import Plan, Provision

GOLDEN = Path(__file__).parent / "urns.txt"
HOW_TO_FIX = (
    "an update deletes a resource under its old name: pass aliases to the renamed one, describe it "
    "in docs/upgrading.md, and then write the new lines to tests/infra/urns.txt"
)


def urns(stack: str, plan: Plan) -> Iterator[str]:
    """Yield a stack's URNs without their constant prefix and without run hashes."""
    for request in plan.resources.values():
        if request.type == "pulumi:pulumi:Stack":
            continue
        types, parent = [request.type], request.parent
        while not parent.split("::")[2].endswith("pulumi:pulumi:Stack"):
            owner = plan[parent.rpartition("::")[2]]
            types, parent = [owner.type, *types], owner.parent
        name = re.sub(r"-[0-9a-f]{8}(?=-|$)", "-<hash>", request.name)
        yield f"{stack} {'$'.join(types)}::{name}"


@pytest.mark.parametrize("stack", known_stacks(CHECKOUT))
def test_resource_names_of_each_environment_are_unchanged(stack: str, provision: Provision) -> None:
    values, secrets = values_of(document(CHECKOUT / f"Pulumi.{stack}.yaml")["config"])
    found = set(urns(stack, provision(values, tuple(secrets))))
    lines = GOLDEN.read_text().splitlines()
    assert found == {line for line in lines if line.startswith(f"{stack} ")}, HOW_TO_FIX
