"""Edits of good manifests that a rule must refuse, and some that no rule may refuse.

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

CLASSES = (
    *(roles, accelerators, demand, operators, containers, workflows, tokens, kinds),
    *(pods, secrets, jobs, networks, tenants),
    *(identities, fields, clusters, maxima, makers, lines),
    *(changes, rights, disguises, additions, annotations, priorities),
)
WAYS = {way.what: way for module in CLASSES for way in module.WAYS}
HARMLESS_CLASSES = (
    *(accelerators, tokens, kinds, makers, lines, changes, workflows),
    *(rights, disguises, additions, annotations, roles, operators),
)
HARMLESS = {way.what: way for module in HARMLESS_CLASSES for way in module.HARMLESS}
NOT_YET = frozenset((Path(__file__).parent / "ways" / "not_yet.txt").read_text().splitlines())


def parameters(ways: dict[str, Way]) -> list[Any]:
    later = [pytest.mark.xfail(strict=True)]
    return [
        pytest.param(way, id=what, marks=later if what in NOT_YET else [])
        for what, way in ways.items()
    ]


@pytest.mark.parametrize("way", parameters(WAYS))
def test_a_way_around_the_rules_is_refused(way: Way) -> None:
    assert way.is_refused


@pytest.mark.parametrize("way", parameters(HARMLESS))
def test_a_harmless_edit_is_not_refused(way: Way) -> None:
    assert not way.is_refused


def test_names_of_ways_are_unique() -> None:
    assert len(WAYS) == sum(len(module.WAYS) for module in CLASSES)
    assert {*WAYS, *HARMLESS} >= NOT_YET
