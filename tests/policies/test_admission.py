"""Rendering of rules as ValidatingAdmissionPolicies; tests/cluster evaluates them."""

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
LAST = str(datetime.now(UTC).date() + timedelta(days=300))
REASON = {"reason": "moves with the next release", "expires": LAST}
EXEMPTION = {"workload": "ml/Job/old", "rule": RULE, **REASON}


def rendered(config: dict[str, Any] | None = None, mode: Mode = "deny") -> list[Manifest]:
    return manifests(configure(config or {}, RULES), mode)


def validations(built: list[Manifest]) -> dict[str, Manifest]:
    """The validation of each rule."""
    found = [item for part in built for item in part.get("spec", {}).get("validations", [])]
    return {item["message"].partition(":")[0]: item for item in found}


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


def test_every_rule_with_cel_is_in_a_policy_that_fails_closed() -> None:
    built = rendered(MODELS)
    expected = {rule.name for rule in RULES if rule.admission is not None}
    assert expected
    assert set(validations(built)) == expected
    policies = [item["spec"] for item in built if item["kind"] == "ValidatingAdmissionPolicy"]
    assert {spec["failurePolicy"] for spec in policies} == {"Fail"}


def test_promoted_models_are_parameters_that_must_exist() -> None:
    built = rendered(MODELS)
    objects = [each["kind"] for each in built if "spec" not in each]
    assert objects == ["Namespace", "ConfigMap", "Role"]
    (kind,) = [each["spec"]["paramKind"] for each in built if "paramKind" in each.get("spec", {})]
    assert kind == {"apiVersion": "v1", "kind": "ConfigMap"}
    (found,) = [each["spec"]["paramRef"] for each in built if "paramRef" in each.get("spec", {})]
    assert found["parameterNotFoundAction"] == "Deny"


def test_without_repositories_no_pod_depends_on_promoted_models() -> None:
    built = rendered()
    assert "model-signed" not in validations(built)
    assert {each["kind"].removesuffix("Binding") for each in built} == {"ValidatingAdmissionPolicy"}


def test_every_policy_has_a_binding() -> None:
    built = rendered()
    named = [item["spec"]["policyName"] for item in built if item["kind"].endswith("Binding")]
    assert named == [item["metadata"]["name"] for item in built if item["kind"].endswith("Policy")]


def test_rules_share_variables_only_with_equal_settings() -> None:
    for other, count in (([], 1), (["example.com/card"], 2)):
        config = {"gpu-toleration": {"otherDevices": other}}
        names = [name for name in variables(config) if name.startswith("gpuContainers")]
        assert len(names) == count


def test_settings_of_the_configuration_are_written_into_the_expression() -> None:
    allowed = {RULE: {"allowedRegistries": ["registry.example.com/team/"]}}
    expression = variables(allowed)["image_registry_allowed"]
    assert '["registry.example.com/team"].exists' in expression


def test_a_disabled_rule_has_no_validation() -> None:
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
def test_mode_and_level_decide_what_a_violation_does(
    level: str, mode: Mode, expected: list[str]
) -> None:
    assert actions(level, mode) == expected


def test_an_exemption_is_valid_for_objects_that_are_created_until_its_last_day() -> None:
    expressions = variables({"exemptions": {"workloads": [EXEMPTION]}})
    (exempt,) = [text for text in expressions.values() if "ml/Job/old" in text]
    assert 'a.matches("^(?s:ml/Job/old)$")' in exempt
    assert f"timestamp('{LAST}T00:00:00Z') + duration('24h')" in exempt


def test_only_jobs_and_replica_sets_of_kubernetes_belong_to_cron_jobs_and_deployments() -> None:
    expression = variables({"exemptions": {"workloads": [EXEMPTION]}})["addresses"]
    assert "o.kind == 'Job' && o.apiVersion.startsWith('batch/')" in expression
    assert "o.kind == 'ReplicaSet' && o.apiVersion.startsWith('apps/')" in expression


def test_excluded_namespaces_are_in_the_selector_of_the_binding() -> None:
    built = manifests(configure({}, RULES), "deny", Scope(excluded=("kube-system", "gpu")))
    (values,) = {
        tuple(item["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"])
        for item in built
        if "matchResources" in item["spec"]
    }
    assert values == ("gpu", "kube-system")


def test_the_command_prints_policies_for_a_configuration_file(
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


def test_the_command_trusts_further_controllers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(json.dumps({"exemptions": {"workloads": [EXEMPTION]}}))
    volcano = "system:serviceaccount:volcano-system:volcano-controllers"
    assert main(["--config", str(file), "--trust-user", volcano]) == 0
    assert volcano in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", '{"no-such-rule": "disabled"}'])
def test_the_command_refuses_a_wrong_configuration(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(text)
    assert main(["--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
