"""Rules about the templates of sweeps, with the templates that the stack builds."""

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
from tests.infra.sweeps import described, sweep


def found(
    configuration: dict[str, Any] | None = None, *others: dict[str, Any], **changes: Any
) -> dict[str, str]:
    """The mandatory violations of a sweep next to its queues, classes and others, by rule."""
    settings = described(**changes)
    objects = [
        template(sweep(settings)),
        *others,
        *(volcano.queue(key, queue) for key, queue in settings.volcano.queues.items()),
        *(
            volcano.priority_class(key, made)
            for key, made in settings.volcano.priority_classes.items()
        ),
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    stated = {
        "gpu-toleration": "disabled",
        "namespace-default-deny": {"existingNamespaces": ["ml"]},
        "namespace-gpu-quota": {"existingNamespaces": ["ml"]},
        **(configuration or {}),
    }
    documents = list(read("sweep", text.encode()))
    findings = evaluate(documents, configure(stated, RULES), whole_stack=True)
    return {each.rule: each.message for each in findings if each.mandatory}


def bounded(limit: float, **budget: float) -> bool:
    return "sweep-bounded" not in found(
        {"sweep-bounded": {"maxMoney": limit}}, budget={"gpu_hours": 10, **budget}
    )


def test_the_template_of_a_sweep_fulfils_every_mandatory_rule() -> None:
    assert found() == {}


def test_trials_that_exceed_their_queue_together_are_refused() -> None:
    refused = found(parallel=5)
    assert "40 of nvidia.com/gpu" in refused["training-queue-declared"]


def test_the_budget_of_a_stack_counts_the_parallel_trials() -> None:
    assert "gpu-budget" in found({"gpu-budget": {"maxGpus": 15}}, parallel=2)
    assert "gpu-budget" not in found({"gpu-budget": {"maxGpus": 16}}, parallel=2)


@pytest.mark.parametrize(
    "limit", [{"maxTrials": 7}, {"maxParallel": 1}, {"maxGpuHours": 9.5}], ids=str
)
def test_a_sweep_beyond_a_limit_is_refused(limit: dict[str, Any]) -> None:
    assert "sweep-bounded" in found({"sweep-bounded": limit})


def test_a_limit_on_money_requires_a_budget_of_money() -> None:
    assert bounded(100, money=100)
    assert not bounded(99.5, money=100)
    assert not bounded(100)


def test_a_sweep_without_a_priority_class_is_refused() -> None:
    assert "sweep-preemptible" in found(job={"priority_class": None})


@pytest.mark.parametrize("key", ["digits", "cifar"])
def test_only_a_trial_of_the_sweep_itself_may_have_its_priority(key: str) -> None:
    searched = sweep(described())
    run = replace(searched, args=replace(searched.args, key=key)).manifest(
        {"learning_rate": 0.01, "batch_size": 16, "optimizer": "adamw"}
    )
    assert ("sweep-preemptible" in found(None, run)) is (key != "digits")
