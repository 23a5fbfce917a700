"""The Pulumi stack, with fakes for `pulumi` and `kubectl` that print what a test prepared."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devcluster import DevclusterError
from devcluster.deploy.stack import (
    EventFollower,
    Release,
    Stack,
    describe,
    describe_plan,
    interrupted_releases,
    is_unchanged,
    recover,
)
from devcluster.paths import CHECKOUT, Layout
from tests.devcluster.conftest import Install

# Records its arguments, and copies $FAKE_CLI/events to the path after --event-log.
PULUMI = """
echo "$*" >> "$FAKE_CLI/calls"
pwd > "$FAKE_CLI/folder"
cat "$FAKE_CLI/out" 2>/dev/null
cat "$FAKE_CLI/err" >&2 2>/dev/null
while [ $# -gt 0 ]; do
  [ "$1" = --event-log ] && cp "$FAKE_CLI/events" "$2"
  shift
done
exit "$(cat "$FAKE_CLI/status")"
"""
REJECTED_PREVIEW = """\
Previewing update (dev):
 +  kubernetes:core/v1:Pod worker create
Diagnostics:
  kubernetes:core/v1:Pod (worker):
    error: image is not pinned
Policies:
    gpu-platform@v0.1.0 (local: policies)
"""


def pre(operation: str, name: str) -> dict[str, Any]:
    urn = f"urn:pulumi:dev::gpu-platform::kubernetes:core/v1:Pod::{name}"
    return {"sequence": 1, "resourcePreEvent": {"metadata": {"op": operation, "urn": urn}}}


def summary(**changes: int) -> dict[str, Any]:
    return {"sequence": 2, "summaryEvent": {"resourceChanges": changes}}


def lines(*events: dict[str, Any]) -> bytes:
    text = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
    return text.encode()


@pytest.fixture
def fake_cli(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with the stand-in's output: out, err, events and the exit status."""
    folder = tmp_path / "fake-cli"
    folder.mkdir()
    (folder / "status").write_text("0")
    (folder / "events").write_bytes(lines(summary()))
    monkeypatch.setenv("FAKE_CLI", str(folder))
    install("pulumi", PULUMI)
    install("kubectl", 'echo "kubectl $*" >> "$FAKE_CLI/calls"')
    return folder


@pytest.fixture
def stack(layout: Layout) -> Stack:
    return Stack("dev", layout, {"PULUMI_HOME": str(layout.state)})


def calls(fake_cli: Path) -> list[str]:
    return (fake_cli / "calls").read_text().splitlines()


def test_changes_are_summarized_in_words() -> None:
    changes = {"create": 12, "update": 1, "same": 30, "delete": 0, "refresh": 2}
    assert describe(changes) == "12 created, 1 updated, 2 refresh"
    assert describe_plan(changes) == "12 to create, 1 to update, 2 to refresh"
    assert not is_unchanged(changes)


@pytest.mark.parametrize("changes", [{}, {"same": 30}, {"same": 3, "read": 1, "create": 0}])
def test_update_without_changes_is_summarized_as_unchanged(changes: dict[str, int]) -> None:
    assert describe(changes) == describe_plan(changes) == "unchanged"
    assert is_unchanged(changes)


def test_events_are_followed_as_their_log_grows(tmp_path: Path) -> None:
    log, reports = tmp_path / "events", list[str]()
    follower = EventFollower(log)
    follower.follow(reports.append)
    log.write_bytes(lines(pre("create", "namespace"), pre("same", "stack")))
    follower.follow(reports.append)
    follower.follow(reports.append)
    assert reports == ["1: create namespace"]
    with log.open("ab") as more:
        more.write(lines(pre("update", "job"), summary(create=1, update=1, same=1)))
    follower.follow(reports.append)
    assert reports == ["1: create namespace", "2: update job"]
    assert follower.changes == {"create": 1, "update": 1, "same": 1}


def test_incomplete_event_lines_are_read_once_they_are_complete(tmp_path: Path) -> None:
    log, reports = tmp_path / "events", list[str]()
    whole = lines(pre("create", "größe"), pre("create", "job"), summary(create=2))
    follower = EventFollower(log)
    for end in range(len(whole) + 1):
        log.write_bytes(whole[:end])
        follower.follow(reports.append)
    assert reports == ["1: create größe", "2: create job"]
    assert follower.changes == {"create": 2}


def test_a_summary_without_changes_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_bytes(lines({"summaryEvent": {"resourceChanges": None}}))
    follower = EventFollower(log)
    follower.follow(lambda _: None)
    assert follower.changes == {}


def test_a_preview_is_checked_by_the_policy_pack(stack: Stack, fake_cli: Path) -> None:
    (fake_cli / "events").write_bytes(lines(pre("create", "job"), summary(create=1)))
    reports: list[str] = []
    assert stack.preview().finish(reports.append) == {"create": 1}
    assert reports == ["1: create job"]
    (call,) = calls(fake_cli)
    assert call.startswith("preview --stack dev --non-interactive")
    config = CHECKOUT / "policies" / "config" / "dev.json"
    assert f"--policy-pack policies --policy-pack-config {config}" in call
    assert config.exists()
    assert (fake_cli / "folder").read_text().strip() == str(CHECKOUT)


def test_an_update_does_not_prompt(stack: Stack, fake_cli: Path) -> None:
    stack.update().finish(lambda _: None)
    (call,) = calls(fake_cli)
    assert call.startswith("up --yes --skip-preview")
    assert "--policy-pack policies" in call


def test_events_of_an_earlier_update_are_not_counted(
    stack: Stack, fake_cli: Path, layout: Layout
) -> None:
    (layout.logs / "pulumi-up.events").write_bytes(lines(summary(create=99)))
    (fake_cli / "events").unlink()
    assert stack.update().finish(lambda _: None) == {}


def test_a_policy_violation_is_reported_from_its_diagnostics(
    stack: Stack, fake_cli: Path, layout: Layout
) -> None:
    (fake_cli / "status").write_text("255")
    (fake_cli / "out").write_text(REJECTED_PREVIEW)
    with pytest.raises(DevclusterError) as caught:
        stack.preview().finish(lambda _: None)
    first, *rest = str(caught.value).splitlines()
    log = layout.logs / "pulumi-preview.log"
    assert first == f"`pulumi preview` failed; see the log at {log}"
    assert rest == REJECTED_PREVIEW.splitlines()[2:]


def test_a_failure_without_diagnostics_shows_its_last_lines(stack: Stack, fake_cli: Path) -> None:
    (fake_cli / "status").write_text("1")
    (fake_cli / "err").write_text("".join(f"line {number}\n" for number in range(40)))
    with pytest.raises(DevclusterError) as caught:
        stack.update().finish(lambda _: None)
    assert str(caught.value).splitlines()[1:] == [f"line {number}" for number in range(10, 40)]


def test_an_interrupted_update_waits_for_pulumi_to_end(
    stack: Stack, fake_cli: Path, install: Install
) -> None:
    (fake_cli / "events").write_bytes(lines(pre("create", "job")))
    install(
        "pulumi",
        f'trap "echo ended > {fake_cli}/trap; exit 1" TERM; '
        f"cp {fake_cli}/events {stack.layout.logs}/pulumi-up.events; "
        "while true; do sleep 0.02; done",
    )

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stack.update().finish(interrupt)
    assert (fake_cli / "trap").read_text() == "ended\n"


def test_a_missing_stack_is_created(stack: Stack, fake_cli: Path) -> None:
    stack.select()
    assert calls(fake_cli) == ["stack select --create dev --non-interactive"]


def lock(layout: Layout, pid: int, stack: str = "dev") -> None:
    folder = layout.pulumi_backend / ".pulumi" / "locks" / "organization" / "gpu-platform" / stack
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps({"pid": pid}))


def test_a_lock_of_a_dead_process_is_released(stack: Stack, fake_cli: Path, layout: Layout) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock(layout, dead.pid)
    stack.select()
    assert calls(fake_cli)[1] == "cancel --yes --stack dev --non-interactive"


def test_lock_is_released_if_its_pid_belongs_to_another_program(
    stack: Stack, fake_cli: Path, layout: Layout
) -> None:
    lock(layout, os.getpid())  # The process ID was reused.
    stack.select()
    assert len(calls(fake_cli)) == 2


def test_a_lock_of_a_running_process_is_kept(
    stack: Stack, fake_cli: Path, layout: Layout, tmp_path: Path
) -> None:
    (tmp_path / "pulumi").symlink_to("/bin/sleep")
    with subprocess.Popen([tmp_path / "pulumi", "60"]) as alive:
        lock(layout, alive.pid)
        stack.select()
        alive.kill()
    assert len(calls(fake_cli)) == 1


def test_stale_lock_is_released_while_another_stack_is_updated(
    stack: Stack, fake_cli: Path, layout: Layout, tmp_path: Path
) -> None:
    (tmp_path / "pulumi").symlink_to("/bin/sleep")
    dead = subprocess.Popen(["true"])
    dead.wait()
    lock(layout, dead.pid)
    with subprocess.Popen([tmp_path / "pulumi", "60"]) as alive:
        lock(layout, alive.pid, "team")
        stack.select()
        alive.kill()
    assert len(calls(fake_cli)) == 2


def test_partially_written_lock_is_kept(stack: Stack, fake_cli: Path, layout: Layout) -> None:
    lock(layout, 1)
    for file in layout.pulumi_backend.rglob("1.json"):
        file.write_text('{"pid": ')
    stack.select()
    assert len(calls(fake_cli)) == 1


def test_stack_outputs_are_parsed(stack: Stack, fake_cli: Path) -> None:
    (fake_cli / "out").write_text('{"namespace": "ml", "queues": ["research"]}')
    assert stack.outputs() == {"namespace": "ml", "queues": ["research"]}
    assert calls(fake_cli) == ["stack output --json --stack dev --non-interactive"]


def test_failed_command_is_reported_with_its_error(stack: Stack, fake_cli: Path) -> None:
    (fake_cli / "status").write_text("255")
    (fake_cli / "err").write_text("error: incorrect passphrase\n")
    with pytest.raises(
        DevclusterError, match=r"^`pulumi stack output .*` failed:\nerror: incorrect"
    ):
        stack.outputs()


def creating(kind: str, **inputs: str) -> dict[str, Any]:
    return {"type": "creating", "resource": {"type": kind, "inputs": inputs}}


RELEASE = creating("kubernetes:helm.sh/v3:Release", name="volcano", namespace="volcano-system")
POD = creating("kubernetes:core/v1:Pod", name="worker")


def state(fake_cli: Path, *pending: dict[str, Any]) -> None:
    document = {"deployment": {"pending_operations": list(pending) or None}}
    (fake_cli / "out").write_text(json.dumps(document))


def test_interrupted_release_installation_is_found_by_name_and_namespace() -> None:
    assert list(interrupted_releases([POD, RELEASE])) == [
        Release("volcano-system", "owner=helm,name=volcano")
    ]


def test_interrupted_release_upgrade_keeps_earlier_revisions() -> None:
    assert list(interrupted_releases([{**RELEASE, "type": "updating"}])) == [
        Release("volcano-system", "owner=helm,name=volcano,status=pending-upgrade")
    ]


def test_interrupted_release_deletion_is_left_to_helm() -> None:
    assert list(interrupted_releases([{**RELEASE, "type": "deleting"}])) == []


def test_interrupted_release_without_a_name_is_ignored() -> None:
    assert list(interrupted_releases([creating("kubernetes:helm.sh/v3:Release")])) == []


def test_complete_update_leaves_no_pending_operations(stack: Stack, fake_cli: Path) -> None:
    state(fake_cli)
    assert stack.pending_operations() == []
    assert calls(fake_cli) == ["stack export --stack dev --non-interactive"]


def test_helms_secret_is_deleted_and_pending_operations_are_cleared(
    stack: Stack, fake_cli: Path
) -> None:
    state(fake_cli, POD, RELEASE)
    recover(stack, stack.pending_operations(), ["kubectl"])
    _, delete, refresh = calls(fake_cli)
    assert delete == "kubectl delete secret -n volcano-system --selector=owner=helm,name=volcano"
    assert "--clear-pending-creates" in refresh
