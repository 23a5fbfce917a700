"""The project's own stacks under the pack, as `make up` deploys them."""

import re
from typing import Any

import pytest

from tests.engine.conftest import MakeStack

# In the dev stack, devcluster pushes the device plugin's image to the registry with a tag.
ADVICE = {"dev": {"image-digest-pinned"}, "simulated": set[str]()}
REFERENCE = f"127.0.0.1:5000/workload@sha256:{'0' * 64}"


def pack(stack: str) -> tuple[str, ...]:
    config = f"policies/config/{stack}.json"
    return ("--policy-pack", "policies", "--policy-pack-config", config)


def with_existing_images(config: dict[str, Any]) -> None:
    workloads = {key: {"reference": REFERENCE} for key in ("training", "inference", "recorder")}
    config["gpu-platform:images"] = {"workloads": workloads}


@pytest.mark.parametrize("name", ["dev", "simulated"])
def test_the_stack_passes_every_rule(engine: MakeStack, name: str) -> None:
    stack = engine(name, with_existing_images)
    outcome = stack.preview(*pack(name))
    assert outcome.status == 0, outcome.text
    assert "[mandatory]" not in outcome.text
    assert "itself failed" not in outcome.text
    assert "can't run policy" not in outcome.text
    advice = set(re.findall(r"\[advisory\].*?\s([a-z-]+) ", outcome.text))
    assert advice <= ADVICE[name], outcome.text


def foreign_registry(config: dict[str, Any]) -> None:
    reference = f"registry.example.com/training@sha256:{'0' * 64}"
    config["gpu-platform:images"]["workloads"]["training"] = {"reference": reference}


def literal_secret(config: dict[str, Any]) -> None:
    config["gpu-platform:training"]["jobs"]["digits"]["env"] = {"HF_TOKEN": "abc"}


REMEDIES = {
    "image-registry-allowed": "write an image or a model from 127.0.0.1:5000",
    "no-literal-secrets": "write HF_TOKEN as valueFrom.secretKeyRef",
}


def test_no_resource_is_created_if_the_configuration_violates_rules(engine: MakeStack) -> None:
    def mistakes(config: dict[str, Any]) -> None:
        foreign_registry(config)
        literal_secret(config)

    stack = engine("simulated", mistakes)
    outcome = stack.preview(*pack("simulated"))
    assert outcome.status != 0
    assert 'Job "digits-' in outcome.text
    for rule, remedy in REMEDIES.items():
        assert rule in outcome.text
        assert remedy in outcome.text
    assert not list(stack.rendered.rglob("*.yaml"))
