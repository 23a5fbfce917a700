"""What is left of quotas, of queues and of the cluster's GPUs when the update is done."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gitops.preview.demand import Demand
from gitops.preview.gpus import Count
from gitops.prices import Environment
from kube.quantities import quantity_or_none
from policies.views import Stack, View


@dataclass(frozen=True)
class Limit:
    """A limit with what the stack asks for under it, in base units: bytes, cores or pieces."""

    what: str
    """Such as `queue vision`."""
    resource: str
    asked: Decimal
    allowed: Decimal

    @property
    def left(self) -> Decimal:
        """Negative where more is asked for than there may be."""
        return self.allowed - self.asked


def limits(
    views: Iterable[View],
    found: Sequence[Demand],
    counts: Iterable[Count],
    environment: Environment,
) -> list[Limit]:
    """Every limit that the stack sets itself, and the installed GPUs of the price table."""
    stack = Stack(list(views))
    return [
        *_quotas(stack, found),
        *_queues(stack, found),
        *_installed(list(counts), environment),
    ]


def _quotas(stack: Stack, found: Sequence[Demand]) -> Iterator[Limit]:
    for quota in stack.of_kind("", "ResourceQuota"):
        inside = [demand for demand in found if demand.namespace == quota.namespace]
        for name, node in sorted(quota.root["spec"]["hard"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                asked = _asked(stack, quota.namespace, inside, name)
                if asked is not None:
                    yield Limit(f"quota of {quota.namespace}", name, asked, allowed)


def _asked(
    stack: Stack, namespace: str | None, inside: Sequence[Demand], name: str
) -> Decimal | None:
    if name == "pods":
        return sum((demand.pods or Decimal(0) for demand in inside), Decimal(0))
    if name == "persistentvolumeclaims":
        claims = stack.of_kind("", "PersistentVolumeClaim")
        return Decimal(sum(claim.namespace == namespace for claim in claims))
    if name.startswith("limits."):
        resource = name.removeprefix("limits.")
        return sum((demand.total(demand.limits, resource) for demand in inside), Decimal(0))
    if name.startswith("requests."):
        resource = name.removeprefix("requests.")
        return sum((demand.total(demand.requests, resource) for demand in inside), Decimal(0))
    return None


def _queues(stack: Stack, found: Sequence[Demand]) -> Iterator[Limit]:
    for queue in sorted(stack.of_kind("scheduling.volcano.sh", "Queue"), key=lambda q: q.name):
        waiting = [demand for demand in found if demand.queue == queue.name]
        for name, node in sorted(queue.root["spec"]["capability"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                asked = sum((d.total(d.requests, name) for d in waiting), Decimal(0))
                yield Limit(f"queue {queue.name}", name, asked, allowed)


def _installed(counts: Sequence[Count], environment: Environment) -> Iterator[Limit]:
    for product, number in sorted(environment.installed.items()):
        asked = [item.after for item in counts if item.pool.product == product]
        yield Limit("installed GPUs", product, sum(asked, Decimal(0)), Decimal(number))
