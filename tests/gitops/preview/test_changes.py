from typing import Any

import pytest

from gitops import prices
from gitops.preview.build import build
from gitops.preview.events import SIGNATURE, UNKNOWN_TEXT
from gitops.preview.markdown import render
from gitops.preview.report import Report
from tests.gitops import plans


def report(*steps: dict[str, Any], result: str = "succeeded") -> Report:
    return build(plans.plan(*steps, result=result), stack="prod", prices=prices.load())


def flags(*, protect: tuple[bool, bool] = (False, False), retain: Any = (False, False)) -> Any:
    event = plans.same(plans.claim())
    for index, state in enumerate(("old", "new")):
        found = event["resourcePreEvent"]["metadata"][state]
        found |= {"protect": protect[index], "retainOnDelete": retain[index]}
    return event


def outputs(now: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's event for a stack that registers its outputs."""
    stack = "pulumi:pulumi:Stack"
    metadata = {
        "op": "same",
        "urn": f"urn:pulumi:prod::gpu-platform::{stack}::gpu-platform-prod",
        "type": stack,
        "old": {"inputs": {}, "outputs": now},
        "new": {"inputs": {}, "outputs": after},
    }
    return {"resOutputsEvent": {"metadata": metadata}}


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (flags(protect=(True, False)), "is no longer protected (`protect`)"),
        (flags(protect=(False, True)), "updates that delete it will be rejected"),
        (flags(retain=(True, False)), "will be deleted when it is removed from the stack"),
        (flags(retain=(False, True)), "will be kept in the cluster when it is removed"),
    ],
)
def test_changed_resource_option_counts_as_a_change(event: dict[str, Any], sentence: str) -> None:
    found = report(event)
    assert found.status == "changes"
    assert found.resources == []
    (option,) = found.options
    assert sentence in option
    comment = render(found)
    assert "only options or outputs change" in comment
    assert "### Options\n\n- `PersistentVolumeClaim checkpoints in ml`" in comment


def test_changed_outputs_count_as_a_change() -> None:
    now = {"images": {"training": "a"}, "namespace": "ml", "queues": ["one"]}
    after = {"images": {"training": "a", "new": "b"}, "namespace": "ml", "queues": ["two"]}
    found = report(plans.same(plans.claim()), outputs(now, after))
    assert found.status == "changes"
    assert found.outputs == ['`images.new`: none → `"b"`', '`queues`: `["one"]` → `["two"]`']
    assert '### Outputs\n\n- `images.new`: none → `"b"`' in render(found)


def test_unknown_values_in_outputs_are_described() -> None:
    after = {"url": UNKNOWN_TEXT, "startedRuns": ["digits-0a1b2c3d", UNKNOWN_TEXT]}
    found = report(outputs({"startedRuns": []}, after))
    assert found.outputs == [
        '`startedRuns`: `[]` → `["digits-0a1b2c3d", "(known after the update)"]`',
        "`url`: none → (known after the update)",
    ]


def test_equal_outputs_do_not_count_as_a_change() -> None:
    secret = {"password": plans.SECRET, "count": 3.0, "mark": {SIGNATURE: "x", "urn": "y"}}
    assert report(outputs(secret, dict(secret))).status == "unchanged"


def test_outputs_of_a_failed_preview_are_not_compared() -> None:
    found = report(
        outputs({"namespace": "ml"}, {}), plans.diagnostic("error", "x"), result="failed"
    )
    assert found.outputs == []


def test_changed_provider_counts_as_a_change() -> None:
    event = plans.step("update", plans.claim(), plans.claim())
    metadata = event["resourcePreEvent"]["metadata"]
    metadata["type"] = "pulumi:providers:kubernetes"
    metadata["urn"] = "urn:pulumi:prod::gpu-platform::pulumi:providers:kubernetes::cluster"
    metadata["old"]["inputs"] = {"context": "blue"}
    metadata["new"]["inputs"] = {"context": "green"}
    found = report(event)
    assert found.status == "changes"
    (difference,) = found.differences
    assert difference.lines[-2:] == ["-context: blue", "+context: green"]
