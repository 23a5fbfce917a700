"""Runs submitted by members, compared with those that the engine creates from the same settings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY
from tests.engine.conftest import MakeStack

JOB = {
    "queue": "research",
    "priority_class": "training",
    "nodes": 2,
    "gpus_per_node": 2,
    "memory": "16Gi",
    "cpu": 4,
    "env": {"ZONE": "a", "ALPHA": "b"},
    "volumes": {
        "scratch": {"path": "/scratch", "scratch": "1Gi"},
        "more": {"path": "/more", "scratch": "1Gi"},
    },
    "hyperparameters": {"model": "digits-net", "epochs": 3, "dataset": "digits"},
}


@pytest.mark.parametrize("kind", ["volcano", "indexed", "pytorch", "jobset"])
def test_submitted_run_equals_the_stacks_run_byte_for_byte(
    kind: str, engine: MakeStack, tmp_path: Path
) -> None:
    jobs = {"tiny": {"kind": kind, **JOB}}

    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:tenancy"]["groups"] = {"members": ["vision"]}
        config["gpu-platform:training"]["jobs"].update(jobs)

    stack = engine("simulated", add)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    rendered = [yaml.safe_load(path.read_text()) for path in stack.rendered.rglob("*.yaml")]
    named = {(each["kind"], each["metadata"]["name"]): each for each in rendered}
    (tmp_path / "platform.json").write_text(
        named["ConfigMap", DESCRIPTION]["data"][DESCRIPTION_KEY]
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(jobs, sort_keys=False))
    options = ["--namespace", "ml-simulated", "--platform", str(tmp_path / "platform.json")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gpu_platform", "run", str(tmp_path / "job.yaml")),
            *(*options, "--dry-run"),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    assert made
    for each in made:
        expected = named[each["kind"], each["metadata"]["name"]]
        assert yaml.safe_dump(each) == yaml.safe_dump(expected)
