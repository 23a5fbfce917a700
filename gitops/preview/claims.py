"""Effects of a change on PersistentVolumeClaims, volumes, their data and their monthly cost."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

from gitops.preview.changes import Change, before
from gitops.preview.report import StorageRow
from gitops.prices import Prices
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.rules.storage import is_retained
from policies.values import UNKNOWN, Node
from policies.views import Stack, View

_DATA_LOSS = (
    "Its data is lost unless the reclaim policy of its volume is `Retain`. Pods that mount the "
    "claim must terminate first."
)

_OTHER_VOLUME = (
    "To use a new claim, declare its storage as another volume in `storage.volumes`, and set the "
    "`volume` of the claim to that volume."
)
_GIB = Decimal(2**30)
_Key = tuple[str, str]


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
    """Return the volume of a new claim if the old claim is bound to that volume, otherwise None."""
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
            "Kubernetes rejects, because the claim has no storage class. Keep its `size`: it does "
            "not limit how much of a declared volume can be used."
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


def storage_rows(changes: Iterable[Change], prices: Prices, stack: str) -> list[StorageRow]:
    """Return the claims now and after the update; empty if the price table lacks storage prices."""
    all_changes = list(changes)
    now, after = _claims(c.old for c in all_changes), _claims(c.new for c in all_changes)
    declared = Stack(list(before(all_changes)))
    retained = {_key(c.old.resource) for c in all_changes if c.old is not None and c.is_retained}
    staying = {
        key
        for key, claim in now.items()
        if key not in after and (key in retained or is_retained(declared, claim))
    }
    return [
        _row(now.get(key), after.get(key), key in staying, prices, stack)
        for key in sorted({*now, *after})
        if prices.storage
    ]


def _claims(views: Iterable[View | None]) -> dict[_Key, Resource]:
    resources = (view.resource for view in views if view is not None)
    return {_key(resource): resource for resource in resources if is_claim(resource)}


def _key(claim: Resource) -> _Key:
    return claim.namespace or "default", claim.name


def _row(
    now: Resource | None, after: Resource | None, stays: bool, prices: Prices, stack: str
) -> StorageRow:
    # A claim that stays in the cluster still has a cost.
    later = now if stays else after
    claim = after or now
    if claim is None:
        raise ValueError("a row requires a claim")
    price_now, price_after = (_price(each, prices, stack) for each in (now, later))
    sizes = _gib(now), _gib(later)
    storage_class = _storage_class(claim, prices, stack)
    return StorageRow(
        claim=claim.name,
        namespace=_key(claim)[0],
        storage_class=storage_class or "",
        now=sizes[0],
        after=sizes[1],
        stays=stays,
        price=prices.storage.get(storage_class) if storage_class else None,
        now_month=_monthly_cost(sizes[0], price_now),
        after_month=_monthly_cost(sizes[1], price_after),
    )


def _gib(claim: Resource | None) -> Decimal | None:
    if claim is None:
        return Decimal(0)
    size = quantity_or_none(storage(claim).value)
    return None if size is None else size / _GIB


def _storage_class(claim: Resource, prices: Prices, stack: str) -> str | None:
    """Return a claim's storage class (default: that of the environment); None if it is unknown."""
    value = claim.root["spec"]["storageClassName"]
    if value.value is UNKNOWN:
        return None
    return value.text or prices.environment(stack).storage_class


def _price(claim: Resource | None, prices: Prices, stack: str) -> Decimal | None:
    named = None if claim is None else _storage_class(claim, prices, stack)
    return prices.storage.get(named) if named else None


def _monthly_cost(size: Decimal | None, price: Decimal | None) -> Decimal | None:
    if size == 0:
        return Decimal(0)
    return None if size is None or price is None else size * price
