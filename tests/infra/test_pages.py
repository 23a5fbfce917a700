"""The examples in docs/jobs.md, pipelines.md, queues.md and notebooks.md are valid."""

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
from infra.settings.problems import full_key
from infra.training_run import TrainingJobArgs, manifests
from infra.volcano import scheduler_configuration
from kube.kinds import KINDS
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.examples import TRAINING_IMAGE, good, problems
from tests.infra.jobs import (
    NODES,
    PACK,
    mandatory_violations,
    objects,
    problems_of,
    surrounding_objects,
)

DOCS = CHECKOUT / "docs"
TRAINING, VOLCANO = full_key("training"), full_key("volcano")


def examples(page: str) -> list[dict[str, Any]]:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


JOBS: dict[str, dict[str, Any]] = {
    name: job
    for page in ("jobs.md", "pipelines.md")
    for example in examples(page)
    for name, job in example.get(TRAINING, {"jobs": {}})["jobs"].items()
}
NOTEBOOK_EXAMPLE, EMBEDDED_EXAMPLE = examples("notebooks.md")


def test_every_kind_has_an_example() -> None:
    assert {job.get("kind", "volcano") for job in JOBS.values()} == set(KINDS)


@pytest.mark.parametrize("name", JOBS)
def test_example_is_valid_and_passes_the_policy_pack(name: str) -> None:
    assert problems_of(JOBS[name]) == []
    assert mandatory_violations(JOBS[name]) == []
    assert objects(JOBS[name])


def test_jobs_page_names_the_rules_that_require_exemptions() -> None:
    page = (DOCS / "jobs.md").read_text()
    named = {rule for rule in PACK if f'"{rule}"' in page or f"`{rule}`" in page}
    assert named >= {"training-gang-whole", "training-pod-group-whole", "no-host-namespaces"}


def stack_with(example: dict[str, Any]) -> dict[str, Any]:
    """Return a complete stack with the example's queues, classes, scheduler and jobs."""
    values = {full_key(section): parts for section, parts in good().items()}
    for section, parts in example.items():
        for part, changes in parts.items():
            values[section][part] = values[section].get(part, {}) | changes
    return {section.removeprefix(full_key()): parts for section, parts in values.items()}


@pytest.mark.parametrize(
    "example", examples("queues.md"), ids=lambda example: ",".join(example[VOLCANO])
)
def test_queues_example_is_valid_and_yields_a_scheduler_configuration(
    example: dict[str, Any],
) -> None:
    values = stack_with(example)
    assert problems(values) == []
    volcano = validate(values).volcano
    text = scheduler_configuration(volcano.scheduler, hierarchical=volcano.hierarchical)
    assert {"actions", "tiers"} == yaml.safe_load(text).keys()


def test_invalid_combinations_on_the_queues_page_are_rejected() -> None:
    for scheduler in ({"preempt": "gangs", "enqueue": True}, {"reclaim": "gangs", "enqueue": True}):
        assert len(problems(stack_with({VOLCANO: {"scheduler": scheduler}}))) == 1


def merged(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged_mappings = {
        key: merged(base[key], override[key])
        for key in base.keys() & override.keys()
        if isinstance(base[key], dict)
    }
    return {**base, **override, **merged_mappings}


def without_prefix(config: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("gpu-platform:"): part for key, part in config.items()}


DEV = merged(yaml.safe_load((CHECKOUT / "Pulumi.dev.yaml").read_text())["config"], EMBEDDED_EXAMPLE)


def notebook_example() -> dict[str, Any]:
    """Return the base configuration with the example's settings."""
    return merged(good(), without_prefix(NOTEBOOK_EXAMPLE))


def test_notebook_example_is_valid_and_passes_the_policy_pack() -> None:
    values = notebook_example()
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


def test_embedded_notebook_example_is_valid_and_its_images_are_provided(tmp_path: Path) -> None:
    assert "anna" in validate(without_prefix(DEV)).training.jobs
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text(yaml.safe_dump({"config": DEV}))
    demands = stack_requirements(file, "127.0.0.1:5000")
    assert (NOTEBOOK in demands.bases, demands.tools) == (True, (KUBECTL,))


@pytest.mark.parametrize("page", [NOTEBOOK_EXAMPLE, EMBEDDED_EXAMPLE], ids=["example", "embedded"])
def test_notebook_image_sources_match_the_files_copied_by_the_dockerfile(
    page: dict[str, Any],
) -> None:
    build = page["gpu-platform:images"]["workloads"]["notebook"]["build"]
    sources = set(build["sources"])
    text = (CHECKOUT / "notebooks/Dockerfile").read_text()
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
        for word in line.split()
    }
    assert sources == copied - {"inference/__init__.py"}
