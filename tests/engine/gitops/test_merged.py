"""Updates after a merge: options take effect, and every checkout previews the same stack."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.platform import copy_checkout
from tests.engine.conftest import MakeStack, Stack
from tests.engine.gitops.test_preview import Previewed, gitops

CLAIM = "PersistentVolumeClaim checkpoints"


def protected(config: dict[str, Any]) -> None:
    config["gpu-platform:storage"]["claims"]["checkpoints"]["protect"] = True


@pytest.fixture
def applied(engine: MakeStack) -> Stack:
    stack = engine("simulated", protected)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    return stack


def unprotected(config: dict[str, Any]) -> None:
    config["gpu-platform:storage"]["claims"]["checkpoints"]["protect"] = False


def unused(config: dict[str, Any]) -> None:
    """Remove the claim from the stack, together with everything that mounts it."""
    config["gpu-platform:storage"]["claims"] = {}
    config["gpu-platform:training"]["jobs"] = {}
    config["gpu-platform:inference"]["services"] = {}


def test_claim_is_removable_once_the_removal_of_its_protection_is_merged(
    applied: Stack, tmp_path: Path
) -> None:
    applied.edit(unprotected)
    previewed = gitops(applied, tmp_path / "options")
    assert previewed.status == 2, previewed.comment
    assert "only options or outputs change" in previewed.comment
    (option,) = previewed.report["options"]
    assert CLAIM in option
    assert "is no longer protected (`protect`)" in option
    assert applied.up().status == 0
    assert gitops(applied, tmp_path / "applied").status == 0
    applied.edit(unused)
    removed = gitops(applied, tmp_path / "removed")
    assert removed.status == 2, removed.comment
    assert applied.up().status == 0


def test_preview_from_another_checkout_of_the_same_commit_shows_no_change(
    applied: Stack, tmp_path: Path
) -> None:
    """CI jobs and laptops have their checkouts in different directories."""
    other = copy_checkout(tmp_path / "other")
    shutil.copy(applied._file, other / "Pulumi.simulated.yaml")
    command = [sys.executable, "-m", "gitops", "preview", "--stack", "simulated"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        cwd=other,
        env=applied._environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = Previewed(done.returncode, done.stderr, tmp_path / "out")
    assert found.status == 0, found.comment
    state = applied._command("stack", "export", "--stack", "simulated").text
    assert os.fspath(Path(__file__).parents[3]) not in state


def test_protected_claim_is_deleted_by_neither_destroy_nor_an_edit(
    applied: Stack, tmp_path: Path
) -> None:
    destroyed = applied._pulumi("destroy", "--yes", "--skip-preview")
    assert destroyed.status != 0
    assert "protected" in destroyed.text
    assert "kubernetes:core/v1:PersistentVolumeClaim" in applied.resources()
    applied.edit(unused)
    removed = gitops(applied, tmp_path)
    assert removed.status == 3, removed.comment
    assert (
        "It is protected: the update is rejected until the protection is removed."
        in removed.comment
    )
    rest = applied._pulumi("destroy", "--yes", "--skip-preview", "--exclude-protected")
    assert rest.status == 0, rest.text
    left = applied.resources()
    assert "kubernetes:core/v1:PersistentVolumeClaim" in left
    assert not any("batch.volcano.sh" in kind for kind in left)
