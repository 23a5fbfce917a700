"""Rules rendered as ValidatingAdmissionPolicies; tests/cluster evaluates the policies."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.admission import Mode, Scope, main, manifests
from policies.catalogue import RULES
from policies.cel import Manifest
from policies.configuration import configure

RULE = "image-registry-allowed"
LAST_DAY = str(datetime.now(UTC).date() + timedelta(days=300))
REASON = {"reason": "moves with the next release", "expires": LAST_DAY}
EXEMPTION = {"workload": "ml/Job/old", "rule": RULE, **REASON}


def rendered(config: dict[str, Any] | None = None, mode: Mode = "deny") -> list[Manifest]:
    return manifests(configure(config or {}, RULES), mode)


def validations(built: list[Manifest]) -> dict[str, Manifest]:
    """Return the validation of each rule, by the rule's name."""
    all_validations = [
        item for part in built for item in part.get("spec", {}).get("validations", [])
    ]
    return {item["message"].partition(":")[0]: item for item in all_validations}


def policy_of(built: list[Manifest], rule: str) -> Manifest:
    return next(item for item in built if rule in validations([item]))


def variables(config: dict[str, Any], rule: str = RULE) -> dict[str, str]:
    policy = policy_of(rendered(config), rule)
    return {item["name"]: item["expression"] for item in policy["spec"]["variables"]}


def actions(level: str, mode: Mode) -> list[str]:
    built = rendered({RULE: level}, mode)
    name = policy_of(built, RULE)["metadata"]["name"]
    (binding,) = [item["spec"] for item in built if item["spec"].get("policyName") == name]
    return list(binding["validationActions"])


MODELS = {"model-signed": {"repositories": ["registry.example.com/models/*"]}}


def test_every_cel_rule_is_in_a_policy_with_failure_policy_fail() -> None:
    built = rendered(MODELS)
    expected = {rule.name for rule in RULES if rule.admission is not None}
    assert expected
    assert set(validations(built)) == expected
    policies = [item["spec"] for item in built if item["kind"] == "ValidatingAdmissionPolicy"]
    assert {spec["failurePolicy"] for spec in policies} == {"Fail"}


def test_promoted_models_are_a_required_parameter_of_the_policy() -> None:
    built = rendered(MODELS)
    objects = [each["kind"] for each in built if "spec" not in each]
    assert objects == ["Namespace", "ConfigMap", "Role"]
    (kind,) = [each["spec"]["paramKind"] for each in built if "paramKind" in each.get("spec", {})]
    assert kind == {"apiVersion": "v1", "kind": "ConfigMap"}
    (reference,) = [
        each["spec"]["paramRef"] for each in built if "paramRef" in each.get("spec", {})
    ]
    assert reference["parameterNotFoundAction"] == "Deny"


def test_promoted_models_are_not_required_if_no_repositories_are_configured() -> None:
    built = rendered()
    assert "model-signed" not in validations(built)
    assert {each["kind"].removesuffix("Binding") for each in built} == {"ValidatingAdmissionPolicy"}


def test_every_policy_has_a_binding() -> None:
    built = rendered()
    named = [item["spec"]["policyName"] for item in built if item["kind"].endswith("Binding")]
    assert named == [item["metadata"]["name"] for item in built if item["kind"].endswith("Policy")]


def test_rules_share_variables_only_if_their_settings_are_equal() -> None:
    for other_devices, count in (([], 1), (["example.com/card"], 2)):
        config = {"gpu-toleration": {"otherDevices": other_devices}}
        names = [name for name in variables(config) if name.startswith("gpuContainers")]
        assert len(names) == count


def test_expressions_contain_the_configured_settings() -> None:
    allowed = {RULE: {"allowedRegistries": ["registry.example.com/team/"]}}
    expression = variables(allowed)["image_registry_allowed"]
    assert '["registry.example.com/team"].exists' in expression


def test_patterns_for_names_are_compared_in_lower_case() -> None:
    config = {
        "gpu-toleration": {"taints": {"example.com/NPU": "npu"}},
        "annotations-bounded": {"allowedAnnotations": ["sidecar.istio.io/proxyImage"]},
        "gpu-limit-present": {"deviceAnnotations": ["example.com/NPU-ids"]},
    }
    text = json.dumps(rendered(config))
    assert all(name in text for name in ("/npu)$", "/proxyimage)$", "/npu\\\\\\\\-ids)$"))


def test_disabled_rules_have_no_validation() -> None:
    assert RULE not in validations(rendered({RULE: "disabled"}))


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("mandatory", "audit", ["Audit"]),
        ("mandatory", "warn", ["Warn", "Audit"]),
        ("mandatory", "deny", ["Deny", "Audit"]),
        ("advisory", "deny", ["Warn", "Audit"]),
    ],
)
def test_mode_and_level_determine_the_validation_actions(
    level: str, mode: Mode, expected: list[str]
) -> None:
    assert actions(level, mode) == expected


def test_exemption_covers_objects_created_until_the_end_of_its_last_day() -> None:
    expressions = variables({"exemptions": {"workloads": [EXEMPTION]}})
    (exempt,) = [text for text in expressions.values() if "ml/Job/old" in text]
    assert 'a.matches("^(?s:ml/Job/old)$")' in exempt
    assert f"timestamp('{LAST_DAY}T00:00:00Z') + duration('24h')" in exempt


def test_only_built_in_jobs_and_replica_sets_are_addressed_by_their_owner() -> None:
    expression = variables({"exemptions": {"workloads": [EXEMPTION]}})["addresses"]
    assert "o.kind == 'Job' && o.apiVersion.startsWith('batch/')" in expression
    assert "o.kind == 'ReplicaSet' && o.apiVersion.startsWith('apps/')" in expression


def test_bindings_exclude_the_excluded_namespaces() -> None:
    built = manifests(
        configure({}, RULES), "deny", Scope(excluded_namespaces=("kube-system", "gpu"))
    )
    (values,) = {
        tuple(item["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"])
        for item in built
        if "matchResources" in item["spec"]
    }
    assert values == ("gpu", "kube-system")


def test_command_prints_policies_for_a_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(json.dumps({RULE: "disabled"}))
    arguments = ["--config", str(file), "--mode", "deny", "--exclude-namespace", "vendor"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    names = validations(list(yaml.safe_load_all(text)))
    assert "image-tag-fixed" in names
    assert RULE not in names
    assert "- vendor" in text


def test_command_trusts_additional_controllers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(json.dumps({"exemptions": {"workloads": [EXEMPTION]}}))
    volcano = "system:serviceaccount:volcano-system:volcano-controllers"
    assert main(["--config", str(file), "--trust-user", volcano]) == 0
    assert volcano in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", '{"no-such-rule": "disabled"}'])
def test_command_rejects_an_invalid_configuration(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(text)
    assert main(["--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
