"""References from rules to security frameworks, and links to the rules' documentation."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pulumi_policy import PolicyComplianceFramework

from policies.binding import Binding
from policies.catalogue import RULES, RULES_BY_NAME
from policies.check import main
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from policies.frameworks import FRAMEWORKS, Reference
from policies.reports import Report, as_json, human, sarif
from policies.rule import PAGE_VARIABLE
from tools.generate import policies as page

SECURITY = ("host_access", "pod_security", "pod_hardening", "secret_values", "access", "exposure")
MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: ml}
spec:
  containers: [{name: main, image: "a:1", securityContext: {privileged: true}}]
"""


def report(rule: str) -> Report:
    configuration = configure({"all": "disabled", rule: "mandatory"}, RULES)
    documents = list(read("f.yaml", MANIFEST))
    findings = evaluate(documents, configuration)
    return Report(findings, ["f.yaml"], 1, [RULES_BY_NAME[rule]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CIS 5.2.99", "CIS Kubernetes Benchmark 1.12 has no control '5.2.99'"),
        ("PCI 1", "found the framework 'PCI'; write one of PSS, NSA, CIS, OWASP"),
        ("CIS", "has no control ''"),
    ],
)
def test_unknown_frameworks_and_controls_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Reference.parse(text)


def test_security_rules_refer_to_every_framework() -> None:
    referenced = {control.framework.name for rule in RULES for control in rule.controls}
    assert referenced == {framework.name for framework in FRAMEWORKS.values()}
    assert all(rule.controls for rule in RULES if rule.topic in SECURITY)


def test_every_pod_security_standards_control_is_covered_by_a_rule() -> None:
    standards = FRAMEWORKS["PSS"]
    referenced = {
        control.control
        for rule in RULES
        for control in rule.controls
        if control.framework is standards
    }
    assert referenced == standards.controls


def test_pulumi_policies_have_a_title_a_framework_and_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PAGE_VARIABLE, "https://docs.example.com/policies")
    (policy,) = Binding().policies([RULES_BY_NAME["not-privileged"]])
    assert policy.display_name == "Not privileged"
    assert policy.url == "https://docs.example.com/policies#not-privileged"
    framework = policy.framework
    assert isinstance(framework, PolicyComplianceFramework)
    assert framework.name == "Pod Security Standards"
    assert framework.reference == "baseline Privileged Containers"


def test_titles_keep_acronyms() -> None:
    assert RULES_BY_NAME["gpu-toleration"].title == "GPU toleration"


def test_reports_contain_severity_controls_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PAGE_VARIABLE, "https://docs.example.com/policies")
    found = report("not-privileged")
    text = human(found)
    assert "mandatory (critical): not-privileged:" in text
    assert "CIS 5.2.2, CIS 5.2.10, OWASP K01\n" in text
    assert "https://docs.example.com/policies#not-privileged" in text
    (finding,) = json.loads(as_json(found))["findings"]
    assert "OWASP Kubernetes Top Ten 2025, K01" in finding["references"]
    assert finding["url"].endswith("#not-privileged")
    (run,) = json.loads(sarif(found))["runs"]
    rule: dict[str, Any] = run["tool"]["driver"]["rules"][0]
    assert rule["helpUri"] == "https://docs.example.com/policies#not-privileged"
    assert "CIS Kubernetes Benchmark 1.12, 5.2.2" in rule["properties"]["tags"]


def test_links_point_to_existing_sections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(MANIFEST)
    main([str(path), "--no-stack-rules", "--format", "json"])
    text = page.page()
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        address, _, anchor = finding["url"].partition("#")
        assert Path(address.removeprefix("file://")).exists()
        assert f"\n### {anchor}\n" in text
