"""State that survives mistakes: concurrent updates, backup and restore.

Killed updates are in the cluster tier: recovery includes a refresh, which needs an API server.
"""

import base64
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from tests.engine.conftest import MakeStack, Outcome, Stack
from tests.readme import blocks


def clean(config: dict[str, Any]) -> None:
    """Remove settings that do not matter here, to make updates faster."""
    config["gpu-platform:inference"]["services"] = {}


@contextmanager
def updating(stack: Stack) -> Iterator[subprocess.Popen[str]]:
    """Run an update in the background, in a separate process group."""
    options = ("--stack", stack._name, "--config-file", str(stack._file), "--non-interactive")
    process = subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", *options],
        cwd=CHECKOUT,
        env=stack._environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def command(stack: Stack, *arguments: str) -> Outcome:
    return stack._command(*arguments, "--stack", stack._name)


def test_concurrent_updates_of_a_stack_do_not_damage_it(
    engine: MakeStack,
) -> None:
    stack = engine("simulated", clean)
    made = stack._command("stack", "select", "--create", "simulated", cwd=stack._folder)
    assert made.status == 0, made.text
    with updating(stack) as first, updating(stack) as second:
        output = [process.communicate(timeout=800)[0] for process in (first, second)]
        statuses = [process.returncode for process in (first, second)]
    # If both updates see each other's lock at the same time, both abort. An update may also fail to
    # read the lock that the other update is writing.
    for status, text in zip(statuses, output, strict=True):
        assert status == 0 or "locked" in text or "/.pulumi/locks/" in text, text
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    assert stack.up("--expect-no-changes").status == 0


def test_lost_state_is_restored_from_a_backup(engine: MakeStack, tmp_path: Path) -> None:
    stack = engine("simulated", clean)
    assert stack.up().status == 0
    backup = tmp_path / "state.json"
    assert command(stack, "stack", "export", "--file", str(backup)).status == 0
    lost = command(stack, "stack", "rm", "--force", "--yes", "--preserve-config")
    assert lost.status == 0, lost.text
    created = stack._command("stack", "select", "--create", "simulated", cwd=stack._folder)
    assert created.status == 0, created.text
    restored = command(stack, "stack", "import", "--file", str(backup))
    assert restored.status == 0, restored.text
    outcome = stack.up("--expect-no-changes")
    assert outcome.status == 0, outcome.text


@pytest.mark.parametrize("teams", [("simulated", "dev")])
def test_two_teams_can_update_their_stacks_at_the_same_time(
    teams: tuple[str, str], engine: MakeStack
) -> None:
    def pinned(config: dict[str, Any]) -> None:
        clean(config)
        reference = f"registry.example.com/training@sha256:{'0' * 64}"
        workloads = config["gpu-platform:images"]["workloads"]
        workloads.update({key: {"reference": reference} for key in workloads})

    stacks = [engine(name, pinned) for name in teams]
    # Teams share one backend.
    backend = stacks[0]._environment["PULUMI_BACKEND_URL"]
    for stack in stacks:
        stack._environment["PULUMI_BACKEND_URL"] = backend
        made = stack._command("stack", "select", "--create", stack._name, cwd=stack._folder)
        assert made.status == 0, made.text
    with updating(stacks[0]) as one, updating(stacks[1]) as other:
        for process in (one, other):
            output, _ = process.communicate(timeout=800)
            assert process.returncode == 0, output
    for stack in stacks:
        settled = stack.up("--expect-no-changes")
        assert settled.status == 0, settled.text


def test_update_that_deviates_from_its_plan_is_rejected(engine: MakeStack) -> None:
    stack = engine("simulated", clean)
    plan = str(stack._folder / "plan.json")
    previewed = stack.preview("--save-plan", plan)
    assert previewed.status == 0, previewed.text
    stack.edit(lambda config: config["gpu-platform:tenancy"]["quota"].update(gpus=999))
    refused = stack.up("--plan", plan)
    assert refused.status != 0
    assert "violates plan" in refused.text


def test_update_that_matches_its_plan_is_applied(engine: MakeStack) -> None:
    stack = engine("simulated", clean)
    plan = str(stack._folder / "plan.json")
    assert stack.preview("--save-plan", plan).status == 0
    done = stack.up("--plan", plan)
    assert done.status == 0, done.text
    assert len(stack.manifests()) > 10


def test_secrets_and_their_passphrase_are_rotated_as_documented(
    engine: MakeStack,
) -> None:
    def with_login(config: dict[str, Any]) -> None:
        clean(config)
        config["gpu-platform:images"] |= {"registry": "127.0.0.1:5000", "username": "robot"}

    stack = engine("simulated", with_login)
    made = stack._command("stack", "select", "--create", "simulated", cwd=stack._folder)
    assert made.status == 0, made.text
    stack.set_secret("registry_password", "previous")
    assert stack.up().status == 0
    salt = stack._file.read_text().split("encryptionsalt")[1].splitlines()[0]
    page = [block for block in blocks(CHECKOUT / "docs" / "secrets.md") if not block.needs]
    password, passphrase = (block.script.replace("prod", "simulated") for block in page)
    (stack._folder / "new-password").write_text("replaced")
    (stack._folder / "new-passphrase").write_text("another one")
    for script in (password, passphrase):
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=stack._folder,
            env=stack._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert salt not in stack._file.read_text()
    refused = stack.preview()
    assert refused.status != 0
    assert "incorrect passphrase" in refused.text
    stack._environment["PULUMI_CONFIG_PASSPHRASE"] = "another one"
    assert stack.up().status == 0
    assert stack.up("--expect-no-changes").status == 0
    (login,) = (m["data"] for m in stack.manifests() if m["kind"] == "Secret")
    assert b'"replaced"' in base64.b64decode(login[".dockerconfigjson"])
