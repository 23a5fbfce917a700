"""Checks of every rule with good, bad and unknown values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from policies.catalogue import RULES
from policies.properties import plain
from policies.resources import Resource
from policies.rule import Rule, RuleConfig
from policies.values import UNKNOWN
from policies.views import Stack, View
from tests.policies import manifests
from tests.policies.cases import CASES
from tests.policies.harness import (
    REMOVED,
    UNKNOWN_VALUE,
    Case,
    Manifest,
    changed,
    evaluate_rule,
    type_of,
)
from tools.generate.policy_examples import EXAMPLES, SETTINGS

NAMES = [rule.name for rule in RULES]
STRICT = {
    "gpu-whole-nodes": {"gpusPerNode": 1},
    "image-registry-allowed": {"allowedRegistries": ["127.0.0.1:5000"]},
    "gpu-budget": {"maxGpus": 10, "maxGpusPerQueue": {"research": 9}},
    "gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": 1}, "maxHourlyCost": 10},
}


def test_good_stack_passes_every_rule() -> None:
    stack = manifests.whole_stack()
    found = {name: evaluate_rule(name, *stack, config=STRICT.get(name)) for name in NAMES}
    assert {name: messages for name, messages in found.items() if messages} == {}


def test_violations_are_reported_with_path_value_and_remediation() -> None:
    for case in CASES:
        messages = evaluate_rule(case.rule, *case.stack(), config=case.config)
        assert messages, case
        for text in case.reports:
            assert text in messages[0], case


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


def partly_unknown_stacks() -> Iterator[PartlyUnknownStack]:
    """Yield one stack for every path."""
    stack = [View(Resource(type_of(item), item)) for item in manifests.whole_stack()]
    for index, view in enumerate(stack):
        manifest = view.resource.properties
        for steps in paths(manifest):
            unknown = View(Resource(type_of(manifest), unknown_at(manifest, steps)))
            partly_unknown = Stack([*stack[:index], unknown, *stack[index + 1 :]])
            yield PartlyUnknownStack(manifest["kind"], steps, unknown, partly_unknown)


def test_unknown_value_at_any_path_is_never_a_violation() -> None:
    configs = [(rule, rule.configure(STRICT.get(rule.name, {}))) for rule in RULES]
    for stack in partly_unknown_stacks():
        for rule, config in configs:
            assert stack.violations(rule, config) == [], (rule.name, stack.kind, stack.steps)


def test_unknown_image_and_environment_do_not_hide_other_violations() -> None:
    """During a preview, image digests and outputs of other stacks are usually unknown."""
    hidden = [case for case in CASES if not _messages_with_unknown_values(case)]
    assert hidden == []


def _messages_with_unknown_values(case: Case) -> list[str]:
    """Return a case's messages if the images and environments of its jobs are unknown."""
    stack = case.stack()
    for manifest in stack:
        if manifest["kind"] == "Job" and not case.rule.startswith(("image-", "no-literal")):
            for pod in manifest["spec"].get("tasks", [manifest["spec"]]):
                for container in pod["template"]["spec"]["containers"]:
                    if container is not None:
                        container["image"] = UNKNOWN_VALUE
                        container["env"] = [{"name": "RUN", "value": UNKNOWN_VALUE}]
    return evaluate_rule(case.rule, *stack, config=case.config)


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


def test_unknown_number_of_pods_does_not_require_a_shared_claim() -> None:
    claim = changed(manifests.claim(), ("spec/accessModes", ["ReadWriteOnce"]))
    assert evaluate_rule("checkpoints-shared", claim, manifests.batch_job())
    unknown = changed(manifests.batch_job(), ("spec/parallelism", UNKNOWN_VALUE))
    assert evaluate_rule("checkpoints-shared", claim, unknown) == []


def test_plain_data_is_not_changed_by_the_conversion() -> None:
    job = manifests.volcano_job()
    assert plain(job) == job


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
