import json
from pathlib import Path

import pytest

from gitops.errors import GitopsError
from gitops.preview import events
from gitops.preview.values import Mask
from tests.gitops import plans


def test_steps_within_a_replacement_are_told_once() -> None:
    claim, other = plans.claim(), plans.claim(volume="other")
    found = plans.plan(
        plans.step("delete-replaced", claim),
        plans.step("replace", claim, other, keys=["spec.volumeName"]),
        plans.step("create-replacement", claim, other),
    )
    (step,) = found.steps
    assert step.operation == "replace"
    assert step.replaced_for == ("spec.volumeName",)


def test_a_plan_does_not_depend_on_the_order_of_events() -> None:
    log = [
        plans.same(plans.claim()),
        plans.step("create", new=plans.volcano_job()),
        plans.policy("no-host-path", "b"),
        plans.policy("no-host-path", "a"),
        plans.policy("image-tag-fixed", "c", level="advisory"),
        plans.said("warning", "w"),
    ]
    expected = plans.plan(*log)
    for _ in range(len(log)):
        log = [*log[1:], log[0]]
        assert plans.plan(*log) == plans.plan(*reversed(log)) == expected
    assert [f.message for f in expected.findings] == ["a", "b", "c"]


def test_only_a_summary_says_that_it_succeeded() -> None:
    assert plans.plan().succeeded
    assert not plans.plan(result="failed").succeeded
    assert not events.plan([]).succeeded


def test_secrets_are_hidden_in_everything_that_is_said() -> None:
    job = plans.volcano_job(name="hunter2-job")
    job["spec"]["token"] = "hunter2"
    log = [
        plans.step("create", new=job),
        plans.policy("no-literal-secrets", "found hunter2"),
        plans.said("error", "hunter2 is wrong"),
    ]
    found = events.plan(log, Mask(["hunter2"]))
    assert "hunter2" not in repr(found)
    assert repr(found).count("[secret]") >= 5


def test_debug_messages_are_not_told() -> None:
    found = plans.plan(plans.said("debug", "x"), plans.said("info", "y"))
    assert found.errors == found.warnings == ()


def test_a_broken_log_is_a_plain_error(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_text('{"sequence": 1}\n{')
    with pytest.raises(GitopsError, match="cannot be read"):
        events.read(log)
    with pytest.raises(GitopsError, match="use the version in requirements"):
        events.plan([{"resourcePreEvent": {"metadata": {"op": 1}}}])


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_text(json.dumps(plans.same(plans.claim())) + "\n")
    assert len(events.plan(events.read(log)).steps) == 1
