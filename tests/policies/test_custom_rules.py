"""Custom rules and their test cases, with the example in examples/policy-rules."""

import os
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.runtime.proto.analyzer_pb2_grpc import AnalyzerStub

from policies.catalogue import RULES, VARIABLE, with_custom_rules
from policies.check import main as check
from policies.rule import ConfigurationError
from policies.test import main as run_cases

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "examples" / "policy-rules"
RULES_FILE = EXAMPLE / "team_rules.py"
ONLY_CUSTOM = '{"all": "disabled", "owner-named": "mandatory"}'
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main}]}\n"


def test_rules_from_a_file_are_added_to_the_pack() -> None:
    *built_in_rules, custom_rule = with_custom_rules([RULES_FILE, RULES_FILE])
    assert built_in_rules == RULES
    assert custom_rule.name == "owner-named"
    assert custom_rule.page == "https://wiki.example.com/rules#owner-named"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "own.py: not a Python file; pass a .py file"),
        ("import nothing_like_it", "own.py: ModuleNotFoundError: No module named"),
        ("raise SystemExit(0)", "own.py: SystemExit: 0"),
        ("from policies.rules.pod_security import RULES", "own.py: it defines no rule"),
        (RULES_FILE.read_text().replace("owner-named", "not-privileged"), "write a unique name"),
        (RULES_FILE.read_text().replace("owner-named", "all"), "found the rule 'all'"),
        (
            RULES_FILE.read_text().replace("owner-named", "Owner named"),
            "write a unique name of lower-case",
        ),
    ],
)
def test_rule_files_without_valid_rules_are_rejected(
    text: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        with_custom_rules([file])


def test_check_evaluates_and_configures_custom_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod, config = tmp_path / "pod.yaml", tmp_path / "config.json"
    pod.write_text(POD)
    config.write_text(ONLY_CUSTOM)
    options = [str(pod), "--config", str(config)]
    assert check([*options, "--rules", str(RULES_FILE)]) == 1
    assert 'metadata.labels["example.com/owner"]: not set' in capsys.readouterr().out
    assert check(options) == 2
    assert "unknown rule 'owner-named'" in capsys.readouterr().err
    assert check([*options, "--rules", "nowhere.py"]) == 2
    assert "nowhere.py: not a Python file" in capsys.readouterr().err


def test_required_setting_that_is_not_set_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod, rules = tmp_path / "pod.yaml", tmp_path / "rules.py"
    pod.write_text(POD)
    rules.write_text(RULES_FILE.read_text().replace('default="example.com/owner", ', ""))
    assert check([str(pod), "--rules", str(rules)]) == 2
    error = capsys.readouterr().err
    assert "error: the configuration: " in error
    assert "owner-named.label: not set; write a value" in error


@pytest.mark.parametrize(
    "file", [RULES_FILE, Path("nowhere.py")], ids=["existing file", "missing file"]
)
def test_served_pack_contains_the_rules_from_the_environment_variable(file: Path) -> None:
    command = [sys.executable, CHECKOUT / "policies", "127.0.0.1:1"]
    environment = os.environ | {VARIABLE: str(file)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline()
        if not file.exists():
            assert process.stderr is not None
            assert f"gpu-platform: {VARIABLE}: " in process.stderr.read()
            assert process.wait() == 1
            return
        try:
            with grpc.insecure_channel(f"127.0.0.1:{int(port)}") as channel:
                found = AnalyzerStub(channel).GetAnalyzerInfo(Empty())
        finally:
            process.terminate()
    (custom_policy,) = (policy for policy in found.policies if policy.name == "owner-named")
    assert custom_policy.configSchema.properties["label"]["default"] == "example.com/owner"


def test_example_has_the_expected_violations(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rules", str(RULES_FILE), "--no-stack-rules"]
    assert run_cases([str(EXAMPLE / "cases"), *options]) == 0
    assert capsys.readouterr().out.endswith("cases: 2 passed, 0 failed\n")


@pytest.mark.parametrize(
    ("comment", "config", "status", "message"),
    [
        ("# expect: owner-named", ONLY_CUSTOM, 0, "cases: 1 passed"),
        ("# expect: nothing", ONLY_CUSTOM, 1, "bad.yaml: violates owner-named"),
        ("# expect: nothing", ONLY_CUSTOM.replace("mandatory", "advisory"), 0, "1 passed"),
        ("# expect: owner-named", ONLY_CUSTOM.replace("mandatory", "advisory"), 0, "1 passed"),
        (
            "# expect: not-privileged",
            ONLY_CUSTOM.replace("}", ', "not-privileged": "mandatory"}'),
            1,
            "bad.yaml: does not violate not-privileged and violates owner-named",
        ),
        ("# expect: owner-named", None, 1, "violates capabilities-dropped"),
        ("# expect: owner-named, ...", None, 0, "1 passed"),
        ("# expect: not-privileged", ONLY_CUSTOM, 2, "expects not-privileged, which the options"),
        ("# expect: owner-nmed", ONLY_CUSTOM, 2, "expects unknown rules: owner-nmed"),
        (
            "# expect: nothing, ...",
            ONLY_CUSTOM,
            2,
            "expects 'nothing, ...'; write rules, or the word",
        ),
        ("# expect:", ONLY_CUSTOM, 2, "write rules, or the word nothing"),
        ("", ONLY_CUSTOM, 2, "found 0 comments with expectations; write one"),
        ("# expect: nothing\n# expect: nothing", ONLY_CUSTOM, 2, "found 2 comments"),
    ],
)
def test_cases_are_compared_with_their_expected_violations(
    comment: str,
    config: str | None,
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad.yaml").write_text(f"{comment}\n{POD}")
    if config is not None:
        (tmp_path / "bad.config.json").write_text(config)
    options = [str(tmp_path), "--rules", str(RULES_FILE), "--no-stack-rules"]
    assert run_cases(options) == status
    captured = capsys.readouterr()
    assert message in captured.out + captured.err


def test_custom_rules_without_a_violating_case_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.yaml").write_text(f"# expect: capabilities-dropped, ...\n{POD}")
    assert run_cases([str(tmp_path), "--rules", str(RULES_FILE), "--no-stack-rules"]) == 0
    assert capsys.readouterr().out.endswith("no case violates: owner-named\n")


def test_directory_without_cases_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cases([str(tmp_path)]) == 2
    assert "no manifest found in" in capsys.readouterr().err


def test_help_explains_expectations(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_cases(["--help"])
    out = capsys.readouterr().out
    assert all(words in out for words in ("# expect: nothing", "NAME.config.json", "exit status"))
