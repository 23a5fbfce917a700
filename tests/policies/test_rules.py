"""Every rule: good manifests pass, bad ones are named, unknown values are not evaluated."""

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
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, changed, judge, type_of

NAMES = [rule.name for rule in RULES]
STRICT = {
    "gpu-whole-nodes": {"gpusPerNode": 1},
    "image-registry-allowed": {"allowedRegistries": ["127.0.0.1:5000"]},
    "gpu-budget": {"maxGpus": 10, "maxGpusPerQueue": {"research": 9}},
    "gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": 1}, "maxHourlyCost": 10},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_good_stack_passes(name: str) -> None:
    assert judge(name, *manifests.whole_stack(), config=STRICT.get(name)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_bad_stack_is_refused_with_path_value_and_remedy(case: Case) -> None:
    messages = judge(case.rule, *case.stack(), config=case.config)
    assert messages
    for words in case.says:
        assert words in messages[0]


def test_every_rule_has_fixtures() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}


def test_rule_names_are_unique_and_every_rule_is_described() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for rule in RULES:
        assert rule.check.__doc__, rule.name
        assert rule.description.endswith(".")
        assert rule.remediation.endswith((".", '"'))


def places(value: Any, steps: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value below a value, deepest last."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*steps, key)
        if isinstance(item, dict | list):
            yield from places(item, (*steps, key))


def unknown_at(manifest: Any, steps: tuple[Any, ...]) -> Any:
    """Return a copy in which the value at one path is unknown."""
    head, *rest = steps
    inner = unknown_at(manifest[head], tuple(rest)) if rest else UNKNOWN
    copied = manifest.copy()
    copied[head] = inner
    return copied


@dataclass(frozen=True)
class Doubt:
    """A good stack in which the value at one path of a manifest is unknown."""

    kind: str
    steps: tuple[Any, ...]
    view: View
    stack: Stack

    def violations(self, rule: Rule[Any], config: RuleConfig) -> list[str]:
        if rule.scope == "stack":
            return [violation.text for violation in rule.check(self.stack, config)]
        return [found.text for found in rule.violations(self.view, config)]


@cache
def doubts() -> list[Doubt]:
    """Return a stack for every path; all rules share what they derive from it."""
    stack = [View(Resource(type_of(item), item)) for item in manifests.whole_stack()]
    found = []
    for index, view in enumerate(stack):
        manifest = view.resource.properties
        for steps in places(manifest):
            unknown = View(Resource(type_of(manifest), unknown_at(manifest, steps)))
            others = Stack([*stack[:index], unknown, *stack[index + 1 :]])
            found.append(Doubt(manifest["kind"], steps, unknown, others))
    return found


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_unknown_value_anywhere_is_never_a_violation(rule: Rule[Any]) -> None:
    config = rule.configure(STRICT.get(rule.name, {}))
    for doubt in doubts():
        assert doubt.violations(rule, config) == [], (doubt.kind, doubt.steps)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_an_unknown_image_and_environment_silence_nothing(case: Case) -> None:
    """Unknown in a preview are usually the digest of an image or another stack's output."""
    stack = case.stack()
    for manifest in stack:
        if manifest["kind"] == "Job" and not case.rule.startswith(("image-", "no-literal")):
            for pod in manifest["spec"].get("tasks", [manifest["spec"]]):
                for container in pod["template"]["spec"]["containers"]:
                    if container is not None:
                        container["image"] = UNKNOWN_VALUE
                        container["env"] = [{"name": "RUN", "value": UNKNOWN_VALUE}]
    assert judge(case.rule, *stack, config=case.config)


def test_a_bad_value_that_is_unknown_is_not_evaluated() -> None:
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(
        manifests.volcano_job(),
        (f"{container}/resources/limits/nvidia.com~gpu", UNKNOWN_VALUE),
        (f"{container}/resources/requests/nvidia.com~gpu", REMOVED),
        ("spec/queue", UNKNOWN_VALUE),
    )
    for rule in RULES:
        stack = [item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"]
        assert judge(rule.name, *stack, job) == [], rule.name


def test_plain_data_and_proxies_are_evaluated_alike() -> None:
    job = manifests.volcano_job()
    assert plain(job) == job
