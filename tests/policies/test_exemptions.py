"""A named workload may break a named rule, for a reason, until a day, and every report says so."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pulumi_policy import ResourceValidationArgs, StackValidationArgs

from policies.binding import Binding
from policies.catalogue import RULES, RULES_BY_NAME
from policies.exemptions import Exemptions
from tests.policies import manifests
from tests.policies.cases import CONTEXT, POD
from tests.policies.harness import (
    REMOVED,
    Manifest,
    arguments,
    changed,
    options,
    stack_resource,
)

TODAY = date(2026, 11, 21)
ENTRY = {
    "workload": "training/Job.batch.volcano.sh/digits",
    "rule": "not-privileged",
    "reason": "its driver is replaced in December",
    "expires": "2026-11-21",
}
PRIVILEGED = changed(manifests.volcano_job(), (f"{CONTEXT}/privileged", True))


def exemptions(*entries: Any) -> Exemptions:
    return Exemptions({"workloads": list(entries)}, RULES_BY_NAME, TODAY)


def report(held: Exemptions, manifest: Manifest, *rest: Manifest) -> dict[str, list[str]]:
    """Messages by policy: of the stack's root, of a manifest, and of the stack with both in it."""
    binding = Binding(held)
    policies: list[Any] = [*binding.policies(RULES), *binding.own_policies()]
    root = ResourceValidationArgs("pulumi:pulumi:Stack", {}, "urn:root", "s", options(), None, None)
    stack = StackValidationArgs([stack_resource(item) for item in (manifest, *rest)])
    messages: dict[str, list[str]] = {}
    for scope, asked in (
        ("ResourceValidationPolicy", root),
        ("ResourceValidationPolicy", arguments(manifest)),
        ("StackValidationPolicy", stack),
    ):
        for policy in policies:
            if scope in {base.__name__ for base in type(policy).__mro__}:
                said = messages.setdefault(policy.name, [])
                policy.validate(asked, lambda text, urn=None, said=said: said.append(text))
    return {name: said for name, said in messages.items() if said}


def test_an_exempted_workload_is_reported_as_such_and_not_as_a_violation():
    found = report(exemptions(ENTRY), PRIVILEGED, *manifests.whole_stack())
    assert "not-privileged" not in found
    (message,) = found["exemption-used"]
    assert 'Job "digits" in namespace "training": exempted from not-privileged until' in message
    assert "until 2026-11-21, because: its driver is replaced in December" in message
    assert "privileged: found true; write false" in message
    assert "exemptions" not in found


def test_an_exemption_is_of_one_workload_and_one_rule():
    other = changed(PRIVILEGED, ("metadata/name", "other"))
    assert "not-privileged" in report(exemptions(ENTRY), other)
    host = changed(PRIVILEGED, (f"{POD}/hostPID", True))
    assert "no-host-namespaces" in report(exemptions(ENTRY), host)


def test_a_violation_that_only_the_whole_stack_shows_can_be_exempted():
    entry = {**ENTRY, "rule": "training-queue-declared"}
    job = changed(manifests.volcano_job(), ("spec/queue", "typo"))
    others = [item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"]
    found = report(exemptions(entry), job, *others)
    assert "training-queue-declared" not in found
    assert "exempted from training-queue-declared" in found["exemption-used"][0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"expires": "2026-11-20"}, "expires: found '2026-11-20', which is past"),
        ({"expires": "next year"}, "expires: found 'next year'; write the last day"),
        ({"expires": "2026-02-30"}, "expires: found '2026-02-30'; write the last day"),
        ({"expires": None}, "expires: found None"),
        ({"expires": 20270101}, "expires: found 20270101"),
        ({"reason": " "}, "reason: found ' '; write why"),
        ({"reason": None}, "reason: found None; write why"),
        ({"rule": "not-priviledged"}, "rule: found 'not-priviledged'; write the name of a rule"),
        ({"rule": None}, "rule: found None"),
        ({"workload": "digits"}, "workload: found 'digits'; write namespace/Kind/name"),
        ({"workload": "*"}, "workload: found '*'"),
        ({"approved": True}, "approved: found True; write only workload, rule, reason, expires"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_exemption_that_is_not_complete_or_past_is_refused_by_name(
    change: dict[str, Any], says: str
):
    entry = {key: value for key, value in {**ENTRY, **change}.items() if value is not None}
    found = report(exemptions(entry), PRIVILEGED)
    (message,) = found["exemptions"]
    assert message.startswith("exemptions.workloads[0] (of ")
    assert says in message
    assert "not-privileged" in found
    assert "exemption-used" not in found


@pytest.mark.parametrize("values", [[], "all", {"workload": []}, {"workloads": {}}, 1])
def test_what_is_no_list_of_exemptions_is_refused(values: Any):
    (problem,) = Exemptions(values, RULES_BY_NAME, TODAY).refused
    assert problem.startswith("exemptions: found")


def test_an_entry_that_is_no_object_is_refused():
    (problem,) = exemptions("training/Job.batch.volcano.sh/digits").refused
    assert "found 'training/Job.batch.volcano.sh/digits'; write an object" in problem


def test_exemptions_are_refused_once_and_not_for_every_resource():
    found = report(exemptions({}), PRIVILEGED, *manifests.whole_stack())
    assert len(found["exemptions"]) == 1


def test_an_exempted_workload_is_not_repaired():
    held = exemptions({**ENTRY, "rule": "gpu-toleration"})
    bare = changed(manifests.volcano_job(), (f"{POD}/tolerations", REMOVED))
    policy: Any = Binding(held).policies([RULES_BY_NAME["gpu-toleration"]])[0]
    assert policy.remediate(arguments(bare)) is None


def test_a_name_in_the_configuration_that_no_rule_has_is_refused():
    binding = Binding()
    binding.configure({"no-host-pth": {}, "no-host-path": {}, "exemptions": {}})
    root = ResourceValidationArgs("pulumi:pulumi:Stack", {}, "urn:root", "s", options(), None, None)
    messages: list[str] = []
    for policy in binding.own_policies():
        any_policy: Any = policy
        any_policy.validate(root, lambda text, urn: messages.append(text))
    (message,) = messages
    assert "unknown rule 'no-host-pth'; did you mean 'no-host-path'?" in message


def test_exemptions_come_with_the_configuration_of_the_engine():
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    binding = Binding()
    binding.configure({"exemptions": {"workloads": [{**ENTRY, "expires": str(tomorrow)}]}})
    policy: Any = binding.policies([RULES_BY_NAME["not-privileged"]])[0]
    messages: list[str] = []
    policy.validate(arguments(PRIVILEGED), lambda text, urn: messages.append(text))
    assert messages == []
