"""Most important facts for a reviewer: deletions, replacements, and lost data or work."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gitops.demand import Demand, demands, is_schedule, is_suspended, run_title
from gitops.preview import claims
from gitops.preview.changes import Change
from gitops.runs.states import steps
from infra.schedule import PROGRAM
from kube.kinds import RESOURCES
from kube.kinds.record import State
from kube.kinds.volcano import FLOW, TEMPLATE
from kube.names import BUS_GROUP, GATEWAY_GROUP, RUN_LABEL, SCHEDULING_GROUP
from kube.workloads.record import Role
from policies.pod_search import find_pods
from policies.resources import Resource
from policies.rules.sweeps import is_sweep
from policies.settings import RoleConfig
from policies.workloads import Pod

_ROLES = RoleConfig()
_IDLE_CANARY = "Before that, its route is changed to send all requests to the stable version."
_RUN_HASH = re.compile(r"-[0-9a-f]{8}$")
_MAX_NAMES = 10
_DATA, _QUEUES, _RUNS, _SERVICES, _OTHER = range(5)


@dataclass(frozen=True, order=True)
class Impact:
    """A sentence for the report. Lower ranks come first."""

    rank: int
    text: str


def impacts(changes: Iterable[Change]) -> list[Impact]:
    """Return the effects on data, queues, runs and services, most severe first."""
    all_changes = list(changes)
    idle, schedules = {*_idle_canaries(all_changes)}, {*_schedules(all_changes)}
    states = _states(all_changes)
    single = {
        impact
        for change in all_changes
        # An active run of a schedule has copies of the templates, so changes do not affect it.
        if _schedule(change.resource) not in schedules
        and (impact := _impact(change, idle, states.get(change.step.urn))) is not None
    }
    lost = {
        Impact(_DATA, f"`{change.title}` {_DELETED_LAST}")
        for change in all_changes
        if change.is_deleted_last
    }
    renamed = {Impact(_DATA, text) for text in claims.possible_renames(all_changes)}
    others = {*_renamed_runs(all_changes), *_adoption(all_changes)}
    return sorted(single | lost | renamed | others | {*_servers_without_models(all_changes)})


def _adoption(changes: Iterable[Change]) -> Iterator[Impact]:
    adopted = sorted(change.title for change in changes if change.adopts)
    if adopted:
        names = ", ".join(f"`{title}`" for title in adopted[:_MAX_NAMES])
        more = f" and {len(adopted) - _MAX_NAMES} more" if len(adopted) > _MAX_NAMES else ""
        yield Impact(
            _OTHER,
            f"Objects that already exist in the cluster are adopted: {names}{more}. The update "
            "changes them to the stack's values, or fails if another tool manages a field "
            "(docs/recovery.md). If they belong to someone else, choose other names.",
        )


def missing_objects(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a sentence for every object that a refresh finds to be deleted."""
    for change in changes:
        found = change.step.new
        if change.step.operation == "delete":
            yield f"`{change.title}` is missing from the cluster."
        elif found is not None and found.outputs.get("metadata", {}).get("deletionTimestamp"):
            yield (
                f"`{change.title}` was deleted, and disappears when its finalizers are removed: "
                "for a claim, when the last pod that mounts it is deleted."
            )


def earlier_runs(changes: Iterable[Change]) -> list[Demand]:
    """Return the demand of runs that are removed from the stack but may keep running."""
    removed = [c for c in changes if c.step.operation in ("delete", "replace") and c.is_retained]
    finished = _finished(removed)
    # Evaluate all objects together, because a PodGroup may define the queue of its pods.
    staying = [c.old for c in removed if c.old is not None and c.step.urn not in finished]
    return [demand for demand in demands(staying) if demand.role == "training"]


def without_finished_runs(changes: Iterable[Change]) -> list[Change]:
    """Return the changes without the finished runs that stay in the stack."""
    all_changes = list(changes)
    finished = _finished([c for c in all_changes if c.step.operation in ("same", "update")])
    return [change for change in all_changes if change.step.urn not in finished]


def changes_cluster(change: Change) -> bool:
    """Return whether the object is replaced because its provider is replaced."""
    return "provider" in change.step.replaced_for


def gpus_by_queue(demands: Iterable[Demand]) -> dict[str, Decimal]:
    """Map each queue to the number of GPUs that its pods request."""
    by_queue: dict[str, Decimal] = defaultdict(Decimal)
    for demand in demands:
        by_queue[demand.queue] += sum(demand.gpus.values(), Decimal(0)) * (demand.pods or 0)
    return {queue: gpus for queue, gpus in sorted(by_queue.items()) if gpus}


def _idle_canaries(changes: Collection[Change]) -> Iterator[tuple[str | None, str]]:
    """Yield the namespace and name of each canary that receives no requests from its route."""
    ingresses = {
        (change.resource.namespace, change.resource.name)
        for change in changes
        if change.new is not None and change.resource.is_kind("networking.k8s.io", "Ingress")
    }
    # The canary of an Ingress has a second Ingress, which is deleted before the canary.
    canaries = {(namespace, f"{name}-canary") for namespace, name in ingresses}
    yield from canaries - ingresses
    for change in changes:
        route = change.resource
        if change.new is not None and route.group == GATEWAY_GROUP:
            canary = f"{route.name}-canary"
            backends = (
                each
                for rule in route.root["spec"]["rules"].items()
                for each in rule["backendRefs"].items()
            )
            if canary not in {backend["name"].text for backend in backends}:
                yield route.namespace, canary


def _schedules(changes: Iterable[Change]) -> Iterator[tuple[str | None, str]]:
    """Yield the namespace and name of each schedule that stays in the stack."""
    for change in changes:
        if change.new is not None and is_schedule(change.new.resource):
            yield change.new.resource.namespace, change.new.resource.name


def _schedule(template: Resource) -> tuple[str | None, str] | None:
    """Return the namespace and name of the schedule that a JobTemplate may belong to."""
    if template.is_kind(TEMPLATE.group, TEMPLATE.kind):
        for pod in find_pods(template):
            job = (pod.metadata["labels"][RUN_LABEL].text or "").rpartition("-")[0]
            return template.namespace, f"{job}-{PROGRAM}"
    return None


def _impact(
    change: Change, idle: Collection[tuple[str | None, str]], state: State | None
) -> Impact | None:
    if change.step.operation == "update" and change.suspends:
        effect = _SCHEDULE_SUSPENDED if is_schedule(change.resource) else _RUN_SUSPENDED
        return Impact(_RUNS, f"{_display_kind(change.resource)} `{change.resource.name}` {effect}")
    if (text := claims.size_warning(change)) is not None:
        return Impact(_DATA, text)
    if _is_termination(change):
        return Impact(_RUNS, f"Training run `{change.resource.name}` {_RUN_STOPPED}")
    if change.step.operation not in ("delete", "replace") or change.old is None:
        return None
    resource = change.old.resource
    rank, sentences = _sentences(change, resource, state)
    if rank == _SERVICES and (resource.namespace, resource.name) in idle:
        sentences = [_IDLE_CANARY]
    if rank == _OTHER and change.is_retained:
        return None  # part of a run that stays in the cluster
    return Impact(rank, " ".join([_headline(change, resource), *sentences, *_protection(change)]))


def _is_termination(change: Change) -> bool:
    created, command = change.step.operation == "create", change.resource
    is_command = command.is_kind(BUS_GROUP, "Command")
    return created and is_command and command.root["action"].text == "TerminateJob"


def _servers_without_models(changes: list[Change]) -> Iterator[Impact]:
    """Yield a warning for each changed server whose run or sweep the plan starts or changes."""
    created = [c.resource for c in changes if c.step.operation == "create"]
    started = {resource.name for resource in created if _is_run(resource)}
    sweeps = {c.resource.name for c in changes if _is_changed_sweep(c)}
    for change in changes:
        pods = find_pods(change.resource)
        if change.step.operation == "same" or not any(p.role(_ROLES) == "serving" for p in pods):
            continue
        for run in sorted(started.intersection(_variables(pods, "RUN_NAME"))):
            yield Impact(
                _SERVICES,
                f"{change.resource.kind} `{change.resource.name}` will serve run `{run}`, which "
                "this change starts. New pods of the service have no model until the run saves "
                "one.",
            )
        for sweep in sorted(sweeps.intersection(_variables(pods, "SWEEP_NAME"))):
            yield Impact(
                _SERVICES,
                f"{change.resource.kind} `{change.resource.name}` serves the winner of sweep "
                f"`{sweep}`, which this change starts or changes. New pods of the service have no "
                "model until the sweep has finished.",
            )


def _is_changed_sweep(change: Change) -> bool:
    changed = change.step.operation in ("create", "update", "replace")
    return changed and is_sweep(change.resource)


def _variables(pods: list[Pod], name: str) -> Iterator[str]:
    for pod in pods:
        for container in pod.containers:
            for variable in container.node["env"].items():
                if variable["name"].text == name:
                    yield variable["value"].text or ""


def is_rejected(change: Change) -> bool:
    """Return whether the engine rejects the step because the resource is protected."""
    old, new = change.step.old, change.step.new
    if old is None or not old.protected:
        return False
    # The new options apply to a replacement, so one change can both replace a resource and remove
    # its protection.
    return change.step.operation == "delete" or (
        change.step.operation == "replace" and (new is None or new.protected)
    )


def _protection(change: Change) -> list[str]:
    if is_rejected(change):
        return ["It is protected: the update is rejected until the protection is removed."]
    if change.step.old is not None and change.step.old.protected:
        return ["It is protected now, and the same change removes the protection."]
    return []


def _headline(change: Change, resource: Resource) -> str:
    pod = next(iter(find_pods(resource)), None)
    title = resource.name if pod is None else run_title(resource.name, pod)
    name = f"{_display_kind(resource)} `{title}`"
    if change.step.operation == "delete":
        kept = "is removed from the stack but stays in the cluster"
        return f"{name} {kept if change.is_retained else 'is deleted'}."
    fields = ", ".join(f"`{field}`" for field in change.step.replaced_for)
    reason = f", because {fields} cannot be changed in place" if fields else ""
    return f"{name} is replaced{reason}."


def _display_kind(resource: Resource) -> str:
    names = {
        "PersistentVolumeClaim": "Claim",
        "PersistentVolume": "Volume",
        "Release": "Chart release",
    }
    if is_sweep(resource):
        return "Sweep"
    if _is_run(resource):
        return "Training run"
    if _has_role(resource, "interactive"):
        return "Notebook"
    return names.get(resource.kind, resource.kind)


def _sentences(change: Change, resource: Resource, state: State | None) -> tuple[int, list[str]]:
    if claims.is_claim(resource):
        return _DATA, [claims.describe_removal(change)]
    if resource.is_kind("", "PersistentVolume"):
        return _DATA, [claims.describe_volume_removal(change, resource)]
    if resource.is_kind("", "Namespace"):
        kept = "Its content is kept." if change.is_retained else _NAMESPACE_DELETED
        return _DATA, [kept]
    if is_sweep(resource):
        return _RUNS, [_SWEEP_REMOVED]
    if _is_run(resource) or _has_role(resource, "interactive"):
        return _RUNS, list(_run_effects(change, state))
    stays = change.is_retained and change.step.operation == "delete"
    if resource.is_kind(SCHEDULING_GROUP, "Queue"):
        return _QUEUES, [] if stays else [_QUEUE_DELETED]
    if resource.is_kind("scheduling.k8s.io", "PriorityClass") and change.new is None:
        return _QUEUES, [] if stays else [_PRIORITY_CLASS_DELETED]
    if resource.hidden_effects:
        return _QUEUES, [] if stays else [_RELEASE_DELETED]
    if _has_role(resource, "serving"):
        return _SERVICES, [] if stays else [_SERVICE_UNAVAILABLE]
    return _OTHER, []


_RUN_SUSPENDED = (
    "is suspended: its pods are terminated, and the work since the last checkpoint is lost. It "
    "keeps its name and continues when it is resumed."
)
_SCHEDULE_SUSPENDED = "is suspended: it does not start new runs. An active run continues."
_RUN_STOPPED = (
    "is stopped permanently: its pods are terminated, the work since the last checkpoint is lost, "
    "and it cannot be resumed."
)
_SWEEP_REMOVED = (
    "Its trials stay in the cluster, and running trials continue and hold their GPUs until they "
    "end. `python -m gpu_platform stop` stops them."
)
_DELETED_LAST = (
    "is deleted at the end of the update, because an earlier update replaced it and failed before "
    "deleting it. Run `pulumi up --refresh` afterwards to create it again."
)
_NAMESPACE_DELETED = "Everything in it is deleted, including claims and their data."
_QUEUE_DELETED = (
    "Jobs waiting in it lose their position. Volcano deletes a queue even while its jobs are "
    "running. A run that stays in the queue fails the next time it needs pods: at its start or "
    "after an eviction."
)
_PRIORITY_CLASS_DELETED = (
    "Kubernetes rejects new pods that use it. Runs that use it can continue, but fail the next "
    "time they need pods, for example after an eviction."
)
_SERVICE_UNAVAILABLE = (
    "Requests fail until its replacement is ready, or permanently if there is none."
)
_RELEASE_DELETED = (
    "Its custom resource definitions may be deleted as well, along with all their custom resources."
)


def _is_run(resource: Resource) -> bool:
    return _has_role(resource, "training")


def _has_role(resource: Resource, role: Role) -> bool:
    return any(pod.role(_ROLES) == role for pod in find_pods(resource))


def _renamed_runs(changes: Iterable[Change]) -> Iterator[Impact]:
    """Yield an effect for each new run with the settings (and thus the hash) of a removed run."""
    runs = [(change, _settings(change)) for change in changes if _is_run(change.resource)]
    removed = {key: change for change, key in runs if change.step.operation == "delete"}
    for change, key in runs:
        if change.step.operation == "create" and key is not None and key in removed:
            old = removed[key].resource.name
            yield Impact(
                _RUNS,
                f"Training run `{change.resource.name}` starts from the beginning, although it has "
                f"the settings of the removed run `{old}`. If its job was renamed, set "
                f"`run: {old}` to keep the removed run, and delete `run` when you next change the "
                "job.",
            )


def _settings(change: Change) -> tuple[str, str | None, str] | None:
    """Return the kind and namespace of a run, and the hash of its settings if it has one."""
    found = _RUN_HASH.search(change.resource.name or "")
    return found and (change.step.type, change.resource.namespace, found[0])


def _run_effects(change: Change, state: State | None) -> Iterator[str]:
    if state is not None and state.finished:
        yield f"It had already {state} when the stack's state was last refreshed."
    elif change.is_retained and change.old is not None and is_suspended(change.old.resource):
        yield "It is suspended and remains so: delete it with `kubectl` if it is no longer needed."
    elif change.is_retained:
        gpus = _gpus(change)
        held = f"{gpus:f} {'GPU' if gpus == 1 else 'GPUs'}"
        yield f"If it is still running, it continues and holds {held} until it ends."
        if _moves(change):
            yield (
                "The update deletes its service account, so the run fails the next time it needs "
                "pods: at its start or after an eviction."
            )
    else:
        lost = (
            "its kernels are terminated, and unsaved changes are lost"
            if _has_role(change.resource, "interactive")
            else "it is killed, and the work since its last checkpoint is lost"
        )
        yield f"If it is still running, {lost}."
    if change.is_retained and change.new is not None and _moves(change):
        place = f"`{change.new.resource.namespace}` namespace"
        place = "new cluster" if changes_cluster(change) else place
        yield f"A second run starts under the same name in the {place}."


def _moves(change: Change) -> bool:
    """Return whether the object is re-created in another namespace or cluster."""
    if change.old is None or change.new is None:
        return False
    moved = change.old.resource.namespace != change.new.resource.namespace
    return moved or changes_cluster(change)


def _states(changes: Collection[Change]) -> dict[str, State | None]:
    """Map URNs to the states of runs and steps, as of the last refresh of the stack's state.

    The JobTemplate of a step has the state of the step.
    """
    states: dict[str, State | None] = {}
    of_templates: dict[tuple[str | None, str], State | None] = {}
    for change in changes:
        status = change.step.old.outputs.get("status") if change.step.old else None
        old = change.resource if change.old is None else change.old.resource
        kind = next((item for item in RESOURCES if old.is_kind(item.group, item.kind)), None)
        if kind is not None and isinstance(status, dict):
            states[change.step.urn] = kind.state(status)
            of_templates |= _step_states(old, status) if kind is FLOW else {}
    return states | {
        change.step.urn: of_templates.get((change.resource.namespace, change.resource.name))
        for change in changes
        if change.resource.is_kind(TEMPLATE.group, TEMPLATE.kind)
    }


def _step_states(
    flow: Resource, status: Mapping[str, Any]
) -> dict[tuple[str | None, str], State | None]:
    """Map the namespaces and names of a JobFlow's templates to the states of its steps."""
    jobs = steps({"status": status})
    unstarted = FLOW.state(status)
    if State.FAILED in jobs.values() and all(job.finished for job in jobs.values()):
        # The remaining steps never start, because Volcano waits for the failed step to succeed.
        unstarted = State.FAILED
    names = [step["name"].text or "" for step in flow.root["spec"]["flows"].items()]
    return {(flow.namespace, name): jobs.get(f"{flow.name}-{name}", unstarted) for name in names}


def _finished(changes: Collection[Change]) -> set[str]:
    """Return the URNs of runs and steps that had finished when the state was last refreshed."""
    return {urn for urn, state in _states(changes).items() if state is not None and state.finished}


def _gpus(change: Change) -> Decimal:
    old = demands([change.old] if change.old is not None else [])
    counts = ((sum(item.gpus.values(), Decimal(0)), item.pods or Decimal(0)) for item in old)
    return sum((gpus * pods for gpus, pods in counts), Decimal(0))
