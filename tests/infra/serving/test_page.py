"""Examples on the pages about serving are valid settings that pass the policy pack."""

import json
import re
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from infra.inference_service import build, build_canary, routes
from infra.serving.description import InferenceServiceArgs
from infra.serving.rollback import rollback_objects
from infra.serving.traffic import stable_backends
from infra.settings import validate
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.examples import INFERENCE_IMAGE, good, problems
from tests.infra.jobs import NODES, surrounding_objects

PAGES = ("inference-rollout", "inference-runtimes", "model-registry")
BLOCKS = [
    section
    for page in PAGES
    for block in re.findall(
        r"^```yaml\n(.*?)^```", (CHECKOUT / "docs" / f"{page}.md").read_text(), re.M | re.S
    )
    if "gpu-platform:inference" in (section := yaml.safe_load(block))
]
# Exemptions that the pages describe.
PACK = {
    "no-hidden-token": {"systemWorkloads": ["ml/Deployment/digits-rollback"]},
    "gpu-limit-present": {"systemWorkloads": ["ml/Deployment/iris"]},
    "systemWorkloads": {"workloads": ["*/PersistentVolume/model-cache"]},
}


def configuration(block: dict[str, Any]) -> dict[str, Any]:
    values = good()
    values["images"]["workloads"]["recorder"] = dict(values["images"]["workloads"]["inference"])
    storage = block.get("gpu-platform:storage", {})
    for key in storage:
        values["storage"][key] = values["storage"].get(key, {}) | storage[key]
    return values | {"inference": block["gpu-platform:inference"]}


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_on_the_pages_are_valid_settings(block: dict[str, Any]) -> None:
    assert problems(configuration(block)) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_on_the_pages_pass_the_policy_pack(block: dict[str, Any]) -> None:
    values = configuration(block)
    objects = surrounding_objects(values)
    for key, service in validate(values).inference.services.items():
        args = InferenceServiceArgs(
            key=key,
            service=service,
            run="digits-0123abcd" if service.job else service.run,
            namespace="ml",
            image=INFERENCE_IMAGE,
            canary_image=INFERENCE_IMAGE,
            rollback_image=INFERENCE_IMAGE,
            gpu_nodes=NODES,
            claims={name: name for name in values["storage"]["claims"]},
        )
        rollback = rollback_objects(args, stable_backends(args))
        objects += [*build(args), *build_canary(args), *rollback, *routes(args)]
    documents = [document for each in objects for document in read("", json.dumps(each))]
    found = evaluate(documents, configure(PACK, RULES))
    assert [f"{each.rule}: {each.message}" for each in found if each.mandatory] == []
