"""The rules' examples, which docs/policies.md shows."""

from typing import Any

import pytest
import yaml

from policies.catalogue import RULES
from policies.rule import Rule
from tests.policies.harness import Manifest, judge
from tools.generate.policy_examples import EXAMPLES, SETTINGS


def manifests_of(rule: Rule[Any], text: str) -> list[Manifest]:
    """An example as manifests: a pod specification is put into a workload of the rule's topic."""
    if rule.scope != "pod":
        return list(yaml.safe_load_all(text))
    component = "inference" if rule.topic in ("inference", "models", "rollout") else "training"
    metadata = {"name": "x", "labels": {"app.kubernetes.io/component": component}}
    spec = {"template": {"metadata": metadata, "spec": yaml.safe_load(text)}}
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_examples_are_bad_and_good(rule: Rule[Any]) -> None:
    example, config = EXAMPLES[rule.name], SETTINGS.get(rule.name)
    assert judge(rule.name, *manifests_of(rule, example.bad), config=config)
    assert judge(rule.name, *manifests_of(rule, example.good), config=config) == []


def test_there_is_no_example_of_a_rule_that_is_gone() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}
