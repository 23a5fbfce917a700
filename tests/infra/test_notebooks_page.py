"""The example on docs/notebooks.md is valid, and its objects pass the pack."""

import json
import re
from typing import Any

import yaml

from devcluster.paths import CHECKOUT
from infra.settings import validate
from infra.training_run import TrainingJobArgs, manifests
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.examples import TRAINING_IMAGE, good
from tests.infra.jobs import NODES, PACK, surroundings

PAGE = (CHECKOUT / "docs/notebooks.md").read_text()


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict)
    }
    return {**below, **above, **both}


def example() -> dict[str, Any]:
    """The stack of the tests with the example's settings."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    sections = {
        key.removeprefix("gpu-platform:"): part for key, part in yaml.safe_load(block).items()
    }
    return merged(good(), sections)


def test_the_example_is_valid_and_passes_the_pack() -> None:
    values = example()
    settings = validate(values)
    objects = surroundings(values)
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
    documents = [each for made in objects for each in read("", json.dumps(made).encode())]
    found = evaluate(documents, configure(PACK, RULES))
    assert [finding.message for finding in found if finding.mandatory] == []


def test_the_sources_of_the_image_are_what_its_dockerfile_copies() -> None:
    sources = set(example()["images"]["workloads"]["notebook"]["build"]["sources"])
    text = (CHECKOUT / "notebooks/Dockerfile").read_text()
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
        for word in line.split()
    }
    assert sources == copied - {"inference/__init__.py"}
