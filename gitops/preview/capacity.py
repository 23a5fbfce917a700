"""GPUs by queue and model with their cost, and what remains of quotas, queues and GPUs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal

from gitops.demand import Demand, with_gpus
from gitops.preview.report import CostRow, GpuRow, LimitRow
from gitops.prices import Environment, Prices, Purchase
from kube.quantities import quantity_or_none
from kube.workloads.record import Role
from policies.views import Stack, View

ANY = "any model"
"""Model of pods that select none, if the price table does not state the environment's model."""


@dataclass(frozen=True, order=True)
class Pool:
    """GPUs that are counted together."""

    queue: str
    """Empty for pods outside queues."""
    product: str
    resource: str
    purchase: Purchase
    role: Role


def count_gpus(
    now: Iterable[Demand], after: Iterable[Demand], prices: Prices, stack: str
) -> list[GpuRow]:
    """Return the GPUs of each pool now and after the update, sorted."""
    before, later = _by_pool(now, prices, stack), _by_pool(after, prices, stack)
    none = (Decimal(0), Decimal(0))
    return [
        GpuRow(**asdict(pool), now=before.get(pool, none)[1], after=maximum, fewest_after=minimum)
        for pool in sorted({*before, *later})
        for minimum, maximum in [later.get(pool, none)]
    ]


def uncounted(found: Iterable[Demand]) -> list[str]:
    """Return the workloads with GPUs whose number of pods is unknown."""
    return sorted({demand.workload for demand in with_gpus(found) if demand.pods is None})


def _by_pool(
    found: Iterable[Demand], prices: Prices, stack: str
) -> Mapping[Pool, tuple[Decimal, Decimal]]:
    """Return the minimum and maximum of GPUs by pool."""
    environment = prices.environment(stack)
    minimum: dict[Pool, Decimal] = defaultdict(Decimal)
    maximum: dict[Pool, Decimal] = defaultdict(Decimal)
    for demand in with_gpus(found):
        product = demand.product or environment.product or ANY
        purchase = _purchase(demand, prices, environment)
        for resource, each in demand.gpus.items():
            pool = Pool(demand.queue, product, resource, purchase, demand.role)
            pods = demand.pods or Decimal(0)
            maximum[pool] += each * pods
            minimum[pool] += each * (pods if demand.min_pods is None else demand.min_pods)
    return {pool: (minimum[pool], maximum[pool]) for pool in maximum}


def _purchase(demand: Demand, prices: Prices, environment: Environment) -> Purchase:
    if any(demand.labels.get(key) == value for key, value in prices.spot_labels.items()):
        return "spot"
    queue = environment.queues.get(demand.queue)
    return (queue.purchase if queue else None) or environment.purchase


def costs(rows: Iterable[GpuRow], prices: Prices, stack: str) -> list[CostRow]:
    """Return the cost of every pool: per hour if all GPUs are busy, per month at its utilisation.

    The cost of a pool without a price is None, unless it is empty.
    """
    environment = prices.environment(stack)
    return [_cost(row, prices, environment) for row in rows]


def _cost(row: GpuRow, prices: Prices, environment: Environment) -> CostRow:
    hourly = prices.of_device(row.product, row.resource, row.purchase)
    utilisation = _utilisation(row, environment)
    hours = prices.hours_per_month * utilisation
    now, after = _times(row.now, hourly), _times(row.after, hourly)
    return CostRow(
        **row.model_dump(include={"queue", "product", "resource", "purchase", "role"}),
        price=hourly,
        utilisation=utilisation,
        now_hour=now,
        after_hour=after,
        now_month=_times(hours, now),
        after_month=_times(hours, after),
    )


def _times(amount: Decimal, price: Decimal | None) -> Decimal | None:
    """Return a cost; None if there is something and its price is unknown."""
    return amount * price if price is not None else None if amount else Decimal(0)


def _utilisation(row: GpuRow, environment: Environment) -> Decimal:
    queue = environment.queues.get(row.queue)
    if queue is not None and queue.utilisation is not None:
        return queue.utilisation
    shares = environment.utilisation
    by_role = {"training": shares.training, "serving": shares.inference}
    return by_role.get(row.role, shares.other)


def limits(
    views: Iterable[View],
    found: Sequence[Demand],
    rows: Iterable[GpuRow],
    environment: Environment,
) -> list[LimitRow]:
    """Return every limit that the stack sets, and the installed GPUs of the price table."""
    stack = Stack(list(views))
    return [*_quotas(stack, found), *_queues(stack, found), *_installed(list(rows), environment)]


def _limit(what: str, resource: str, asked: Decimal, allowed: Decimal) -> LimitRow:
    return LimitRow(
        what=what, resource=resource, asked=asked, allowed=allowed, left=allowed - asked
    )


def _quotas(stack: Stack, found: Sequence[Demand]) -> Iterator[LimitRow]:
    for quota in stack.of_kind("", "ResourceQuota"):
        inside = [demand for demand in found if demand.namespace == quota.namespace]
        for name, node in sorted(quota.root["spec"]["hard"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                asked = _asked(stack, quota.namespace, inside, name)
                if asked is not None:
                    yield _limit(f"quota of {quota.namespace}", name, asked, allowed)


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


def _queues(stack: Stack, found: Sequence[Demand]) -> Iterator[LimitRow]:
    for queue in sorted(stack.of_kind("scheduling.volcano.sh", "Queue"), key=lambda q: q.name):
        inside = [demand for demand in found if demand.queue == queue.name]
        for name, node in sorted(queue.root["spec"]["capability"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                asked = sum((d.total(d.requests, name) for d in inside), Decimal(0))
                yield _limit(f"queue {queue.name}", name, asked, allowed)


def _installed(rows: Sequence[GpuRow], environment: Environment) -> Iterator[LimitRow]:
    for product, number in sorted(environment.installed.items()):
        asked = sum((row.after for row in rows if row.product == product), Decimal(0))
        yield _limit("installed GPUs", product, asked, Decimal(number))
