"""The examples in docs/notebooks.md are valid and complete."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.images.catalog import KUBECTL, NOTEBOOK
from devcluster.operators import stack_requirements
from devcluster.paths import CHECKOUT
from infra.settings import validate
from infra.training_run import TrainingJobArgs, manifests
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.examples import TRAINING_IMAGE, good
from tests.infra.jobs import NODES, PACK, surrounding_objects

PAGE = (CHECKOUT / "docs/notebooks.md").read_text()


def merged(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged_mappings = {
        key: merged(base[key], override[key])
        for key in base.keys() & override.keys()
        if isinstance(base[key], dict)
    }
    return {**base, **override, **merged_mappings}


def without_prefix(config: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("gpu-platform:"): part for key, part in config.items()}


EXAMPLE, EMBEDDED = (
    yaml.safe_load(block)
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
)
DEV = merged(yaml.safe_load((CHECKOUT / "Pulumi.dev.yaml").read_text())["config"], EMBEDDED)


def example() -> dict[str, Any]:
    """Return the base configuration with the example's settings."""
    return merged(good(), without_prefix(EXAMPLE))


def test_example_is_valid_and_passes_the_policy_pack() -> None:
    values = example()
    settings = validate(values)
    objects = surrounding_objects(values)
    for key, job in settings.training.jobs.items():
        args = TrainingJobArgs(
            key=key,
            job=job,
            namespace="ml",
            image=TRAINING_IMAGE,
            image_identity=TRAINING_IMAGE,
            gpu_nodes=NODES,
            claims={claim: claim for claim in settings.storage.claims},
        )
        objects += manifests(args, f"{key}-0123abcd", TRAINING_IMAGE)
    documents = [each for manifest in objects for each in read("", json.dumps(manifest).encode())]
    found = evaluate(documents, configure(PACK, RULES))
    assert [finding.message for finding in found if finding.mandatory] == []


def test_embedded_example_is_valid_and_its_images_are_provided(tmp_path: Path) -> None:
    assert "anna" in validate(without_prefix(DEV)).training.jobs
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text(yaml.safe_dump({"config": DEV}))
    demands = stack_requirements(file, "127.0.0.1:5000")
    assert (NOTEBOOK in demands.bases, demands.tools) == (True, (KUBECTL,))


@pytest.mark.parametrize("page", [EXAMPLE, EMBEDDED], ids=["example", "embedded"])
def test_image_sources_match_the_files_copied_by_the_dockerfile(page: dict[str, Any]) -> None:
    build = page["gpu-platform:images"]["workloads"]["notebook"]["build"]
    sources = set(build["sources"])
    text = (CHECKOUT / "notebooks/Dockerfile").read_text()
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
        for word in line.split()
    }
    assert sources == copied - {"inference/__init__.py"}
