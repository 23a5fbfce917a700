"""Simulation of a plan: the scheduler's decisions after the plan is applied to a snapshot."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gitops.demand import is_schedule, is_suspended
from gitops.engine import Stack
from gitops.errors import GitopsError
from gitops.forecast.answer import Answer, GangAnswer, duration
from gitops.forecast.state import Gang, PriorityClass, Queue, State, load
from gitops.forecast.whatif import check, not_simulated, planned_gangs
from gitops.preview.changes import Change, changes
from gitops.preview.events import Plan, PolicyFinding
from gitops.preview.impact import changes_cluster
from gitops.preview.validation import kubectl_options
from gitops.stack_file import document
from infra.schedule import PROGRAM
from kube.kinds.volcano import FLOW, job_prefix
from kube.names import BUS_GROUP, SCHEDULING_GROUP
from policies.catalogue import with_custom_rules
from policies.configuration import parse
from policies.resources import Resource
from policies.rule import Rule, RuleConfig
from policies.rules import simulated
from policies.values import UNKNOWN

_MINUTE: Final = 60


def with_simulation(
    plan: Plan,
    snapshot: str | None,
    stack: Stack,
    configuration: Path | None,
    repeat: int | None = None,
) -> tuple[Plan, Answer | None]:
    """Simulate a plan. Return the plan with the violations found, and the simulation's answer.

    `snapshot` is a file name; an empty string requests a new snapshot of the stack's cluster.
    `configuration` is the configuration file of the policy pack, and `repeat` the number of
    simulations.

    If `snapshot` is None or the plan is incomplete, nothing is simulated, and a warning lists the
    mandatory rules that were not evaluated. If the simulation fails, a warning states why, and
    mandatory rules count as violated. In both cases, the answer is None.

    Raises:
        GitopsError: If the configuration is invalid.
    """
    rules = _rules(configuration)
    names = ", ".join(f"`{rule.name}`" for rule, mandatory, _ in rules if mandatory)
    if snapshot is None or not plan.complete:
        skipped = f"Mandatory rules that require a simulation were not evaluated: {names}."
        return (replace(plan, warnings=(*plan.warnings, skipped)) if names else plan), None
    try:
        state = load(Path(snapshot)) if snapshot else _new_snapshot(stack)
        answer = _simulate(changes(plan.steps), state, repeat)
    except GitopsError as error:
        text = f"The plan was not simulated: {error}"
        unknown = [_finding(rule, True, text) for rule, mandatory, _ in rules if mandatory]
        findings = (*unknown, *plan.findings)
        return replace(plan, warnings=(*plan.warnings, text), findings=findings), None
    found = [
        _finding(rule, mandatory, message)
        for rule, mandatory, config in rules
        for message in _messages(answer, rule, config)
    ]
    all_findings = sorted([*found, *plan.findings], key=lambda finding: not finding.mandatory)
    return replace(plan, findings=tuple(all_findings)), answer


def _rules(configuration: Path | None) -> list[tuple[Rule[Any], bool, RuleConfig]]:
    try:
        text = configuration.read_text("utf-8") if configuration is not None else "{}"
        return parse(text, with_custom_rules()).simulated
    except (OSError, ValueError) as error:
        raise GitopsError(f"the policy pack configuration is invalid: {error}") from None


def _finding(rule: Rule[Any], mandatory: bool, message: str) -> PolicyFinding:
    return PolicyFinding(rule.name, mandatory, message, severity=rule.severity.value)


def _new_snapshot(stack: Stack) -> State:
    from gitops.forecast.capture import capture
    from gitops.runs.snapshot import Cluster

    sys.stderr.write("taking a snapshot of the cluster…\n")
    cluster = Cluster(["kubectl", *kubectl_options(document(stack.file))])
    return capture(cluster, datetime.now(UTC).replace(microsecond=0))


def _simulate(changes: Sequence[Change], state: State, repeat: int | None) -> Answer:
    from gitops.forecast.simulate import simulate

    changed, assumptions = with_plan(changes, state)
    sys.stderr.write("simulating the plan…\n")
    answer = simulate(changed, datetime.now(UTC), base=state, repeat=repeat)
    return answer.model_copy(update={"assumptions": [*assumptions, *answer.assumptions]})


def with_plan(changes: Sequence[Change], state: State) -> tuple[State, list[str]]:
    """Return the snapshot with the plan applied, and the assumptions made.

    Raises:
        GitopsError: If the snapshot is redacted, or lacks the queue or PriorityClass of a new gang.
    """
    if state.redacted:
        raise GitopsError(
            "the snapshot is redacted, so its queues and runs cannot be compared with the plan: "
            "take a snapshot without --redact"
        )
    state = state.model_copy(update=_queues_and_classes(changes, state))
    started = [c.new for c in changes if c.new and c.step.operation in ("create", "replace")]
    new = planned_gangs(started, state.taken)
    # Unchanged PodGroups and TrainingRuntimes are included, because they define the minimum and the
    # pods of changed gangs.
    views = [c.new for c in changes if c.new is not None]
    planned = {gang.key: gang for gang in planned_gangs(views, state.taken).gangs}
    assumptions = [not_simulated(title) for title in new.omitted]
    removed, suspended = _removed_gangs(changes, state), set(_suspended_gangs(changes))
    resumed = {key: planned[key] for key in _resumed_gangs(changes) if key in planned}
    gangs: list[Gang] = []
    for gang in state.gangs:
        if gang.key in removed:
            continue
        if gang.key in suspended:
            gangs.append(gang.model_copy(update={"state": "suspended"}))
        else:
            gangs.append(resumed.get(gang.key, gang))
    present = {gang.key for gang in gangs}
    # A snapshot contains suspended Volcano Jobs, but no suspended jobs of other kinds.
    unlisted = [gang for gang in resumed.values() if gang.key not in present | removed]
    for gang in [*(planned.get(gang.key, gang) for gang in new.gangs), *unlisted]:
        if gang.key in present:
            assumptions.append(f"{gang.namespace}/{gang.name} is already in the snapshot")
            continue
        check(gang, state, "the plan does not match the snapshot")
        gangs.append(gang)
    return state.model_copy(update={"gangs": gangs}), assumptions


def _queues_and_classes(changes: Iterable[Change], state: State) -> dict[str, Any]:
    """Return the queues and PriorityClasses after the plan is applied. Ignore deletions."""
    queues = {queue.name: queue for queue in state.queues}
    classes = {each.name: each for each in state.priority_classes}
    for change in changes:
        if change.new is None:
            continue
        resource = change.new.resource
        if resource.is_kind(SCHEDULING_GROUP, "Queue"):
            spec = {k: v.value for k, v in resource.root["spec"].fields() if v.value is not UNKNOWN}
            queues[resource.name] = Queue(name=resource.name, spec=spec)
        elif resource.is_kind("scheduling.k8s.io", "PriorityClass"):
            value = resource.root["value"].value
            classes[resource.name] = PriorityClass(
                name=resource.name,
                value=int(value) if isinstance(value, int | float) else 0,
                preemption_policy=resource.root["preemptionPolicy"].text or "PreemptLowerPriority",
                is_default=resource.root["globalDefault"].value is True,
            )
    return {"queues": [*queues.values()], "priority_classes": [*classes.values()]}


def _removed_gangs(changes: Iterable[Change], state: State) -> set[tuple[str, str]]:
    """Return the gangs that the plan deletes, replaces or terminates."""
    removed = set()
    for change in changes:
        if change.old is not None and (
            change.step.operation in ("delete", "replace")
            and (not change.is_retained or changes_cluster(change))
        ):
            removed |= {gang.key for gang in planned_gangs([change.old], datetime.now(UTC)).gangs}
            if change.old.resource.is_kind(FLOW.group, FLOW.kind):
                namespace, run = _key(change.old.resource)
                steps = (g for g in state.gangs if g.name.startswith(job_prefix(run)))
                removed |= {gang.key for gang in steps if gang.namespace == namespace}
            elif is_schedule(change.old.resource):
                # The runs that a CronJob has started are deleted with it.
                namespace, name = _key(change.old.resource)
                key = re.escape(name.removesuffix(f"-{PROGRAM}"))
                step = re.compile(rf"{key}-([0-9a-f]{{8}})-\1-")
                steps = (gang for gang in state.gangs if step.match(gang.name))
                removed |= {gang.key for gang in steps if gang.namespace == namespace}
        if change.new is not None and _terminates(change.new.resource):
            command = change.new.resource
            removed.add((command.namespace or "", command.root["target"]["name"].text or ""))
    return removed


def _terminates(resource: Resource) -> bool:
    is_command = resource.is_kind(BUS_GROUP, "Command")
    return is_command and resource.root["action"].text == "TerminateJob"


def _suspended_gangs(changes: Iterable[Change]) -> Iterator[tuple[str, str]]:
    for change in changes:
        if change.step.operation == "update" and change.new and is_suspended(change.new.resource):
            yield _key(change.new.resource)


def _resumed_gangs(changes: Iterable[Change]) -> Iterator[tuple[str, str]]:
    for change in changes:
        if change.step.operation == "update" and change.resumes:
            yield _key(change.resource)


def _key(resource: Resource) -> tuple[str, str]:
    return resource.namespace or "default", resource.name


def _messages(answer: Answer, rule: Rule[Any], config: RuleConfig) -> Iterator[str]:
    """Yield the violations of a rule, based on the worst outcome of all simulations."""
    new = [gang for gang in answer.gangs if gang.added]
    if rule is simulated.FITS:
        for gang in new:
            if waiting := gang.verdicts.get("waits", 0):
                yield f"{gang.title} does not start in {_horizon(answer, waiting)}. {gang.reason}"
    elif isinstance(config, simulated.WaitsConfig):
        limit = config.minutes * _MINUTE
        for gang in new:
            if wait := _wait(answer, gang, limit):
                yield f"{gang.title} {wait} the limit of {duration(limit)}."
    elif isinstance(config, simulated.PreemptsConfig):
        queues = {gang.title: gang.queue for gang in answer.gangs}
        for victim in answer.victims:
            queue, lost = queues[victim.title], victim.gpu_hours
            is_watched = not config.queues or queue in config.queues
            if (
                is_watched
                and not victim.without_change
                and (lost is None or lost > config.gpu_hours)
            ):
                hours = "an unknown number of" if lost is None else f"at most {lost:.1f}"
                count = _frequency(answer, victim.simulations)
                yield (
                    f"{victim.title} in queue {queue} is preempted after "
                    f"{duration(victim.at_seconds)}{count} and loses {hours} GPU-hours."
                )


def _wait(answer: Answer, gang: GangAnswer, limit: float) -> str:
    """Describe how the wait of a gang exceeds the limit; return "" if it does not."""
    if waiting := gang.verdicts.get("waits", 0):
        return f"does not start in {_horizon(answer, waiting)}, so its wait may exceed"
    start = gang.start_range
    if start is None or start.most <= limit:
        return ""
    waits = "waits" if start.least == start.most else "may wait up to"
    return f"{waits} {duration(start.most)}, which exceeds"


def _frequency(answer: Answer, simulations: int) -> str:
    if simulations == answer.simulations:
        return ""
    return f" in {simulations} of {answer.simulations} simulations"


def _horizon(answer: Answer, simulations: int) -> str:
    """Describe the simulations in which a gang does not start, and the time that they cover."""
    gangs = "1 gang finishes" if answer.ends == 1 else f"{answer.ends} gangs finish"
    covered = f"{duration(answer.horizon_seconds)}, in which {gangs}"
    if answer.simulations == 1:
        return f"the simulation ({covered})"
    return f"{simulations} of {answer.simulations} simulations (typically {covered})"
