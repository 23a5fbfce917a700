"""The state of a stack in a real object store: workflows, locks and wrong credentials."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.paths import cache_root
from devcluster.toolchain import Toolchain, go
from tests.engine.conftest import tools
from tests.engine.test_gitops_steps import a_merge_is_planned_and_applied, origin
from tests.engine.workflow_steps import Runner
from tests.tiers import unavailable

__all__ = ["origin", "tools"]
MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.0.14"
ACCESS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "correct-horse",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def versitygw() -> Path:
    """The pinned server, built once in two minutes of processor time."""
    folder = cache_root() / "tools" / MODULE.rpartition("/")[2].replace("@", "-")
    if not (folder / "versitygw").exists():
        if shutil.which("go") is None:
            unavailable("versitygw is built from its Go module, and Go is not installed")
        environment = {**go.environment(), "GOBIN": str(folder), "GOFLAGS": "-trimpath"}
        done = subprocess.run(
            ["go", "install", MODULE], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            unavailable(f"versitygw cannot be built: {done.stderr}")
    return folder / "versitygw"


@pytest.fixture
def bucket(versitygw: Path, tmp_path: Path) -> Iterator[Path]:
    """The directory of a served bucket; its name is that of the bucket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = tmp_path / "buckets" / f"state-{port}"
    found.mkdir(parents=True)
    keys = {"ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": ACCESS["AWS_SECRET_ACCESS_KEY"]}
    with (tmp_path / "versitygw.log").open("w") as log:
        server = subprocess.Popen(
            [versitygw, "--port", f"127.0.0.1:{port}", "posix", str(found.parent)],
            env={**os.environ, **keys},
            stdout=log,
            stderr=log,
        )
        try:
            wait_until_it_listens(port)
            yield found
        finally:
            server.terminate()
            server.wait(timeout=30)


def wait_until_it_listens(port: int) -> None:
    for _ in range(100):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens at port {port}")


def backend(bucket: Path) -> str:
    """The value of PULUMI_BACKEND_URL, with the options for a store other than Amazon's."""
    port = bucket.name.rpartition("-")[2]
    options = f"endpoint=http://127.0.0.1:{port}&use_path_style=true&region=us-east-1"
    return f"s3://{bucket.name}?{options}"


def test_the_workflows_keep_their_state_in_a_bucket(
    tmp_path: Path, tools: Toolchain, origin: str, bucket: Path
) -> None:
    a_merge_is_planned_and_applied(tmp_path, tools, origin, backend(bucket), ACCESS)
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


def test_the_lock_of_another_machine_holds_until_it_is_cancelled(
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


def test_a_wrong_key_is_named_without_its_value(runner: Runner) -> None:
    refused = runner.bash(UPDATE, AWS_SECRET_ACCESS_KEY="battery-staple")
    assert refused.status != 0
    assert "SignatureDoesNotMatch" in refused.text
    assert "battery-staple" not in refused.text
