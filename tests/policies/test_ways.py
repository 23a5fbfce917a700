"""Edits to good manifests that a rule must reject, and harmless edits that no rule may reject.

`ways/not_yet.txt` names the edits that still fail this test; it must only shrink.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.policies.ways import (
    accelerators,
    additions,
    annotations,
    changes,
    clusters,
    containers,
    demand,
    disguises,
    fields,
    identities,
    jobs,
    kinds,
    lines,
    makers,
    maxima,
    networks,
    operators,
    pods,
    priorities,
    rights,
    roles,
    secrets,
    tenants,
    tokens,
    workflows,
)
from tests.policies.ways.way import Way

MODULES = (
    *(roles, accelerators, demand, operators, containers, workflows, tokens, kinds),
    *(pods, secrets, jobs, networks, tenants),
    *(identities, fields, clusters, maxima, makers, lines),
    *(changes, rights, disguises, additions, annotations, priorities),
)
WAYS = {way.description: way for module in MODULES for way in module.WAYS}
HARMLESS_MODULES = (
    *(accelerators, tokens, kinds, makers, lines, changes, workflows),
    *(rights, disguises, additions, annotations, roles, operators, networks),
)
HARMLESS = {way.description: way for module in HARMLESS_MODULES for way in module.HARMLESS}
NOT_YET = frozenset((Path(__file__).parent / "ways" / "not_yet.txt").read_text().splitlines())


def parameters(ways: dict[str, Way]) -> list[Any]:
    expected_failure = [pytest.mark.xfail(strict=True)]
    return [
        pytest.param(way, id=description, marks=expected_failure if description in NOT_YET else [])
        for description, way in ways.items()
    ]


@pytest.mark.parametrize("way", parameters(WAYS))
def test_evasion_of_the_rules_is_rejected(way: Way) -> None:
    assert way.is_rejected


@pytest.mark.parametrize("way", parameters(HARMLESS))
def test_harmless_edit_is_not_rejected(way: Way) -> None:
    assert not way.is_rejected


def test_descriptions_of_evasions_are_unique() -> None:
    assert len(WAYS) == sum(len(module.WAYS) for module in MODULES)
    assert {*WAYS, *HARMLESS} >= NOT_YET
