"""Snapshots with a plan applied, and the policy rules on their simulation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops.engine import Stack
from gitops.errors import GitopsError
from gitops.forecast import simulate
from gitops.forecast.answer import Answer, Victim, combine
from gitops.forecast.state import Queue, State, dump
from gitops.preview.changes import changes
from gitops.preview.events import Plan, plan
from gitops.preview.simulation import with_plan, with_simulation
from kube.kinds import kinds_that_support
from tests.gitops import plans
from tests.gitops.forecast.states import JOB, state
from tests.gitops.forecast.test_gantt import answer, gang
from tests.infra import jobs


def job(name: str = "urgent", **spec: Any) -> dict[str, Any]:
    made = yaml.safe_load(JOB.replace("name: urgent", f"name: {name}"))
    made["spec"] |= spec
    return dict(made)


def after_plan(
    *events: dict[str, Any], snapshot: State | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return the gangs' states by name after a plan, and the assumptions."""
    found, assumptions = with_plan(changes(plan(events).steps), snapshot or state())
    return {gang.name: gang.state for gang in found.gangs}, assumptions


INITIAL_STATES = {"a": "running", "b": "running", "large": "pending", "small": "pending"}


def test_created_runs_are_pending_and_deleted_runs_are_removed() -> None:
    gangs, _ = after_plan(plans.step("create", new=job()), plans.step("delete", old=job("b")))
    assert gangs == {name: INITIAL_STATES[name] for name in ("a", "large", "small")} | {
        "urgent": "pending"
    }


def test_a_replaced_run_starts_again() -> None:
    old, new = job("a"), job("other")
    gangs, _ = after_plan(plans.step("replace", old=old, new=new, keys=["metadata.name"]))
    assert gangs == {name: INITIAL_STATES[name] for name in ("b", "large", "small")} | {
        "other": "pending"
    }


def test_retained_run_continues() -> None:
    gangs, _ = after_plan(plans.step("delete", old=job("a"), retain=True))
    assert gangs == INITIAL_STATES


@pytest.mark.parametrize(("key", "continues"), [("metadata.namespace", True), ("provider", False)])
def test_moved_run_continues_only_in_the_same_cluster(key: str, continues: bool) -> None:
    new = job("a")
    new["metadata"]["namespace"] = "other"
    events = [plans.step("replace", old=job("a"), new=new, retain=True, keys=[key])]
    found, _ = with_plan(changes(plan(events).steps), state())
    gangs = {gang.key: gang.state for gang in found.gangs}
    assert gangs["other", "a"] == "pending"
    assert (("ml", "a") in gangs) is continues


def test_deleting_a_run_removes_its_steps() -> None:
    flow = {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": "JobFlow",
        "metadata": {"name": "run-0123abcd", "namespace": "ml"},
        "spec": {},
    }
    running = state()
    step, other = "run-0123abcd-0123abcd-train", "run-0123abcd-else"
    for number, name in enumerate((step, other)):
        running.gangs[number] = running.gangs[number].model_copy(update={"name": name})
    gangs, _ = after_plan(plans.step("delete", old=flow), snapshot=running)
    assert gangs == {other: "running", "large": "pending", "small": "pending"}
    gangs, _ = after_plan(plans.step("delete", old=flow, retain=True), snapshot=running)
    assert gangs[step] == "running"


def test_deleting_a_schedule_removes_its_active_run() -> None:
    job_template = {"spec": {"template": {"spec": {"containers": []}}}}
    schedule = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly-schedule", "namespace": "ml"},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": job_template},
    }
    running = state()
    step, other = "nightly-0123abcd-0123abcd-train", "other-nightly-0123abcd-0123abcd-train"
    for number, name in enumerate((step, other)):
        running.gangs[number] = running.gangs[number].model_copy(update={"name": name})
    gangs, _ = after_plan(plans.step("delete", old=schedule), snapshot=running)
    assert gangs == {other: "running", "large": "pending", "small": "pending"}
    changed = {**schedule, "spec": {"schedule": "0 4 * * *", "jobTemplate": job_template}}
    gangs, _ = after_plan(plans.step("update", schedule, changed), snapshot=running)
    assert gangs[step] == "running"


def test_terminated_run_is_removed() -> None:
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": "stop", "namespace": "ml"},
        "action": "TerminateJob",
        "target": {"kind": "Job", "name": "a"},
    }
    gangs, _ = after_plan(plans.step("create", new=command))
    assert "a" not in gangs


def indexed(name: str, *, suspend: bool) -> dict[str, Any]:
    spec = yaml.safe_load(JOB)["spec"]["tasks"][0]["template"]["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "annotations": {"scheduling.volcano.sh/queue-name": "vision"},
        },
        "spec": {
            "parallelism": 1,
            "suspend": suspend,
            "template": {"spec": spec | {"schedulerName": "volcano"}},
        },
    }


def test_runs_are_suspended_and_resumed() -> None:
    event = plans.step("update", indexed("a", suspend=False), indexed("a", suspend=True))
    gangs, _ = after_plan(event)
    assert gangs["a"] == "suspended"
    halted = state()
    halted.gangs[0] = halted.gangs[0].model_copy(update={"state": "suspended"})
    event = plans.step("update", indexed("a", suspend=True), indexed("a", suspend=False))
    gangs, _ = after_plan(event, snapshot=halted)
    assert gangs["a"] == "pending"


@pytest.mark.parametrize("kind", sorted(kinds_that_support("state: suspended")))
def test_runs_of_every_kind_are_resumed_as_whole_gangs(kind: str) -> None:
    """Change only the job; its gang is not in the snapshot and is defined by other objects."""
    running, suspended = (
        jobs.objects(jobs.job(kind, state=state, priority_class=None))
        for state in (None, "suspended")
    )
    empty = state().model_copy(update={"gangs": [], "queues": [Queue(name="research")]})

    def apply_changes(
        old: list[dict[str, Any]], new: list[dict[str, Any]], snapshot: State
    ) -> State:
        pairs = zip(old, new, strict=True)
        steps = [plans.same(b) if a == b else plans.step("update", a, b) for a, b in pairs]
        return with_plan(changes(plan(steps).steps), snapshot)[0]

    resumed = apply_changes(suspended, running, empty)
    (found,) = resumed.gangs
    assert (found.state, found.minimum) == ("pending", found.size)
    assert [each.state for each in apply_changes(running, suspended, resumed).gangs] == [
        "suspended"
    ]


def test_runs_can_use_queues_and_priorities_created_by_the_plan() -> None:
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "lab"},
        "spec": {"weight": 4},
    }
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "first"},
        "value": 9000,
        "globalDefault": True,
    }
    events = [plans.step("create", new=each) for each in (queue, priority)]
    run = plans.step("create", new=job(queue="lab", priorityClassName="first"))
    found, _ = with_plan(changes(plan([*events, run]).steps), state())
    assert {each.name: each.spec for each in found.queues}["lab"] == {"weight": 4}
    assert {each.name: each.value for each in found.priority_classes}["first"] == 9000
    assert [each.name for each in found.priority_classes if each.is_default] == ["first"]
    with pytest.raises(GitopsError, match="urgent is in queue lab, but the snapshot contains only"):
        after_plan(run)


def test_a_run_in_the_snapshot_is_not_added_again() -> None:
    gangs, assumptions = after_plan(plans.step("create", new=job("small")))
    assert gangs == INITIAL_STATES
    assert assumptions == ["ml/small is already in the snapshot"]


def test_a_redacted_snapshot_is_rejected() -> None:
    with pytest.raises(GitopsError, match="take a snapshot without --redact"):
        after_plan(snapshot=state().model_copy(update={"redacted": True}))


ALONE = answer(
    gang("urgent", "waits", None, None, added=True, reason="0/3 nodes are available"),
    gang("late", "starts later", 3600, 7200, added=True),
    gang("a", "starts later", 1800, 7200),
    victims=[
        Victim(namespace="ml", name="a", at_seconds=0, pods=2, gpu_hours=48),
        Victim(namespace="ml", name="a", at_seconds=9, pods=2, gpu_hours=1, without_change=True),
    ],
)
WAITING = combine([ALONE])


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a snapshot's file, and make its simulation return `WAITING`."""

    def fake_simulate(*_: object, **__: object) -> Answer:
        return WAITING

    monkeypatch.setattr(simulate, "simulate", fake_simulate)
    (tmp_path / "cluster.yaml").write_text(dump(state(), as_yaml=True))
    return tmp_path / "cluster.yaml"


def found(
    snapshot: Path | None, rules: dict[str, Any] | None = None
) -> tuple[Plan, Sequence[tuple[str, bool, str]]]:
    empty = plan([plans.summary(), plans.policy_summary()])
    configuration = None
    if rules is not None and snapshot is not None:
        configuration = snapshot.with_name("rules.json")
        configuration.write_text(json.dumps(rules))
    path = None if snapshot is None else str(snapshot)
    done, _ = with_simulation(empty, path, Stack("prod"), configuration)
    return done, [(each.rule, each.mandatory, each.message) for each in done.findings]


def test_rules_are_advisory_by_default(simulated: Path) -> None:
    _, messages = found(simulated)
    assert messages == [
        (
            "plan-fits",
            False,
            "ml/urgent does not start in the simulation (1h00m, in which 1 gang finishes). 0/3 "
            "nodes are available",
        ),
        (
            "plan-preempts-nothing-of",
            False,
            "ml/a in queue vision is preempted after 0m and loses at most 48.0 GPU-hours.",
        ),
        (
            "plan-waits-at-most",
            False,
            "ml/urgent does not start in the simulation (1h00m, in which 1 gang finishes), so its "
            "wait may exceed the limit of 24h00m.",
        ),
    ]


def test_rules_have_settings_for_each_environment(simulated: Path) -> None:
    _, messages = found(
        simulated,
        {
            "plan-fits": "disabled",
            "plan-preempts-nothing-of": {"queues": ["language"]},
            "plan-waits-at-most": {"enforcementLevel": "mandatory", "minutes": 45},
            "gpu-whole-nodes": {"gpusPerNode": 8},
        },
    )
    assert [(rule, mandatory) for rule, mandatory, _ in messages] == [
        ("plan-waits-at-most", True),
        ("plan-waits-at-most", True),
    ]
    assert messages[1][2] == "ml/late waits 1h00m, which exceeds the limit of 45m."


def test_losses_below_the_limit_are_accepted(simulated: Path) -> None:
    settings = {"plan-preempts-nothing-of": {"gpuHours": 48}}
    assert "plan-preempts-nothing-of" not in [rule for rule, *_ in found(simulated, settings)[1]]


def test_worst_of_several_simulations_decides(
    simulated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = answer(
        gang("urgent", "starts at once", 0, 60, added=True),
        gang("late", "starts later", 600, 1200, added=True),
        gang("a", "runs", 0, 7200),
    )
    varied = combine([better, ALONE, better])
    monkeypatch.setattr(simulate, "simulate", lambda *_, **__: varied)
    messages = [
        message for *_, message in found(simulated, {"plan-waits-at-most": {"minutes": 45}})[1]
    ]
    assert messages == [
        "ml/urgent does not start in 1 of 3 simulations (typically 1h00m, in which 1 gang "
        "finishes). 0/3 nodes are available",
        "ml/a in queue vision is preempted after 0m in 1 of 3 simulations and loses at most 48.0 "
        "GPU-hours.",
        "ml/urgent does not start in 1 of 3 simulations (typically 1h00m, in which 1 gang "
        "finishes), so its wait may exceed the limit of 45m.",
        "ml/late may wait up to 1h00m, which exceeds the limit of 45m.",
    ]


def test_a_mandatory_rule_is_violated_if_the_plan_cannot_be_simulated(simulated: Path) -> None:
    simulated.write_text("{}")
    done, messages = found(simulated, {"plan-fits": "mandatory"})
    assert [(rule, mandatory) for rule, mandatory, _ in messages] == [("plan-fits", True)]
    assert "The plan was not simulated" in messages[0][2]
    assert "is not a snapshot" in done.warnings[0]


def test_preview_without_simulation_lists_skipped_mandatory_rules(
    simulated: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "mandatory.json"
    rules.write_text('{"plan-fits": "mandatory"}')
    done, _ = with_simulation(plan([plans.summary()]), None, Stack("prod"), rules)
    assert done.warnings == (
        "Mandatory rules that require a simulation were not evaluated: `plan-fits`.",
    )
    assert found(None)[0].warnings == ()


def test_invalid_settings_are_rejected(simulated: Path) -> None:
    with pytest.raises(GitopsError, match=r"plan-waits-at-most\.minutes"):
        found(simulated, {"plan-waits-at-most": {"minutes": -1}})
