"""The scripts of the GitHub workflows, from a merge over HTTP to an applied plan."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.toolchain import Toolchain
from tests.cluster.platform import copy_checkout
from tests.engine.git_server import git_server
from tests.engine.gitops.workflow_steps import Runner


def git(folder: Path, *arguments: str) -> str:
    # Git sends larger bodies in chunks, which the test server cannot read.
    settings = ("user.name=tester", "user.email=tester@example.com", "http.postBuffer=200000000")
    options = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(
        ["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """URL of an empty repository."""
    (tmp_path / "origin").mkdir()
    git(tmp_path / "origin", "init", "--quiet", "--bare", "--initial-branch=main", "platform.git")
    git(tmp_path / "origin" / "platform.git", "config", "http.receivepack", "true")
    with git_server(tmp_path / "origin") as url:
        yield f"{url}/platform.git"


def set_up(laptop: Runner, origin: str, rendered: Path) -> None:
    """Push a repository with the environment `lab`, whose stack exists in the backend."""
    work = copy_checkout(laptop.checkout)
    document = yaml.safe_load((work / "Pulumi.simulated.yaml").read_text())
    document["config"]["gpu-platform:cluster"] = {"render_to": str(rendered)}
    document["config"]["gpu-platform:inference"]["services"] = {}
    (work / "Pulumi.lab.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    shutil.copy(work / "policies/config/simulated.json", work / "policies/config/lab.json")
    created = laptop.bash("pulumi stack init lab --non-interactive")
    assert created.status == 0, created.text
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message=Add lab")
    git(work, "push", "--quiet", origin, "main")


def merge_a_change(laptop: Runner, origin: str, gpus: int = 31) -> str:
    """Push a smaller quota, and return the revision before it."""
    work = laptop.checkout
    before = git(work, "rev-parse", "HEAD")
    file = work / "Pulumi.lab.yaml"
    file.write_text(file.read_text().replace(f"gpus: {gpus + 1}", f"gpus: {gpus}"))
    git(work, "commit", "--quiet", "--all", "--message=Lower the quota")
    git(work, "push", "--quiet", origin, "main")
    return before


def check_merge_is_planned_and_applied(
    tmp_path: Path, tools: Toolchain, origin: str, backend: str, variables: dict[str, str]
) -> None:
    def runner(name: str) -> Runner:
        return Runner(tmp_path / name, tools, backend, variables)

    def fresh(name: str) -> Runner:
        made = runner(name)
        made.clone(origin)
        return made

    def expressions(task: str, base: str = "") -> dict[str, str]:
        known = {"inputs.stack": "lab", "inputs.task": task, "inputs.base": base}
        return {**known, "secrets.KUBECONFIG": "apiVersion: v1\nkind: Config\n"}

    laptop = runner("laptop")
    set_up(laptop, origin, tmp_path / "rendered")
    first = laptop.bash("pulumi up --yes --skip-preview --non-interactive --stack lab")
    assert first.status == 0, first.text
    base = merge_a_change(laptop, origin)

    changed = fresh("changed").job("update.yml", "changed", {"github.event.before": base})
    assert changed == {"stacks": '["lab"]'}

    previewed = fresh("previewed")
    assert previewed.job("stack.yml", "run", expressions("preview", base))["status"] == "2"
    comment = (previewed.folder / "GITHUB_STEP_SUMMARY").read_text()
    assert "`tenancy.quota.gpus`: 32 → 31" in comment

    planned = fresh("planned")
    planned.job("stack.yml", "run", expressions("plan", base))
    updated = fresh("updated")
    shutil.copytree(planned.checkout / ".plan", updated.checkout / ".plan")
    updated.job("stack.yml", "run", expressions("update"))

    settled = fresh("settled")
    assert settled.job("stack.yml", "run", expressions("preview", base))["status"] == "0"
    report = json.loads((settled.checkout / "preview" / "report.json").read_text())
    assert report["status"] == "unchanged"

    base = merge_a_change(laptop, origin, gpus=30)
    applied = fresh("applied")
    applied.job("stack.yml", "run", expressions("plan", base))
    applied.job("stack.yml", "run", expressions("update"))
    # Somebody runs the earlier update again. A checkout fetches all branches.
    git(updated.checkout, "fetch", "--quiet")
    with pytest.raises(AssertionError, match=r"a later commit \(\w+\) was already applied to lab"):
        updated.job("stack.yml", "run", expressions("update"))


def test_a_merge_is_planned_and_applied(tmp_path: Path, tools: Toolchain, origin: str) -> None:
    (tmp_path / "state").mkdir()
    backend = f"file://{tmp_path / 'state'}?metadata=skip"
    check_merge_is_planned_and_applied(tmp_path, tools, origin, backend, {})
