"""The state of a stack in a real object store: workflows, locks and wrong credentials."""

import json
import sys
from pathlib import Path

import pytest

from devcluster.toolchain import Toolchain
from tests.engine.conftest import tools
from tests.engine.gitops.test_steps import check_merge_is_planned_and_applied, origin
from tests.engine.gitops.workflow_steps import Runner
from tests.operators.object_store import bucket, versitygw
from tests.stores import ACCESS

__all__ = ["bucket", "origin", "tools", "versitygw"]


def backend(bucket: Path) -> str:
    """The value of PULUMI_BACKEND_URL, with the options for a store other than Amazon's."""
    port = bucket.name.rpartition("-")[2]
    options = f"endpoint=http://127.0.0.1:{port}&use_path_style=true&region=us-east-1"
    return f"s3://{bucket.name}?{options}"


def test_workflows_store_their_state_in_a_bucket(
    tmp_path: Path, tools: Toolchain, origin: str, bucket: Path
) -> None:
    check_merge_is_planned_and_applied(tmp_path, tools, origin, backend(bucket), ACCESS)
    assert (bucket / ".pulumi" / "stacks" / "gpu-platform" / "lab.json").stat().st_size > 0
    assert list((bucket / ".pulumi").rglob("locks/**/*.json")) == []


@pytest.fixture
def runner(tmp_path: Path, tools: Toolchain, bucket: Path) -> Runner:
    """A machine with a small project, whose stack exists in the bucket."""
    made = Runner(tmp_path / "runner", tools, backend(bucket), dict(ACCESS))
    made.checkout.mkdir()
    project = {"name": "small", "runtime": {"name": "python", "options": {"virtualenv": ".venv"}}}
    (made.checkout / "Pulumi.yaml").write_text(json.dumps(project))
    (made.checkout / "__main__.py").touch()
    (made.checkout / ".venv").symlink_to(Path(sys.executable).parent.parent)
    created = made.bash("pulumi stack init lab --non-interactive")
    assert created.status == 0, created.text
    return made


UPDATE = "pulumi up --yes --skip-preview --non-interactive --stack lab"


def test_lock_of_another_machine_persists_until_it_is_canceled(
    runner: Runner, bucket: Path
) -> None:
    lock = bucket / ".pulumi" / "locks" / "organization" / "small" / "lab" / "other.json"
    lock.parent.mkdir(parents=True)
    owner = {"pid": 1, "username": "ci", "hostname": "other", "timestamp": "2026-01-01T00:00:00Z"}
    lock.write_text(json.dumps(owner))
    refused = runner.bash(UPDATE)
    assert refused.status != 0
    assert "the stack is currently locked by 1 lock(s)" in refused.text
    assert "created by ci@other" in refused.text
    assert runner.bash("pulumi cancel --yes --non-interactive --stack lab").status == 0
    done = runner.bash(UPDATE)
    assert done.status == 0, done.text


def test_error_for_a_wrong_key_does_not_contain_its_value(runner: Runner) -> None:
    refused = runner.bash(UPDATE, AWS_SECRET_ACCESS_KEY="battery-staple")
    assert refused.status != 0
    assert "SignatureDoesNotMatch" in refused.text
    assert "battery-staple" not in refused.text
