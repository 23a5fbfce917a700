"""GitOps with a real API server: a scripted pull request, drift, and killed updates."""

import json
import os
import random
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import interrupted
from tests.cluster.platform import Platform, await_

# Each kill requires three updates; `KILLS=10` kills at more points.
KILLS = int(os.environ.get("KILLS", "3"))
SEED = 20261121


@dataclass(frozen=True)
class Previewed:
    """Exit status and files of `python -m gitops preview`."""

    status: int
    comment: str
    report: dict[str, Any]


def preview(platform: Platform, *arguments: str) -> Previewed:
    command = ["python", "-m", "gitops", "preview", "--stack", "simulated", "--out", "preview"]
    shell = f"{shlex.join([*command, *arguments])} || status=$?; echo ${{status:-0}}"
    status = int(platform.shell(shell).splitlines()[-1])
    folder = platform.checkout / "preview"
    report = json.loads((folder / "report.json").read_text())
    return Previewed(status, (folder / "comment.md").read_text(), report)


@pytest.fixture(scope="module", autouse=True)
def restored(cluster: Platform) -> Iterator[None]:
    """Restore the stack's configuration, which these tests edit."""
    configuration = cluster.stack_file.read_text()
    yield
    cluster.stack_file.write_text(configuration)


def test_preview_of_the_applied_base_shows_no_changes(cluster: Platform) -> None:
    found = preview(cluster)
    assert found.status == 0, found.comment
    assert found.report["counts"]["same"] > 20


def test_manual_edits_are_reported_as_drift_and_repaired_by_an_update(cluster: Platform) -> None:
    patch = json.dumps({"spec": {"weight": 7}})
    cluster.shell(f"kubectl patch queue research --type merge --patch {shlex.quote(patch)}")
    cluster.shell("kubectl delete networkpolicy allow-dns -n ml-simulated")
    assert preview(cluster).status == 0
    found = preview(cluster, "--refresh")
    assert found.status == 2, found.comment
    assert found.comment.startswith("<!-- gpu-platform drift simulated -->")
    changed = {item["title"]: item["operation"] for item in found.report["resources"]}
    assert changed == {
        "Queue research": "update",
        "NetworkPolicy allow-dns in ml-simulated": "delete",
    }
    update = "pulumi up --yes --refresh --stack simulated"
    assert 'conflict with "kubectl-patch"' in cluster.shell(f"{update} || true")
    cluster.shell(f"PULUMI_K8S_ENABLE_PATCH_FORCE=true {update}")
    assert preview(cluster, "--refresh").status == 0


def proposed(config: dict[str, Any]) -> None:
    """Add four GPUs, move a claim to another volume and use an image from a forbidden registry."""
    config["gpu-platform:training"]["jobs"]["sweep"]["nodes"] = 3
    storage = config["gpu-platform:storage"]
    storage["volumes"]["shared-other"] = dict(storage["volumes"]["shared-checkpoints"])
    storage["claims"]["checkpoints"] |= {"volume": "shared-other", "name": "checkpoints-2"}
    image = f"docker.io/somebody/inference@sha256:{'0' * 64}"
    config["gpu-platform:images"]["workloads"]["inference"]["reference"] = image


def same_name(config: dict[str, Any]) -> None:
    proposed(config)
    del config["gpu-platform:storage"]["claims"]["checkpoints"]["name"]


def test_report_explains_that_a_retained_claim_blocks_its_replacement(cluster: Platform) -> None:
    configuration = cluster.stack_file.read_text()
    cluster.edit(same_name)
    found = preview(cluster)
    cluster.stack_file.write_text(configuration)
    assert found.status == 1, found.comment
    assert "the cluster rejects a second one with this name" in found.comment
    assert "spec is immutable after creation" in found.comment
    assert found.report["gpus"] == []


def test_pull_request_comment_contains_each_fact(cluster: Platform) -> None:
    cluster.edit(proposed)
    found = preview(cluster)
    assert found.status == 3, found.comment
    for fact in (
        "blocked by 1 violation",
        "- Claim `checkpoints` is replaced, because `metadata.name`, `spec.volumeName` cannot be",
        "Pods use the new claim `checkpoints-2`",
        # kwok's pods succeed immediately, before the state is refreshed.
        "is removed from the stack but stays in the cluster. It had already succeeded when",
        "| `research` | `simulated` | 24 | 28 | +4 |",
        "| queue research | `nvidia.com/gpu` | 28 | 32 | 4 |",
        "`image-registry-allowed`: Deployment",
        "+  volumeName: shared-other",
    ):
        assert fact in found.comment, found.comment
    assert preview(cluster) == found


def test_preview_changes_nothing_in_the_cluster(cluster: Platform) -> None:
    claims = cluster.kubectl("get", "persistentvolumeclaims", "-n", "ml-simulated")["items"]
    assert [claim["spec"]["volumeName"] for claim in claims] == ["shared-checkpoints"]


@pytest.fixture(scope="module")
def small_stack(cluster: Platform) -> interrupted.Stack:
    """A small stack on the platform's cluster."""
    return interrupted.new_stack(cluster)


def test_killed_update_is_completed_by_the_next_update(small_stack: interrupted.Stack) -> None:
    small_stack.update()
    small_stack.configure(3 * KILLS + 1)
    things = small_stack.update()
    commands = interrupted.commands(small_stack.platform, "environments.md", "pulumi cancel")
    chance = random.Random(SEED)  # noqa: S311  moments, not secrets
    locked = pending = 0
    for turn in range(3 * KILLS):
        if turn >= KILLS and pending:
            break
        small_stack.configure(turn + 1)
        # The first kill interrupts the start of the update; the others interrupt later parts.
        reached = int((turn % KILLS + chance.random()) / KILLS * things) if turn else 0
        kill_point = reached, chance.uniform(0, 0.2 if turn else 2)
        last = small_stack.kill_update(*kill_point)
        locks = small_stack.is_locked()
        if locks and not locked:
            rejected = small_stack.pulumi("up", "--yes", "--skip-preview")
            assert rejected.returncode != 0
            assert "pulumi cancel" in rejected.stderr
        pending_now = len(small_stack.deployment().get("pending_operations") or [])
        sys.stdout.write(f"seed {SEED}, killed at {kill_point}: {last}; pending: {pending_now}\n")
        for command in commands:
            done = small_stack.type(command)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        small_stack.settle()
        locked, pending = locked + locks, pending + pending_now
    assert locked
    assert pending
    settled = small_stack.pulumi(
        "up", "--yes", "--skip-preview", "--refresh", "--expect-no-changes"
    )
    assert settled.returncode == 0, settled.stdout


def test_the_documented_destroy_keeps_only_the_namespace(small_stack: interrupted.Stack) -> None:
    preview_commands, destroy = (
        interrupted.commands(small_stack.platform, "destroying.md", containing)
        for containing in ("--preview-only", "pulumi destroy --yes")
    )
    before = small_stack.live()
    for command in preview_commands:
        done = small_stack.type(command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert small_stack.live() == before != {}
    for command in destroy:
        done = small_stack.type(command)
        assert done.returncode == 0, done.stdout + done.stderr
    left = Counter([("Namespace.", "", f"ml-{interrupted.NAME}")])
    await_(lambda: small_stack.live() == left, f"only {left} is left of {small_stack.live()}")
