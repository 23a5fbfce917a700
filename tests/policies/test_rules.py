"""Checks of every rule with good, bad and unknown values."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from policies.catalogue import RULES
from policies.properties import plain
from policies.resources import Resource
from policies.rule import Rule, RuleConfig
from policies.values import UNKNOWN
from policies.views import Stack, View
from tests.policies import manifests
from tests.policies.case import Case
from tests.policies.cases import CASES
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, changed, evaluate_rule, type_of

NAMES = [rule.name for rule in RULES]
STRICT = {
    "gpu-whole-nodes": {"gpusPerNode": 1},
    "image-registry-allowed": {"allowedRegistries": ["127.0.0.1:5000"]},
    "gpu-budget": {"maxGpus": 10, "maxGpusPerQueue": {"research": 9}},
    "gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": 1}, "maxHourlyCost": 10},
}


@pytest.mark.parametrize("name", NAMES)
def test_good_stack_passes_every_rule(name: str) -> None:
    assert evaluate_rule(name, *manifests.whole_stack(), config=STRICT.get(name)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_violation_is_reported_with_path_value_and_remediation(case: Case) -> None:
    messages = evaluate_rule(case.rule, *case.stack(), config=case.config)
    assert messages
    for text in case.reports:
        assert text in messages[0]


def test_every_rule_has_fixtures() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}


def test_rules_have_unique_names_and_complete_descriptions() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for rule in RULES:
        assert rule.check.__doc__, rule.name
        assert rule.description.endswith(".")
        assert rule.remediation.endswith((".", '"'))


def paths(value: Any, steps: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all nested values, parents first."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*steps, key)
        if isinstance(item, dict | list):
            yield from paths(item, (*steps, key))


def unknown_at(manifest: Any, steps: tuple[Any, ...]) -> Any:
    """Return a copy in which the value at the path is unknown."""
    head, *rest = steps
    inner = unknown_at(manifest[head], tuple(rest)) if rest else UNKNOWN
    copied = manifest.copy()
    copied[head] = inner
    return copied


@dataclass(frozen=True)
class PartlyUnknownStack:
    """A good stack in which the value at one path in a manifest is unknown."""

    kind: str
    steps: tuple[Any, ...]
    view: View
    stack: Stack

    def violations(self, rule: Rule[Any], config: RuleConfig) -> list[str]:
        if rule.scope == "stack":
            return [violation.text for violation in rule.check(self.stack, config)]
        return [found.text for found in rule.violations(self.view, config)]


@cache
def partly_unknown_stacks() -> list[PartlyUnknownStack]:
    """Return one stack for every path. The stacks are cached because all rules evaluate them."""
    stack = [View(Resource(type_of(item), item)) for item in manifests.whole_stack()]
    found = []
    for index, view in enumerate(stack):
        manifest = view.resource.properties
        for steps in paths(manifest):
            unknown = View(Resource(type_of(manifest), unknown_at(manifest, steps)))
            partly_unknown = Stack([*stack[:index], unknown, *stack[index + 1 :]])
            found.append(PartlyUnknownStack(manifest["kind"], steps, unknown, partly_unknown))
    return found


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_unknown_value_at_any_path_is_never_a_violation(rule: Rule[Any]) -> None:
    config = rule.configure(STRICT.get(rule.name, {}))
    for partly_unknown in partly_unknown_stacks():
        assert partly_unknown.violations(rule, config) == [], (
            partly_unknown.kind,
            partly_unknown.steps,
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_unknown_image_and_environment_do_not_hide_other_violations(case: Case) -> None:
    """During a preview, image digests and outputs of other stacks are usually unknown."""
    stack = case.stack()
    for manifest in stack:
        if manifest["kind"] == "Job" and not case.rule.startswith(("image-", "no-literal")):
            for pod in manifest["spec"].get("tasks", [manifest["spec"]]):
                for container in pod["template"]["spec"]["containers"]:
                    if container is not None:
                        container["image"] = UNKNOWN_VALUE
                        container["env"] = [{"name": "RUN", "value": UNKNOWN_VALUE}]
    assert evaluate_rule(case.rule, *stack, config=case.config)


def test_unknown_gpu_limit_and_queue_are_not_violations() -> None:
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(
        manifests.volcano_job(),
        (f"{container}/resources/limits/nvidia.com~gpu", UNKNOWN_VALUE),
        (f"{container}/resources/requests/nvidia.com~gpu", REMOVED),
        ("spec/queue", UNKNOWN_VALUE),
    )
    for rule in RULES:
        stack = [item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"]
        assert evaluate_rule(rule.name, *stack, job) == [], rule.name


def test_plain_data_is_not_changed_by_the_conversion() -> None:
    job = manifests.volcano_job()
    assert plain(job) == job
