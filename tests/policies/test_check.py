"""The command that checks manifests without Pulumi, `policies.check`."""

import errno
import io
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.catalogue import RULES, RULES_BY_NAME
from policies.check import main
from tests.policies import manifests
from tests.policies.cases import CASES
from tests.policies.harness import CONTEXT, Case, changed, evaluate_rule

CHECKOUT = Path(__file__).resolve().parents[2]
PRIVILEGED = changed(manifests.volcano_job(), (f"{CONTEXT}/privileged", True))
LEVELS = {"error", "warning"}


def write_manifests(path: Path, *objects: dict[str, Any]) -> str:
    path.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False))
    return str(path)


@pytest.fixture
def compliant_file(tmp_path: Path) -> str:
    return write_manifests(tmp_path / "good.yaml", *manifests.whole_stack())


@pytest.fixture
def violating_file(tmp_path: Path) -> str:
    other_manifests = [
        item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"
    ]
    return write_manifests(tmp_path / "bad.yaml", *other_manifests, PRIVILEGED)


def test_compliant_stack_has_no_violations(
    compliant_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([compliant_file]) == 0
    rules = len([rule for rule in RULES if not rule.about_pulumi])
    summary = f"objects: 17, rules: {rules}, violations: 0 mandatory and 0 advisory\n"
    assert capsys.readouterr().out == summary


def test_mandatory_violation_is_reported_with_its_line_and_remediation(
    violating_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([violating_file]) == 1
    out = capsys.readouterr().out
    line = next(
        number
        for number, text in enumerate(Path(violating_file).read_text().splitlines(), 1)
        if "privileged:" in text
    )
    assert (
        f"{violating_file}:{line}: mandatory (critical): not-privileged: "
        'Job "digits" in namespace "training"' in out
    )
    assert "privileged: found true; write false" in out
    assert "1 mandatory and 0 advisory" in out


def test_advisory_violations_alone_do_not_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = changed(manifests.volcano_job(), ("spec/tasks/0/template/spec/containers/0/image", "a:1"))
    other_manifests = [
        item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"
    ]
    path = write_manifests(tmp_path / "f.yaml", *other_manifests, job)
    assert main([path]) == 0
    assert "advisory (medium): image-digest-pinned" in capsys.readouterr().out
    config = tmp_path / "config.json"
    config.write_text('{"image-digest-pinned": "mandatory"}')
    assert main([path, "--config", str(config)]) == 1


def test_secret_encrypted_with_sops_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "ml"}}
    encrypted = {**secret, "data": {"password": "ENC[AES256_GCM,data:a,iv:b]"}, "sops": {}}
    assert main([write_manifests(tmp_path / "a.yaml", encrypted), "--no-stack-rules"]) == 0
    assert main([write_manifests(tmp_path / "b.yaml", {**secret, "data": {"a": "YQ=="}})]) == 1
    assert "create this Secret elsewhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("{{ token | base64_encode(@) }}", 0),
        ("{{ random('[a-z]{16}') }}", 0),
        ("${PASSWORD}\n", 0),
        ("hunter2{{ suffix }}", 1),
        ("{{ a }}hunter2{{ b }}", 1),
        ("$PASSWORD", 1),
    ],
)
def test_only_placeholders_are_accepted_as_values_of_secrets(
    value: str, status: int, tmp_path: Path
) -> None:
    fields = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "ml"}}
    secret = {**fields, "stringData": {"password": value}}
    assert main([write_manifests(tmp_path / "a.yaml", secret), "--no-stack-rules"]) == status


def test_standard_input_is_checked() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "policies.check", "-", "--format", "json"],
        input=yaml.safe_dump_all([*manifests.whole_stack(), PRIVILEGED]),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1, completed.stderr
    (finding,) = json.loads(completed.stdout)["findings"]
    assert finding["rule"] == "not-privileged"


def test_check_does_not_import_pulumi() -> None:
    completed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, policies.check; print(sorted({m.partition('.')[0] for m in sys.modules}))",
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pulumi" not in completed.stdout
    assert "grpc" not in completed.stdout


def test_check_reports_the_same_findings_as_the_policy_pack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for case in CASES:
        if not RULES_BY_NAME[case.rule].about_pulumi:
            _assert_same_findings(case, tmp_path, capsys)


def _assert_same_findings(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    level = RULES_BY_NAME[case.rule].level.value
    settings = {"enforcementLevel": level, **(case.config or {})}
    config.write_text(json.dumps({"all": "disabled", case.rule: settings}))
    path = write_manifests(tmp_path / "f.yaml", *case.stack())
    status = main([path, "--config", str(config), "--format", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    texts = [f"{item['message']}\n{item['remediation']}" for item in found]
    assert texts == evaluate_rule(case.rule, *case.stack(), config=case.config)
    assert status == any(item["level"] == "mandatory" for item in found)
    assert all(item["file"] == path and item["line"] >= 1 for item in found if item["resource"])


def test_skipped_stack_rules_are_stated_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifests(tmp_path / "job.yaml", manifests.volcano_job())
    assert main([path]) == 1
    capsys.readouterr()
    assert main([path, "--no-stack-rules"]) == 0
    stack_rules = sum(rule.scope == "stack" for rule in RULES)
    assert f"skipped: {stack_rules} rules" in capsys.readouterr().out


def test_report_states_disabled_rules_and_skipped_documents(
    compliant_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"training-ends": "disabled"}')
    (tmp_path / "kustomization.yaml").write_text("resources: [good.yaml]\nimages: [{name: a}]\n")
    (tmp_path / "values.yaml").write_text("replicas: 2\n")
    options = [str(tmp_path / name) for name in ("good.yaml", "kustomization.yaml", "values.yaml")]
    assert main([*options, "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "disabled rules: training-ends\n" in out
    assert f"not evaluated: {options[1]}, document 1: it has neither apiVersion nor kind\n" in out
    assert f"not evaluated: {options[2]}, document 1: it has neither" in out
    main([*options, "--config", str(config), "--format", "sarif"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert "the rule training-ends is disabled" in [note["message"]["text"] for note in notes]
    assert len(notes) == 3


def test_configuration_that_disables_every_rule_is_rejected(
    compliant_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"all": "disabled"}')
    assert main([compliant_file, "--config", str(config)]) == 2
    assert "it disables every rule" in capsys.readouterr().err


def test_unreadable_directory_is_not_skipped(
    tmp_path: Path,
    compliant_file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "jobs").mkdir()
    assert main([str(tmp_path)]) == 0
    scan = os.scandir

    def deny(path: str) -> Any:
        if Path(path).name == "jobs":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path / 'jobs'}: Permission denied" in capsys.readouterr().err


def test_directory_is_checked_as_one_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    *other_manifests, last = manifests.whole_stack()
    write_manifests(tmp_path / "others.yml", *other_manifests)
    write_manifests(tmp_path / "jobs" / "service.yaml", last)
    (tmp_path / "README.md").write_text("# no manifest")
    assert main([str(tmp_path)]) == 0
    assert "objects: 17," in capsys.readouterr().out


def config_with_exemption(tmp_path: Path, days: int) -> str:
    day = datetime.now(UTC).date() + timedelta(days=days)
    entry = {
        "workload": "training/Job.batch.volcano.sh/digits",
        "rule": "not-privileged",
        "reason": "driver",
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"exemptions": {"workloads": [{**entry, "expires": str(day)}]}}))
    return str(config)


def test_exempted_violations_are_reported_but_do_not_fail_the_check(
    violating_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([violating_file, "--config", config_with_exemption(tmp_path, 1)]) == 0
    out = capsys.readouterr().out
    assert "advisory (critical): exemption-used" in out
    assert "because: driver" in out


def test_unused_exemptions_are_reported(
    compliant_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_with_exemption(tmp_path, 1)
    assert main([compliant_file, "--config", config]) == 0
    out = capsys.readouterr().out
    assert "advisory (low): exemption-unused: exemptions.workloads[0]: training/Job" in out
    assert main([compliant_file, "--config", config, "--no-stack-rules"]) == 0
    assert "exemption-unused" not in capsys.readouterr().out


def test_expired_exemption_is_rejected(
    violating_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([violating_file, "--config", config_with_exemption(tmp_path, -1)]) == 1
    out = capsys.readouterr().out
    assert "mandatory (high): exemptions: exemptions.workloads[0]" in out
    assert "mandatory (critical): not-privileged" in out


def test_sarif_report_has_the_structure_expected_by_code_hosts(
    violating_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([violating_file, "--format", "sarif", "--config", config_with_exemption(tmp_path, -1)])
        == 1
    )
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in LEVELS
    assert {result["ruleId"] for result in run["results"]} == {"not-privileged", "exemptions"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == "error"
        assert result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == Path(violating_file).as_uri()
        assert physical["region"]["startLine"] >= 1


def test_sarif_report_refers_to_relative_paths_and_stdin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_dump(PRIVILEGED)
    (tmp_path / "a b.yaml").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    main(["a b.yaml", "-", "--format", "sarif", "--no-stack-rules"])
    uris = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in json.loads(capsys.readouterr().out)["runs"][0]["results"]
    ]
    assert uris == ["a%20b.yaml", "stdin"]


@pytest.mark.parametrize(
    ("content", "config", "message"),
    [
        ("kind: [", None, "document 1, line 2: invalid YAML"),
        ("# nothing", None, "no object found in"),
        (None, None, "No such file"),
        ("apiVersion: v1\nkind: A", "{", "it is not JSON"),
        ("apiVersion: v1\nkind: A", "[" * 100_000, "it is not JSON"),
        ("apiVersion: v1\nkind: A", '{"x": "advisory"}', "unknown rule 'x'"),
        ("apiVersion: v1\nkind: A", None, ""),
    ],
    ids=[
        "invalid YAML",
        "no objects",
        "missing file",
        "invalid JSON settings",
        "settings nested too deeply",
        "unknown rule",
        "valid input",
    ],
)
def test_invalid_input_causes_a_one_line_error_and_exit_status_2(
    content: str | None,
    config: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, settings = tmp_path / "f.yaml", tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    options = []
    if config is not None:
        settings.write_text(config)
        options = ["--config", str(settings)]
    assert main([str(path), *options]) == (2 if message else 0)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == (1 if message else 0)
    assert bool(captured.out) is not bool(message)


def test_help_explains_rendering_exit_statuses_and_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    out = capsys.readouterr().out
    for words in ("helm template", "kustomize build", "exit status", "existingQueues", "sarif"):
        assert words in out


HOOKS: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hook_runs_the_installed_command_with_its_arguments(
    hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    job = manifests.volcano_job()
    (tmp_path / "manifests" / "job.yaml").write_text(yaml.safe_dump(job))
    module, _, function = PROJECT["project"]["scripts"][hook["entry"]].partition(":")
    # In the checkout, the packages of the wheel are top-level packages.
    run = getattr(import_module(module.removeprefix("gpu_platform.")), function)
    files = [] if hook.get("pass_filenames") is False else ["manifests/job.yaml"]
    single_files = "--no-stack-rules" in hook["args"]
    assert run([*hook["args"], *files]) == (0 if single_files else 1)


def test_wheel_depends_on_the_packages_that_the_check_imports() -> None:
    names = {text.partition(">")[0] for text in PROJECT["project"]["dependencies"]}
    assert names == {"pydantic", "pyyaml", "ruamel.yaml"}
