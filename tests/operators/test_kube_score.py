"""kube-score on the objects of all stacks; docs/clouds.md explains every failed check."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from tests.engine.test_schemas import STACKS
from tests.infra.conftest import Provision, provision  # noqa: F401  a fixture
from tests.platforms import program

PACKAGE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
EXPLAINED = set(
    re.findall(
        r"`([a-z-]+)`",
        "".join(
            line.split("|")[1]
            for line in (CHECKOUT / "docs" / "clouds.md")
            .read_text()
            .partition("kube-score 1.20")[2]
            .partition("kube-linter")[0]
            .splitlines()
            if line.startswith("|")
        ),
    )
)


def integers(value: Any) -> Any:
    """Convert integral floats in a resource's inputs to integers, which Pulumi's protocol lacks."""
    if isinstance(value, dict):
        return {key: integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.fixture(scope="session")
def kube_score() -> Path:
    """The pinned program, built once."""
    return program(PACKAGE)


def failed(kube_score: Path, file: Path, objects: list[dict[str, Any]]) -> set[str]:
    """Return the checks that fail for any of the objects."""
    file.write_text(yaml.safe_dump_all(integers(objects)))
    done = subprocess.run(
        [kube_score, "score", "--output-format", "json", file],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        each["check"]["id"]
        for scored in json.loads(done.stdout)
        for each in scored["checks"]
        if not each["skipped"] and each["grade"] < 10
    }


@pytest.mark.timeout(900)
def test_every_failed_kube_score_check_is_explained_in_the_docs(
    provision: Provision,  # noqa: F811
    kube_score: Path,
    tmp_path: Path,
) -> None:
    found = set()
    for values, secrets in STACKS.values():
        plan = provision(values, tuple(secrets))
        objects = [
            plan.inputs(name)
            for name, made in plan.resources.items()
            if made.type.startswith("kubernetes:") and "kind" in plan.inputs(name)
        ]
        assert len(objects) > 5
        found |= failed(kube_score, tmp_path / "objects.yaml", objects)
    assert found == EXPLAINED
