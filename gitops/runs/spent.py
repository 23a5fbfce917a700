"""What a run has used: GPUs over time, and their price."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from gitops.prices import Prices
from gitops.runs.picture import Object, Picture, request

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Spent:
    """Of the pods that are still there: those of earlier attempts may be gone."""

    gpu_hours: Decimal
    """Hours times GPUs, shares of a GPU as the price table has them."""
    cost: Decimal | None
    """In the price table's currency; None where it does not know a GPU's price."""


def spent(
    pods: Iterable[Object], picture: Picture, prices: Prices, now: datetime, product: str = ""
) -> Spent:
    """GPU hours and their cost, from the moment in which a pod got its node.

    `product` is what nodes have that do not say.
    """
    labels = {node["metadata"]["name"]: _labels(node) for node in picture.all("Node")}
    hours, cost = Decimal(0), Decimal(0)
    known = True
    for pod in pods:
        placed = placed_at(pod)
        if placed is None:
            continue
        time = Decimal(str(max(((ended_at(pod) or now) - placed).total_seconds(), 0.0))) / 3600
        node = labels.get(pod["spec"].get("nodeName", ""), {})
        for resource, count in request(pod).items():
            share = prices.share(resource)
            if share is None:
                continue
            hours += time * count * share
            price = _price(node, prices, product)
            known = known and price is not None
            cost += time * count * share * (price or 0)
    return Spent(hours, cost if known else None)


def _price(labels: Mapping[str, str], prices: Prices, otherwise: str) -> Decimal | None:
    spot = any(labels.get(key) == value for key, value in prices.spot_labels.items())
    return prices.of_product(labels.get(PRODUCT_LABEL, otherwise), "spot" if spot else "on-demand")


def placed_at(pod: Object) -> datetime | None:
    """When a pod got its node."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return moment(condition.get("lastTransitionTime"))
    return moment(pod.get("status", {}).get("startTime"))


def ended_at(pod: Object) -> datetime | None:
    """When the last container of a pod ended that is over."""
    if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        moment(status.get("state", {}).get("terminated", {}).get("finishedAt"))
        for status in pod["status"].get("containerStatuses", [])
    ]
    known = [end for end in ends if end is not None]
    return max(known, default=placed_at(pod))


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it."""
    return None if not text else datetime.fromisoformat(text).astimezone(UTC)


def _labels(node: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get("labels", {})
    return found
