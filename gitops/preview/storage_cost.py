"""Claims of a stack, and their monthly cost."""

from collections.abc import Iterable
from decimal import Decimal

from gitops.preview.changes import Change, before
from gitops.preview.claims import is_claim, storage
from gitops.preview.report import StorageRow
from gitops.prices import Prices
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.rules.storage import is_retained
from policies.values import UNKNOWN
from policies.views import Stack, View

_GIB = Decimal(2**30)
_Key = tuple[str, str]


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
