"""Rules for sweep templates, with the templates that the stack builds."""

import json
from dataclasses import replace
from typing import Any

import pytest

from infra import volcano
from infra.sweep import template
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.sweeps import stack_settings, sweep


def mandatory_violations(
    configuration: dict[str, Any] | None = None, *other_objects: dict[str, Any], **changes: Any
) -> dict[str, str]:
    """Return the mandatory violations of a sweep in a stack with other objects, by rule."""
    settings = stack_settings(**changes)
    objects = [
        template(sweep(settings)),
        *other_objects,
        *(volcano.queue(key, queue) for key, queue in settings.volcano.queues.items()),
        *(
            volcano.priority_class(key, priority_class)
            for key, priority_class in settings.volcano.priority_classes.items()
        ),
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    config = {
        "gpu-toleration": "disabled",
        "namespace-default-deny": {"existingNamespaces": ["ml"]},
        "namespace-gpu-quota": {"existingNamespaces": ["ml"]},
        **(configuration or {}),
    }
    documents = list(read("sweep", text.encode()))
    findings = evaluate(documents, configure(config, RULES), whole_stack=True)
    return {each.rule: each.message for each in findings if each.mandatory}


def bounded(limit: float, **budget: float) -> bool:
    return "sweep-bounded" not in mandatory_violations(
        {"sweep-bounded": {"maxMoney": limit}}, budget={"gpu_hours": 10, **budget}
    )


def test_sweep_template_complies_with_every_mandatory_rule() -> None:
    assert mandatory_violations() == {}


def test_trials_that_together_exceed_their_queue_are_rejected() -> None:
    violations = mandatory_violations(parallel=5)
    assert "40 nvidia.com/gpu" in violations["training-queue-declared"]


def test_gpu_budget_counts_the_parallel_trials() -> None:
    assert "gpu-budget" in mandatory_violations({"gpu-budget": {"maxGpus": 15}}, parallel=2)
    assert "gpu-budget" not in mandatory_violations({"gpu-budget": {"maxGpus": 16}}, parallel=2)


@pytest.mark.parametrize(
    "limit", [{"maxTrials": 7}, {"maxParallel": 1}, {"maxGpuHours": 9.5}], ids=str
)
def test_sweep_beyond_a_configured_limit_is_rejected(limit: dict[str, Any]) -> None:
    assert "sweep-bounded" in mandatory_violations({"sweep-bounded": limit})


def test_maximum_money_requires_a_money_budget() -> None:
    assert bounded(100, money=100)
    assert bounded(1234567, money=1234567)
    assert not bounded(1234567, money=1234567.5)
    assert not bounded(99.5, money=100)
    assert not bounded(100)


def test_sweep_without_a_priority_class_is_rejected() -> None:
    assert "sweep-preemptible" in mandatory_violations(job={"priority_class": None})


@pytest.mark.parametrize("key", ["digits", "cifar"])
def test_only_trials_of_the_same_sweep_may_have_its_priority(key: str) -> None:
    settings = sweep(stack_settings())
    run = replace(settings, args=replace(settings.args, key=key)).manifest(
        {"learning_rate": 0.01, "batch_size": 16, "optimizer": "adamw"}
    )
    assert ("sweep-preemptible" in mandatory_violations(None, run)) is (key != "digits")
