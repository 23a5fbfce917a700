"""Calls of `pulumi`, which is replaced by a script that records its arguments."""

import csv
import json
import os
import sys
import time
from pathlib import Path

import pytest

from gitops.engine import Pack, Preview, Stack, run, run_or_fail
from gitops.errors import GitopsError
from gitops.secrets import secure_paths, values

PULUMI = """\
#!{python}
import json, os, sys, time
arguments = sys.argv[1:]
if "--event-log" in arguments:
    with open(arguments[arguments.index("--event-log") + 1], "w") as log:
        names = ("PULUMI_DEBUG_COMMANDS", "PYTHONUNBUFFERED", "MINE")
        given = {{name: os.environ.get(name) for name in names}}
        log.write(json.dumps({{"arguments": arguments, "environment": given}}) + "\\n")
if "--show-secrets" in arguments:
    print("a warning", file=sys.stderr)
    print(open(os.environ["SECRETS"]).read())
    sys.exit(int(os.environ.get("STATUS", "0")))
time.sleep(float(os.environ.get("SLEEP", "0")))
print("printed to stdout")
print("printed to stderr", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """Return a stack, and put a fake `pulumi` on the PATH that records its arguments."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(PULUMI.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return Stack("prod", tmp_path, variables={"MINE": "yes"})


def test_each_preview_has_an_event_log_that_is_deleted_with_it(stack: Stack) -> None:
    with Preview(stack, None) as one, Preview(stack, None) as other:
        assert one.wait().status == other.wait().status == 0
        assert one.log != other.log
        reported = json.loads(one.log.read_text())
    assert not one.log.parent.exists()
    assert reported["environment"] == {
        "PULUMI_DEBUG_COMMANDS": "1",
        "PYTHONUNBUFFERED": "1",
        "MINE": "yes",
    }
    assert reported["arguments"][:3] == ["preview", "--stack", "prod"]


def test_refresh_runs_without_the_program_and_policies(stack: Stack) -> None:
    with Preview(stack, None, refresh=True) as preview:
        preview.wait()
        arguments = json.loads(preview.log.read_text())["arguments"]
    assert arguments[:2] == ["refresh", "--preview-only"]
    assert "--policy-pack" not in arguments


def test_a_plan_is_saved_in_a_new_directory(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "out" / "plan.json"
    with Preview(stack, None, plan=file) as preview:
        preview.wait()
        arguments = json.loads(preview.log.read_text())["arguments"]
    assert arguments[arguments.index("--save-plan") + 1] == str(file)
    assert file.parent.is_dir()


def test_policy_pack_and_its_configuration_are_passed(stack: Stack, tmp_path: Path) -> None:
    pack = Pack(tmp_path / "policies", tmp_path / "prod.json")
    with Preview(stack, pack) as preview:
        ended = preview.wait()
        arguments = json.loads(preview.log.read_text())["arguments"]
    assert {"--policy-pack", "--policy-pack-config"} <= set(arguments)
    assert "printed to stdout" in ended.output
    assert "printed to stderr" in ended.output


def test_paths_of_a_policy_pack_may_contain_commas_and_quotes() -> None:
    directory, configuration = Path('/a,b "c"/policies'), Path('/a,b "c"/prod.json')
    _, first, _, second = Pack(directory, configuration).options
    assert list(csv.reader([first, second])) == [[str(directory)], [str(configuration)]]


def test_an_abandoned_preview_is_terminated(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEP", "600")
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Preview(stack, None) as preview:
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 300
    assert preview._process.returncode is not None


def test_progress_is_reported_during_a_preview(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEEP", "1.5")
    reported: list[int] = []
    with Preview(stack, None) as preview:
        preview.wait(reported.append)
    assert set(reported) == {0}


def test_a_failure_is_reported_with_its_diagnostics(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS", "255")
    assert run(stack, "stack", "ls").status == 255
    with pytest.raises(GitopsError, match="`pulumi stack ls` failed:\nprinted to stdout"):
        run_or_fail(stack, "stack", "ls")


def test_missing_pulumi_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitopsError, match="`pulumi` is not on the PATH"):
        run(Stack("prod", tmp_path), "version")


CONFIGURATION = """\
config:
  gpu-platform:registry_password: {secure: v1:a}
  gpu-platform:training:
    jobs:
      a: {env: {TOKEN: {secure: v1:b}, PLAIN: x}, mounts: [{key: {secure: v1:c}}]}
encryptionsalt: v1:x
"""


def test_all_secret_values_are_collected(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.file.write_text(CONFIGURATION)
    job = {"env": {"TOKEN": "token", "PLAIN": "x"}, "mounts": [{"key": 12345}]}
    training = {"jobs": {"a": job}}
    shown = {
        "gpu-platform:registry_password": {"value": "password", "secret": True},
        "gpu-platform:training": {
            "value": json.dumps(training),
            "objectValue": training,
            "secret": True,
        },
    }
    (tmp_path / "secrets.json").write_text(json.dumps(shown))
    monkeypatch.setenv("SECRETS", str(tmp_path / "secrets.json"))
    assert sorted(values(stack)) == ["12345", "password", "token"]


def test_a_stack_without_secrets_needs_no_passphrase(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.file.write_text("config: {gpu-platform:training: {jobs: {}}}")
    monkeypatch.setenv("STATUS", "1")
    assert values(stack) == []
    assert list(secure_paths({"a": [{"secure": "x"}], "b": {"secure": "y", "c": 1}})) == [("a", 0)]


def test_error_for_undecryptable_secrets_names_the_passphrase(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.file.write_text(CONFIGURATION)
    monkeypatch.setenv("STATUS", "1")
    monkeypatch.setenv("SECRETS", str(tmp_path / "partly"))
    (tmp_path / "partly").write_text("hunter2")
    with pytest.raises(GitopsError, match="PULUMI_CONFIG_PASSPHRASE") as raised:
        values(stack)
    assert "a warning" in str(raised.value)
    assert "hunter2" not in str(raised.value)
