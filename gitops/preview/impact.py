"""The most important facts for a reviewer: what is deleted or replaced, and what is lost."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from gitops.preview.changes import Change
from gitops.preview.demand import demands, is_suspended
from kube.kinds import RESOURCES
from kube.kinds.record import State
from policies.finding import find_pods
from policies.resources import Resource
from policies.settings import RoleConfig

_ROLES = RoleConfig()
_DATA, _QUEUES, _RUNS, _SERVICES, _OTHER = range(5)


@dataclass(frozen=True, order=True)
class Impact:
    """A text for the report; the lowest rank comes first."""

    rank: int
    text: str


def impacts(found: Iterable[Change]) -> list[Impact]:
    """Return texts about every deletion, replacement and suspension, the most severe first."""
    return sorted({impact for change in found if (impact := _impact(change)) is not None})


def held_by_earlier_runs(found: Iterable[Change]) -> dict[str, Decimal]:
    """Return the GPUs by queue of runs that leave the stack and may continue in the cluster."""
    # All at once, since a PodGroup may state the queue of its pods.
    staying = [
        change.old
        for change in found
        if change.old is not None
        and change.step.operation == "delete"
        and change.is_retained
        and not _has_ended(change)
    ]
    held: dict[str, Decimal] = defaultdict(Decimal)
    for demand in demands(staying):
        if demand.role == "training":
            held[demand.queue] += sum(demand.gpus.values(), Decimal(0)) * (demand.pods or 0)
    return {queue: gpus for queue, gpus in sorted(held.items()) if gpus}


def _impact(change: Change) -> Impact | None:
    if _is_halted(change):
        return Impact(_RUNS, f"{_word(change.resource)} `{change.resource.name}` {_HALTED}")
    if change.step.operation not in ("delete", "replace") or change.old is None:
        return None
    resource = change.old.resource
    rank, sentences = _sentences(change, resource)
    if rank == _OTHER and change.is_retained:
        return None  # it belongs to a run that stays
    return Impact(rank, " ".join([_head(change, resource), *sentences, *_protection(change)]))


def _is_halted(change: Change) -> bool:
    if change.step.operation != "update" or change.old is None or change.new is None:
        return False
    return is_suspended(change.new.resource) and not is_suspended(change.old.resource)


def is_refused(change: Change) -> bool:
    """Return whether the engine refuses the step because the resource is protected."""
    old, new = change.step.old, change.step.new
    if old is None or not old.protected:
        return False
    # The new options decide about a replacement, so one edit can unprotect and replace.
    return change.step.operation == "delete" or (
        change.step.operation == "replace" and (new is None or new.protected)
    )


def _protection(change: Change) -> list[str]:
    if is_refused(change):
        return ["It is protected: the update is refused until the protection is removed."]
    if change.step.old is not None and change.step.old.protected:
        return ["It is protected now, and the same change removes the protection."]
    return []


def _head(change: Change, resource: Resource) -> str:
    name = f"{_word(resource)} `{resource.name}`"
    if change.step.operation == "delete":
        verb = "leaves the stack and stays in the cluster" if change.is_retained else "is deleted"
        return f"{name} {verb}."
    fields = ", ".join(f"`{field}`" for field in change.step.replaced_for)
    reason = f", because {fields} cannot be changed in place" if fields else ""
    return f"{name} is replaced{reason}."


def _word(resource: Resource) -> str:
    words = {
        "PersistentVolumeClaim": "Claim",
        "PersistentVolume": "Volume",
        "Release": "Chart release",
    }
    if _is_run(resource):
        return "Training run"
    return words.get(resource.kind, resource.kind)


def _sentences(change: Change, resource: Resource) -> tuple[int, list[str]]:
    if resource.is_kind("", "PersistentVolumeClaim"):
        return _DATA, [_claim(change)]
    if resource.is_kind("", "PersistentVolume"):
        return _DATA, [_volume(change, resource)]
    if resource.is_kind("", "Namespace"):
        kept = "Its content stays." if change.is_retained else _NAMESPACE
        return _DATA, [kept]
    if resource.is_kind("scheduling.volcano.sh", "Queue"):
        return _QUEUES, [_QUEUE]
    if _is_run(resource):
        return _RUNS, list(_run(change))
    if resource.unseen:
        return _QUEUES, [_RELEASE]
    if any(pod.role(_ROLES) == "serving" for pod in find_pods(resource)):
        return _SERVICES, ["Requests fail until its replacement is ready, or permanently."]
    return _OTHER, []


_HALTED = (
    "is suspended: its pods end, and the work since the last checkpoint is lost. It keeps its name "
    "and continues when it is resumed."
)
_NAMESPACE = "Everything in it is deleted, including claims and their data."
_QUEUE = "Jobs that wait in it lose their position. Volcano deletes it even while its pods run."
_RELEASE = (
    "Its custom resource definitions may be deleted too, and with them every object of those kinds."
)


def _claim(change: Change) -> str:
    if change.is_retained and change.step.operation == "delete":
        return "Its data stays, and the stack no longer manages the claim."
    if change.is_retained and _has_new_name(change):
        return (
            f"Pods get the new claim `{change.resource.name}`, which is empty unless its volume "
            "holds data. The current claim and its data stay in the cluster: copy what is needed."
        )
    if change.is_retained:
        return (
            "The current claim is kept (`retain`), so the cluster refuses a second one with this "
            "name: write another `name` as well, and copy the data."
        )
    return (
        "Its data is lost unless the reclaim policy of its volume is `Retain`, and pods that mount "
        "it must end first."
    )


def _has_new_name(change: Change) -> bool:
    names = [view.resource.name for view in (change.old, change.new) if view is not None]
    return len(set(names)) > 1


def _volume(change: Change, resource: Resource) -> str:
    if change.is_retained:
        return "The volume and its data stay."
    if resource.root["spec"]["persistentVolumeReclaimPolicy"].text == "Delete":
        return "Its reclaim policy is `Delete`: the data is deleted."
    return "Its reclaim policy keeps the data."


def _is_run(resource: Resource) -> bool:
    return any(pod.role(_ROLES) == "training" for pod in find_pods(resource))


def _run(change: Change) -> Iterator[str]:
    if _has_ended(change):
        yield f"It had {_state(change)} when the state was last refreshed."
        return
    if change.step.operation == "delete" and change.is_retained:
        yield f"If it still runs, it continues and holds {_gpus(change):f} GPUs until it ends."
        return
    yield "If it still runs, it is killed, and the work since its last checkpoint is lost."


def _state(change: Change) -> State | None:
    """Return the state that the stack's state file records, None if it states none."""
    status = change.step.old.outputs.get("status") if change.step.old else None
    old = change.resource if change.old is None else change.old.resource
    kind = next((item for item in RESOURCES if old.is_kind(item.group, item.kind)), None)
    return kind.state(status) if kind is not None and isinstance(status, dict) else None


def _has_ended(change: Change) -> bool:
    state = _state(change)
    return state is not None and state.over


def _gpus(change: Change) -> Decimal:
    found = demands([change.old] if change.old is not None else [])
    each = ((sum(item.gpus.values(), Decimal(0)), item.pods or Decimal(0)) for item in found)
    return sum((gpus * pods for gpus, pods in each), Decimal(0))
