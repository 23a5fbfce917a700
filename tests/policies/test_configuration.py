"""The configuration file read by policies.check."""

import json
from pathlib import Path
from typing import Any

import pytest

from policies.catalogue import RULES
from policies.configuration import Configuration, configure, parse
from policies.rule import ConfigurationError, Level


def levels(values: dict[str, Any]) -> dict[str, bool]:
    return {rule.name: mandatory for rule, mandatory, _ in configure(values, RULES).rules}


def test_rules_have_their_default_levels_without_a_configuration_file() -> None:
    found = levels({})
    assert len(found) == len(RULES)
    assert found["no-host-path"]
    assert not found["image-digest-pinned"]


def test_level_can_be_set_alone_or_with_other_settings() -> None:
    found = levels(
        {
            "all": "advisory",
            "image-digest-pinned": "mandatory",
            "gpu-toleration": {"enforcementLevel": "remediate", "taints": {"*": "gpu"}},
            "training-ends": "disabled",
        }
    )
    assert {name for name, mandatory in found.items() if mandatory} == {
        "image-digest-pinned",
        "gpu-toleration",
    }
    assert "training-ends" not in found


def test_disabled_rules_are_listed() -> None:
    configuration = configure({"training-ends": "disabled"}, RULES)
    assert configuration.disabled == ["training-ends"]


def test_configured_settings_are_passed_to_the_rule() -> None:
    (taint,) = (
        config
        for rule, _, config in configure({"gpu-toleration": {"taints": {"*": "gpu"}}}, RULES).rules
        if rule.name == "gpu-toleration"
    )
    assert taint.model_dump()["taints"] == {"*": "gpu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "found []; write an object"),
        ('{"all": "advisory", "all": "disabled"}', "the key 'all' appears twice"),
        ('{"all": "disabled"}', "it disables every rule; enable at least one"),
        (json.dumps({"no-host-pth": "mandatory"}), "did you mean 'no-host-path'?"),
        (json.dumps({"no-host-path": "strict"}), "no-host-path: found the level 'strict'"),
        (json.dumps({"no-host-path": 1}), "no-host-path: found 1"),
        (json.dumps({"shm-fits-memory": {"share": 7}}), "shm-fits-memory.share: found 7"),
        (json.dumps({"shm-fits-memory": {"shar": 1}}), "shm-fits-memory.shar"),
        (json.dumps({"gpu-limit-present": {"components": ["trainig"]}}), "found 'trainig'"),
        (json.dumps({"gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": -2}}}), "found -2"),
        ('{"gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": NaN}}}', "found nan"),
        (json.dumps({"gpu-budget": {"maxGpusPerQueue": {"vision": -1}}}), "found -1"),
        (json.dumps({"shm-per-gpu": {"perGpu": "-1Gi"}}), "found '-1Gi'; value error, must not"),
    ],
)
def test_error_names_the_invalid_part_of_the_file(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as exc_info:
        parse(text, RULES)
    assert message in str(exc_info.value)


@pytest.mark.parametrize(
    "pattern", ["*", "*/*", "*/*/*", "*/DaemonSet/*", "*/Pod.*/**", "?*/*/?*", "[!a]*/*/*"]
)
@pytest.mark.parametrize("key", ["systemWorkloads", "not-privileged"])
def test_system_workload_patterns_matching_every_namespace_are_rejected(
    pattern: str, key: str
) -> None:
    name = "workloads" if key == "systemWorkloads" else "systemWorkloads"
    with pytest.raises(ConfigurationError, match="exempts every namespace"):
        configure({key: {name: [pattern]}}, RULES)
    for valid_pattern in ("gpu-operator/*/*", "*/DaemonSet/dcgm-exporter", "*/Pod/driver-*"):
        configure({key: {name: [valid_pattern]}}, RULES)


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "nvidia.com/*", "*gpu*", "NVIDIA.com/gpu", "*.nvidia.com"),
        *("nvidia.com/mig-3g*", "habana.ai/*", "*neuron*"),
    ],
)
@pytest.mark.parametrize("key", ["cluster", "gpu-budget"])
def test_other_devices_patterns_matching_gpus_are_rejected(pattern: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match="matches gpus"):
        configure({key: {"otherDevices": [pattern]}}, RULES)
    configure({key: {"otherDevices": ["example.com/fpga*", "nvidia.com/hostdev"]}}, RULES)


@pytest.mark.parametrize("pattern", ["*", "?*/?*", "[a-z]*/*"])
def test_claim_devices_patterns_that_set_every_claim_to_zero_are_rejected(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="matches every claim"):
        configure({"cluster": {"claimDevices": {pattern: 0}}}, RULES)
    configure({"cluster": {"claimDevices": {"*": 8, "ml/network-*": 0}}}, RULES)


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("namespace-gpu-quota", "existingNamespaces"),
        ("namespace-default-deny", "existingNamespaces"),
        ("training-queue-declared", "existingQueues"),
        ("priority-class-known", "existingPriorityClasses"),
        ("training-scheduler", "schedulers"),
        ("service-not-public", "allowedServices"),
        ("no-literal-secrets", "allowedNames"),
        ("plan-preempts-nothing-of", "queues"),
    ],
)
def test_wildcards_in_exact_names_are_rejected(rule: str, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'team-\*' contains a wildcard"):
        configure({rule: {setting: ["team-*"]}}, RULES)


@pytest.mark.parametrize(
    ("rule", "setting"),
    [
        ("training-gang-whole", "elasticWorkloads"),
        ("training-pod-group-whole", "elasticWorkloads"),
        ("helm-release-judged", "checkedElsewhere"),
    ],
)
def test_patterns_that_exempt_every_object_are_rejected(rule: str, setting: str) -> None:
    with pytest.raises(ConfigurationError, match="exempts every namespace"):
        configure({rule: {setting: ["*"]}}, RULES)


def test_all_configuration_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as exc_info:
        configure({"a": "mandatory", "shm-fits-memory": {"share": 7}}, RULES)
    assert "unknown rule 'a'" in str(exc_info.value)
    assert "shm-fits-memory.share" in str(exc_info.value)


FOLDER = Path(__file__).resolve().parents[2] / "policies" / "config"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
STRICT = ["staging", "prod"]


def configuration(name: str) -> Configuration:
    return parse(FILES[name].read_text(), RULES)


@pytest.mark.parametrize("name", FILES)
def test_configuration_files_contain_only_valid_rules_and_settings(name: str) -> None:
    assert configuration(name).rules


@pytest.mark.parametrize("name", FILES)
def test_environments_have_no_exemptions(name: str) -> None:
    text = FILES[name].read_text()
    assert '"exemptions"' not in text
    assert configuration(name).exemptions.rejected == []


@pytest.mark.parametrize("name", STRICT)
def test_shared_environments_keep_mandatory_rules_and_restrict_registries(name: str) -> None:
    found = configuration(name).rules
    assert {rule.name for rule, _, _ in found} == {rule.name for rule in RULES}
    levels = {rule.name: mandatory for rule, mandatory, _ in found}
    assert all(levels[rule.name] for rule in RULES if rule.level is Level.MANDATORY)
    (registries,) = (config for rule, _, config in found if rule.name == "image-registry-allowed")
    assert registries.model_dump()["allowed_registries"]


def test_prod_requires_image_digests() -> None:
    levels = {rule.name: mandatory for rule, mandatory, _ in configuration("prod").rules}
    assert levels["image-digest-pinned"]
