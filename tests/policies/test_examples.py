"""The examples for each rule in docs/policies.md."""

from typing import Any

import yaml

from policies.catalogue import RULES
from policies.rule import Rule
from tests.policies.harness import Manifest, evaluate_rule
from tools.generate.policy_examples import EXAMPLES, SETTINGS


def manifests_of(rule: Rule[Any], text: str) -> list[Manifest]:
    """Return an example as manifests; pod specifications are put into a suitable Deployment."""
    if rule.scope != "pod":
        return list(yaml.safe_load_all(text))
    component = "inference" if rule.topic in ("inference", "models", "rollout") else "training"
    metadata = {"name": "x", "labels": {"app.kubernetes.io/component": component}}
    spec = {"template": {"metadata": metadata, "spec": yaml.safe_load(text)}}
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}]


def test_bad_example_violates_its_rule_and_good_example_passes() -> None:
    for rule in RULES:
        example, config = EXAMPLES[rule.name], SETTINGS.get(rule.name)
        assert evaluate_rule(rule.name, *manifests_of(rule, example.bad), config=config), rule.name
        assert evaluate_rule(rule.name, *manifests_of(rule, example.good), config=config) == []


def test_exactly_the_existing_rules_have_examples() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}
