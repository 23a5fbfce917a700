"""Edits to good manifests that a rule must reject, and harmless edits that no rule may reject."""

from types import ModuleType

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


def name_of(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_evasions_of_the_rules_are_rejected(module: ModuleType) -> None:
    assert [way.description for way in module.WAYS if not way.is_rejected] == []


@pytest.mark.parametrize("module", HARMLESS_MODULES, ids=name_of)
def test_harmless_edits_are_not_rejected(module: ModuleType) -> None:
    assert [way.description for way in module.HARMLESS if way.is_rejected] == []


def test_descriptions_of_evasions_are_unique() -> None:
    assert len(WAYS) == sum(len(module.WAYS) for module in MODULES)
