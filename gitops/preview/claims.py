"""Effects of a change on PersistentVolumeClaims, volumes and their data."""

from collections.abc import Iterable, Iterator

from gitops.preview.changes import Change
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.values import Node

_DATA_LOSS = (
    "Its data is lost unless the reclaim policy of its volume is `Retain`. Pods that mount the "
    "claim must terminate first."
)

_OTHER_VOLUME = (
    "To use a new claim, declare its storage as another volume in `storage.volumes`, and set that "
    "as the `volume` of the claim."
)


def is_claim(resource: Resource) -> bool:
    """Return whether a resource is a PersistentVolumeClaim."""
    return resource.is_kind("", "PersistentVolumeClaim")


def describe_removal(change: Change) -> str:
    """Describe what happens to the data of a claim that is deleted or replaced."""
    if change.is_retained and change.step.operation == "delete":
        return "Its data is kept, and the stack no longer manages the claim."
    if _has_new_name(change):
        resource = change.resource
        if (volume := _shared_volume(change, change)) is not None:
            return (
                f"The new claim is never bound, because its volume `{volume}` stays bound to the "
                f"current claim, so the update fails. {_OTHER_VOLUME}"
            )
        outcome = (
            "The current claim and its data stay in the cluster: copy the data if needed."
            if change.is_retained
            else f"The current claim is deleted. {_DATA_LOSS}"
        )
        return (
            f"Pods use the new claim `{resource.name}` in `{resource.namespace}`, which is empty "
            f"unless its volume contains data. {outcome}"
        )
    if change.is_retained:
        return (
            "The current claim is kept (`retain`), so the cluster rejects a second one with this "
            "name: change `name` as well, and copy the data."
        )
    return _DATA_LOSS


def _has_new_name(change: Change) -> bool:
    """Return whether the claim gets a new name or namespace."""
    views = (change.old, change.new)
    names = {(v.resource.namespace, v.resource.name) for v in views if v is not None}
    return len(names) > 1


def _shared_volume(old: Change, new: Change) -> str | None:
    """Return the volume of a new claim if it is bound to an old one, otherwise None."""
    if old.step.old is None or old.old is None or new.new is None:
        return None
    status = old.step.old.outputs.get("status")
    is_bound = isinstance(status, dict) and status.get("phase") == "Bound"
    volumes = {view.resource.root["spec"]["volumeName"].text for view in (old.old, new.new)}
    return volumes.pop() if is_bound and len(volumes) == 1 else None


def describe_volume_removal(change: Change, resource: Resource) -> str:
    """Describe what happens to the data of a volume that is deleted or replaced."""
    if change.is_retained:
        return "The volume and its data are kept."
    if resource.root["spec"]["persistentVolumeReclaimPolicy"].text == "Delete":
        return "Its reclaim policy is `Delete`: the data is deleted."
    return "Its reclaim policy keeps the data."


def size_warning(change: Change) -> str | None:
    """Return a warning if Kubernetes rejects a claim's new storage request, otherwise None."""
    if change.step.operation != "update" or change.old is None or change.new is None:
        return None
    if not is_claim(change.resource):
        return None
    now, after = storage(change.old.resource), storage(change.new.resource)
    old, new = quantity_or_none(now.value), quantity_or_none(after.value)
    if old is None or new is None or old == new:
        return None
    if old < new:
        if change.new.resource.root["spec"]["storageClassName"].value != "":
            return None
        return (
            f"Claim `{change.resource.name}` grows from {now.text} to {after.text}, which "
            "Kubernetes rejects, because the claim has no storage class: keep its `size`, which "
            "does not limit the use of a declared volume."
        )
    return (
        f"Claim `{change.resource.name}` shrinks from {now.text} to {after.text}, which Kubernetes "
        "rejects. Create a claim under another key, and copy the data."
    )


def storage(claim: Resource) -> Node:
    """Return the requested size of a claim."""
    return claim.root["spec"]["resources"]["requests"]["storage"]


def possible_renames(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a warning for each new claim that may be a renamed one.

    A new claim may be a renamed one if the same update removes other claims.
    """
    claims = [change for change in changes if is_claim(change.resource)]
    deleted = [change for change in claims if change.step.operation == "delete"]
    removed = [change.resource.name for change in deleted]
    names = ", ".join(f"claim `{name}`" for name in removed)
    verb = "is" if len(removed) == 1 else "are"
    for change in claims:
        if change.step.operation != "create":
            continue
        shared = ((old.resource.name, _shared_volume(old, change)) for old in deleted)
        if found := [(name, volume) for name, volume in shared if volume is not None]:
            ((name, volume),) = found[:1]
            yield (
                f"Claim `{change.resource.name}` is never bound, because its volume `{volume}` "
                f"stays bound to claim `{name}`, so the update fails. To keep that claim, write "
                f"`name: {name}`. {_OTHER_VOLUME}"
            )
        elif removed:
            yield (
                f"Claim `{change.resource.name}` is new and empty, and {names} {verb} removed "
                "from the stack: if the claim was renamed, copy the data."
            )
