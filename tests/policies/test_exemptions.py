"""Exemptions of workloads from rules, which have an expiry date and appear in every report."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pulumi_policy import ResourceValidationArgs, StackValidationArgs

from policies.binding import Binding
from policies.catalogue import RULES, RULES_BY_NAME
from policies.exemptions import Exemptions
from tests.policies import manifests
from tests.policies.harness import (
    CONTEXT,
    POD,
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


def report(
    exemptions_: Exemptions, manifest: Manifest, *other_manifests: Manifest
) -> dict[str, list[str]]:
    """Return the messages of each policy about the root stack, the manifest and the stack."""
    binding = Binding(exemptions_)
    policies: list[Any] = [*binding.policies(RULES), *binding.configuration_policies()]
    root = ResourceValidationArgs("pulumi:pulumi:Stack", {}, "urn:root", "s", options(), None, None)
    stack = StackValidationArgs([stack_resource(item) for item in (manifest, *other_manifests)])
    messages: dict[str, list[str]] = {}
    for scope, args in (
        ("ResourceValidationPolicy", root),
        ("ResourceValidationPolicy", arguments(manifest)),
        ("StackValidationPolicy", stack),
    ):
        for policy in policies:
            if scope in {base.__name__ for base in type(policy).__mro__}:
                reported = messages.setdefault(policy.name, [])
                policy.validate(
                    args, lambda text, urn=None, reported=reported: reported.append(text)
                )
    return {name: reported for name, reported in messages.items() if reported}


def test_exempted_violation_is_reported_as_an_exemption() -> None:
    found = report(exemptions(ENTRY), PRIVILEGED, *manifests.whole_stack())
    assert "not-privileged" not in found
    (message,) = found["exemption-used"]
    assert 'Job "digits" in namespace "training": exempted from not-privileged until' in message
    assert "until 2026-11-21, because: its driver is replaced in December" in message
    assert "privileged: found true; write false" in message
    assert not {"exemptions", "exemption-unused"} & found.keys()


def test_exemption_applies_to_one_workload_and_one_rule() -> None:
    other_job = changed(PRIVILEGED, ("metadata/name", "other"))
    assert "not-privileged" in report(exemptions(ENTRY), other_job)
    with_host_pid = changed(PRIVILEGED, (f"{POD}/hostPID", True))
    assert "no-host-namespaces" in report(exemptions(ENTRY), with_host_pid)


def test_violation_of_a_stack_rule_can_be_exempted() -> None:
    entry = {**ENTRY, "rule": "training-queue-declared"}
    job = changed(manifests.volcano_job(), ("spec/queue", "typo"))
    other_manifests = [
        item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"
    ]
    found = report(exemptions(entry), job, *other_manifests)
    assert "training-queue-declared" not in found
    assert "exempted from training-queue-declared" in found["exemption-used"][0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"expires": "2026-11-20"}, "expires: found '2026-11-20', which is in the past"),
        ({"expires": "next year"}, "expires: found 'next year'; write the last valid day"),
        ({"expires": "2026-02-30"}, "expires: found '2026-02-30'; write the last valid day"),
        ({"expires": None}, "expires: found None"),
        ({"expires": 20270101}, "expires: found 20270101"),
        ({"reason": " "}, "reason: found ' '; write why"),
        ({"reason": None}, "reason: found None; write why"),
        ({"rule": "not-priviledged"}, "rule: found 'not-priviledged'; write the name of a rule"),
        ({"rule": None}, "rule: found None"),
        ({"workload": "digits"}, "workload: found 'digits'; write namespace/Kind/name"),
        ({"workload": "*"}, "workload: found '*'"),
        (
            {"workload": "training/Job.batch.volcano.sh/*"},
            'write one name, or add "wildcard": true',
        ),
        ({"workload": "training/Job/digit?"}, "workload: found 'training/Job/digit?'"),
        ({"wildcard": True}, "wildcard: found true, but"),
        ({"workload": "*/*/*", "wildcard": True}, "write a kind, and a namespace or a name"),
        ({"workload": "*/*/web", "wildcard": True}, "write a kind, and a namespace or a name"),
        ({"wildcard": "yes"}, "wildcard: found 'yes'; write true or false"),
        ({"rules": ["not-privileged"]}, "write either rule (one name) or rules (a list)"),
        ({"rule": None, "rules": []}, "rules: found []; write at least one rule"),
        ({"rule": None, "rules": ["not-privilegd"]}, "rule: found 'not-privilegd'"),
        ({"expires": "2027-11-23"}, "more than a year ahead; write 2027-11-22 or earlier"),
        ({"expires": "9999-12-31"}, "more than a year ahead"),
        ({"approved": True}, "approved: found True; use only the keys workload, rule, rules"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_error_names_the_invalid_field_of_an_exemption(
    change: dict[str, Any], expected: str
) -> None:
    entry = {key: value for key, value in {**ENTRY, **change}.items() if value is not None}
    found = report(exemptions(entry), PRIVILEGED)
    (message,) = found["exemptions"]
    assert message.startswith("exemptions.workloads[0] (")
    assert expected in message
    assert "not-privileged" in found
    assert "exemption-used" not in found


@pytest.mark.parametrize("values", [[], "all", {"workload": []}, {"workloads": {}}, 1])
def test_exemptions_must_be_a_list(values: Any) -> None:
    (problem,) = Exemptions(values, RULES_BY_NAME, TODAY).rejected
    assert problem.startswith("exemptions: found")


def test_each_exemption_must_be_an_object() -> None:
    (problem,) = exemptions("training/Job.batch.volcano.sh/digits").rejected
    assert "found 'training/Job.batch.volcano.sh/digits'; write an object" in problem


def test_exemption_can_list_several_rules_and_use_wildcards() -> None:
    entry = {key: value for key, value in ENTRY.items() if key != "rule"}
    entry |= {"rules": ["not-privileged", "no-host-namespaces"], "wildcard": True}
    entry["workload"] = "training/Job.batch.volcano.sh/dig*"
    violates_both_rules = changed(PRIVILEGED, (f"{POD}/hostPID", True))
    found = report(exemptions(entry), violates_both_rules)
    assert not {"not-privileged", "no-host-namespaces", "exemptions"} & found.keys()
    assert len(found["exemption-used"]) == 2
    assert "not-privileged" in report(
        exemptions(entry), changed(violates_both_rules, ("metadata/name", "other"))
    )


def test_exemption_for_another_api_group_does_not_apply() -> None:
    for workload in ("training/Job/digits", "training/Job.example.com/digits"):
        found = report(exemptions({**ENTRY, "workload": workload}), PRIVILEGED)
        assert "not-privileged" in found
        assert f"{workload} does not violate not-privileged" in found["exemption-unused"][0]


def test_exemption_from_a_disabled_rule_is_not_reported_as_unused() -> None:
    binding = Binding()
    binding.configure({"exemptions": {"workloads": [ENTRY]}}, disabled=["not-privileged"])
    *_, unused_policy = binding.configuration_policies()
    messages: list[str] = []
    any_policy: Any = unused_policy
    any_policy.validate(StackValidationArgs([]), lambda text, urn: messages.append(text))
    assert messages == []


def test_invalid_exemptions_are_reported_once_rather_than_for_every_resource() -> None:
    found = report(exemptions({}), PRIVILEGED, *manifests.whole_stack())
    assert len(found["exemptions"]) == 1


def test_exempted_workload_is_not_remediated() -> None:
    exemptions_ = exemptions({**ENTRY, "rule": "gpu-toleration"})
    bare = changed(manifests.volcano_job(), (f"{POD}/tolerations", REMOVED))
    policy: Any = Binding(exemptions_).policies([RULES_BY_NAME["gpu-toleration"]])[0]
    assert policy.remediate(arguments(bare)) is None


def test_unknown_rule_name_in_the_configuration_is_rejected() -> None:
    binding = Binding()
    binding.configure({"no-host-pth": {}, "no-host-path": {}, "exemptions": {}})
    root = ResourceValidationArgs("pulumi:pulumi:Stack", {}, "urn:root", "s", options(), None, None)
    messages: list[str] = []
    for policy in binding.configuration_policies():
        any_policy: Any = policy
        any_policy.validate(root, lambda text, urn: messages.append(text))
    (message,) = messages
    assert "unknown rule 'no-host-pth'; did you mean 'no-host-path'?" in message


def test_exemptions_are_read_from_the_engines_configuration() -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    binding = Binding()
    binding.configure({"exemptions": {"workloads": [{**ENTRY, "expires": str(tomorrow)}]}})
    policy: Any = binding.policies([RULES_BY_NAME["not-privileged"]])[0]
    messages: list[str] = []
    policy.validate(arguments(PRIVILEGED), lambda text, urn: messages.append(text))
    assert messages == []
