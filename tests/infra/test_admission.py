import json
from pathlib import Path
from typing import Any

import pytest

from infra.admission import AdmissionArgs, manifests
from infra.settings import SettingsError
from tests.infra.conftest import Provision
from tests.infra.examples import changed, good, problems
from tests.infra.test_tenancy import tenancy

POLICY = "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy"
BINDING = f"{POLICY}Binding"


def excluded(**values: Any) -> set[str]:
    built = manifests(AdmissionArgs(tenancy=tenancy(**values), system_namespaces=("gpu-system",)))
    selectors = [item["spec"].get("matchResources", {}) for item in built]
    found = [
        selector["namespaceSelector"]["matchExpressions"] for selector in selectors if selector
    ]
    assert all(expressions == found[0] for expressions in found)
    return set(found[0][0]["values"])


def test_admission_is_off_by_default(provision: Provision) -> None:
    plan = provision(good())
    assert plan.names(POLICY) == []


def test_every_policy_binding_depends_on_its_policy(provision: Provision) -> None:
    plan = provision(changed("tenancy.admission", "deny"))
    names = plan.names(POLICY)
    assert "tenancy-admission-pods" in names
    assert sorted(plan.names(BINDING)) == sorted(f"{name}-binding" for name in names)
    for name in names:
        assert any(urn.endswith(f"::{name}") for urn in plan[f"{name}-binding"].dependencies)


def test_namespaces_with_the_stacks_privileged_pods_are_excluded(provision: Provision) -> None:
    plan = provision(changed("tenancy.admission", "audit"))
    binding = plan.inputs("tenancy-admission-pods-binding")
    (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression["operator"] == "NotIn"
    assert expression["values"] == ["gpu-system", "kube-system", "volcano-system"]


def test_more_namespaces_can_be_excluded() -> None:
    found = excluded(admission="deny", admission_excluded_namespaces=["gpu-operator"])
    assert found == {"gpu-operator", "gpu-system", "kube-system"}


def test_unquoted_off_is_accepted_although_yaml_reads_a_boolean() -> None:
    assert tenancy(admission=False).admission == "off"
    assert problems(changed("tenancy.admission", "on"))


def test_policies_follow_the_policy_pack_configuration(tmp_path: Path) -> None:
    file = tmp_path / "policies.json"
    file.write_text(json.dumps({"run-as-non-root": "disabled"}))
    built = manifests(AdmissionArgs(tenancy=tenancy(admission="deny", admission_config=str(file))))
    assert "not-privileged: " in str(built)
    assert "run-as-non-root: " not in str(built)


EXPIRED = {
    "workload": "ml/Job/old",
    "rule": "no-host-path",
    "reason": "moves to a claim",
    "expires": "2020-01-31",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ('{"no-such-rule": "disabled"}', "no-such-rule"),
        (json.dumps({"exemptions": {"workloads": [EXPIRED]}}), "2020-01-31"),
    ],
)
def test_error_for_an_invalid_policy_file_names_the_setting(
    text: str | None, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "policies.json"
    if text is not None:
        file.write_text(text)
    settings = tenancy(admission="deny", admission_config=str(file))
    with pytest.raises(SettingsError) as error:
        manifests(AdmissionArgs(tenancy=settings))
    assert "gpu-platform:tenancy.admission_config" in str(error.value)
    assert expected in str(error.value)


def test_parameter_object_is_created_before_the_policy_that_reads_it(
    provision: Provision, tmp_path: Path
) -> None:
    file = tmp_path / "policies.json"
    file.write_text(
        json.dumps({"model-signed": {"repositories": ["registry.example.com/models/*"]}})
    )
    values = changed("tenancy.admission", "deny")
    values["tenancy"]["admission_config"] = str(file)
    plan = provision(values)
    object_name, role = (
        f"tenancy-admission-{name}"
        for name in ("promoted-models-configmap", "model-promoters-role")
    )
    assert plan.inputs(object_name)["metadata"]["namespace"] == "gpu-platform-models"
    assert "data" not in plan.inputs(object_name)
    assert plan.inputs(role)["rules"][0]["resourceNames"] == ["promoted-models"]
    for name, dependency in (
        (object_name, "tenancy-admission-models-namespace"),
        ("tenancy-admission-model-pods", object_name),
    ):
        assert any(urn.endswith(f"::{dependency}") for urn in plan[name].dependencies)
    binding = plan.inputs("tenancy-admission-model-pods-binding")
    assert binding["spec"]["paramRef"]["name"] == "promoted-models"
