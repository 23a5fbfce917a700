"""Report formats, and the severity threshold from which findings fail the check."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from policies.catalogue import RULES
from policies.check import main

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: ml}
spec:
  containers: [{name: main, image: "a:1", securityContext: {privileged: true}}]
"""
RULE_LEVELS = {"not-privileged": "mandatory", "image-digest-pinned": "advisory"}


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a check of a Pod with a critical mandatory and a medium advisory finding."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, text: str = POD, **config: Any) -> tuple[int, str]:
        Path("pod.yaml").write_text(text)
        values = {"all": "disabled", **RULE_LEVELS, "run-as-non-root": "disabled", **config}
        values["shm-not-from-host"] = "mandatory"
        Path("config.json").write_text(json.dumps(values))
        status = main(["pod.yaml", "--config", "config.json", *options])
        return status, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("threshold", "levels", "expected"),
    [
        ("mandatory", {}, 1),
        ("mandatory", {"not-privileged": "advisory"}, 0),
        ("advisory", {"not-privileged": "disabled"}, 1),
        ("critical", {"not-privileged": "advisory"}, 1),
        ("critical", {"not-privileged": "disabled"}, 0),
        ("high", {"not-privileged": "disabled", "image-digest-pinned": "mandatory"}, 0),
        ("medium", {"not-privileged": "disabled"}, 1),
        ("low", {"not-privileged": "disabled"}, 1),
    ],
)
def test_severity_threshold_determines_the_exit_status(
    check: Any, threshold: str, levels: dict[str, str], expected: int
) -> None:
    status, out = check("--fail-on", threshold, "--format", "json", **levels)
    assert status == expected
    assert json.loads(out)["summary"]["failed"] == bool(expected)


def test_exempted_violations_never_fail_the_check(check: Any) -> None:
    entry = {
        "workload": "ml/Pod/shell",
        "rules": list(RULE_LEVELS),
        "reason": "debugging",
        "expires": str(datetime.now(UTC).date() + timedelta(days=1)),
    }
    status, out = check("--fail-on", "low", exemptions={"workloads": [entry]})
    assert status == 0
    assert out.count(": exemption-used:") == 2


def test_verbose_reports_list_passed_rules(check: Any) -> None:
    _, out = check("--verbose")
    assert "passed: shm-not-from-host: Pods do not use the node's /dev/shm.\n" in out
    _, out = check("--verbose", "--format", "json")
    assert json.loads(out)["passed"] == ["shm-not-from-host"]
    _, out = check("--verbose", "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    assert [result["ruleId"] for result in run["results"] if result.get("kind") == "pass"] == [
        "shm-not-from-host"
    ]
    _, out = check("--verbose", "--format", "github")
    assert "::notice title=passed::shm-not-from-host" in out


def test_junit_report_has_a_test_case_for_every_rule(check: Any) -> None:
    status, out = check("--format", "junit")
    assert status == 1
    suite = ET.fromstring(out)  # noqa: S314 - our own output
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert len(cases) == int(suite.attrib["tests"])
    assert {"shm-not-from-host", "exemption-unused"} <= cases.keys()
    failure = cases["not-privileged"].find("failure")
    assert failure is not None
    assert (failure.text or "").startswith("pod.yaml:5: mandatory (critical): Pod")
    assert suite.attrib["failures"] == "1"
    output = cases["image-digest-pinned"].find("system-out")
    assert output is not None
    assert "advisory (medium)" in (output.text or "")
    assert len(cases["shm-not-from-host"]) == 0
    skipped = [name for name, case in cases.items() if case.find("skipped") is not None]
    assert len(skipped) == int(suite.attrib["skipped"]) == len(RULES) - 3


def test_junit_report_replaces_characters_that_xml_forbids(check: Any) -> None:
    text = POD.replace("name: shell", 'name: "she\\x01ll"')
    _, out = check("--format", "junit", text=text)
    ET.fromstring(out)  # noqa: S314 - our own output


def test_github_annotations_contain_file_line_and_rule(check: Any) -> None:
    status, out = check("--format", "github")
    assert status == 1
    warning, error, *other_lines = out.splitlines()
    prefix = "::error title=not-privileged (critical),file=pod.yaml,line=5::Pod "
    assert error.startswith(prefix)
    assert warning.startswith("::warning title=image-digest-pinned (medium),file=pod.yaml,line=5::")
    assert other_lines[0].startswith("objects: 1, rules: 3")


def test_github_annotations_escape_text_from_manifests(check: Any) -> None:
    text = POD.replace("name: shell", 'name: "a%\\n::error::b"')
    _, out = check("--format", "github", text=text)
    assert "a%25%0A::error::b" in out
    assert not [line for line in out.splitlines() if line.startswith("::error::")]


def test_openreports_report_lists_all_types_of_results(check: Any) -> None:
    _, out = check("--format", "openreports")
    report = json.loads(out)
    assert (report["apiVersion"], report["kind"]) == ("openreports.io/v1alpha1", "Report")
    results = {result["policy"]: result for result in report["results"]}
    assert results["not-privileged"]["result"] == "fail"
    assert results["not-privileged"]["resources"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "shell", "namespace": "ml"}
    ]
    assert results["not-privileged"]["properties"]["line"] == "5"
    assert results["image-digest-pinned"]["result"] == "warn"
    assert results["shm-not-from-host"]["result"] == "pass"
    assert results["training-ends"]["result"] == "skip"
    counts = dict.fromkeys(("pass", "fail", "warn", "error", "skip"), 0)
    for result in report["results"]:
        counts[result["result"]] += 1
    assert report["summary"] == counts
    assert yaml.safe_load(out) == report
