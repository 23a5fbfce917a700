import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from gitops import prices
from gitops.hidden import plan_without_literals
from gitops.preview.build import build
from gitops.preview.markdown import render
from gitops.secrets import HIDDEN, Mask
from tests.gitops import plans

TOKEN = "ghp_" + "a1B2c3D4e5" * 4


def job(**container: Any) -> plans.Manifest:
    manifest = plans.volcano_job()
    manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0] |= container
    return manifest


def published(*steps: dict[str, Any]) -> str:
    """Return everything that is published about a plan: report.json and the comment."""
    events = [*steps, plans.policy_summary(), plans.summary()]
    report = build(plan_without_literals(events, Mask()), stack="prod", prices=prices.load())
    return report.model_dump_json() + render(report)


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "PLAIN_API_KEY", "value": "sk-live-0123456789abcdef"}]},
        {"args": ["--api-key=sk-live-0123456789abcdef", "--verbose"]},
        {"args": ["--api-key", "sk-live-0123456789abcdef"]},
    ],
)
def test_literal_secret_in_a_pod_is_not_published(container: dict[str, Any]) -> None:
    for step in (
        plans.step("create", new=job(**container)),
        plans.step("delete", job(**container)),
    ):
        text = published(step)
        assert "sk-live" not in text
        assert HIDDEN in text


def test_a_token_inside_an_annotation_or_a_file_is_not_published() -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": plans.metadata("files"),
        "data": {"app.ini": f"mode=fast\ntoken={TOKEN}\npassword=correct-horse\n"}
        | {"app.py": 'mode = "fast"\npassword: str = "battery-staple"\n'},
    }
    text = published(plans.step("create", new=config))
    assert TOKEN not in text
    assert "correct-horse" not in text
    assert "battery-staple" not in text
    assert "mode=fast" in text


def test_ordinary_values_stay_visible() -> None:
    env = [{"name": "NCCL_DEBUG", "value": "WARNING"}]
    assert "WARNING" in published(plans.step("create", new=job(env=env)))


def test_terminated_preview_leaves_no_temporary_directory(tmp_path: Path) -> None:
    programs, scratch = tmp_path / "bin", tmp_path / "scratch"
    programs.mkdir()
    scratch.mkdir()
    # kubectl confirms every right that the preview asks about.
    permits = "grep -o SelfSubjectAccessReview | sed s/.*/true/"
    for name, script in (("pulumi", "exec sleep 60"), ("kubectl", permits)):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [sys.executable, "-m", "gitops", "preview", "--stack", "simulated"],
        cwd=CHECKOUT,
        env=os.environ | variables,
        stderr=subprocess.DEVNULL,
    )
    # Python cannot remove a temporary directory if a signal arrives just after it was created, so
    # wait for the first file in the directory.
    while not any(scratch.glob("gpu-platform-*/output")):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert list(scratch.iterdir()) == []
