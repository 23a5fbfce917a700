"""GPU hours and cost of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from gitops.prices import Prices
from gitops.runs.snapshot import Object, Snapshot, request

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Usage:
    """GPU hours and cost of the existing pods; pods of earlier attempts may be gone."""

    gpu_hours: Decimal
    """Hours times GPUs. The price table defines the fraction of a GPU that other devices are."""
    cost: Decimal | None
    """In the price table's currency; None if it lacks the price of a GPU."""


def usage(
    pods: Iterable[Object], snapshot: Snapshot, prices: Prices, now: datetime, product: str = ""
) -> Usage:
    """Return GPU hours and cost, counted from the time at which a pod was scheduled.

    `product` is the GPU model of nodes without a label.
    """
    labels = {node["metadata"]["name"]: _labels(node) for node in snapshot.all("Node")}
    hours, cost = Decimal(0), Decimal(0)
    known = True
    for pod in pods:
        start = scheduled_at(pod)
        if start is None:
            continue
        time = Decimal(str(max(((ended_at(pod) or now) - start).total_seconds(), 0.0))) / 3600
        node = labels.get(pod["spec"].get("nodeName", ""), {})
        for resource, count in request(pod).items():
            share = prices.share(resource)
            if share is None:
                continue
            hours += time * count * share
            price = _price(node, prices, product)
            known = known and price is not None
            cost += time * count * share * (price or 0)
    return Usage(hours, cost if known else None)


def _price(labels: Mapping[str, str], prices: Prices, default: str) -> Decimal | None:
    spot = any(labels.get(key) == value for key, value in prices.spot_labels.items())
    return prices.of_product(labels.get(PRODUCT_LABEL, default), "spot" if spot else "on-demand")


def scheduled_at(pod: Object) -> datetime | None:
    """Return the time at which a pod got its node."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return moment(condition.get("lastTransitionTime"))
    return moment(pod.get("status", {}).get("startTime"))


def ended_at(pod: Object) -> datetime | None:
    """Return the time at which the last container of a completed pod ended."""
    if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        moment(status.get("state", {}).get("terminated", {}).get("finishedAt"))
        for status in pod["status"].get("containerStatuses", [])
    ]
    known = [end for end in ends if end is not None]
    return max(known, default=scheduled_at(pod))


def moment(text: str | None) -> datetime | None:
    """Parse a timestamp of the Kubernetes API."""
    return None if not text else datetime.fromisoformat(text).astimezone(UTC)


def _labels(node: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"].get("labels", {})
    return found
