"""GPUs, CPUs and memory by queue, with costs and the remaining capacity of quotas and queues."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal

from gitops.demand import Demand, with_gpus
from gitops.preview.claims import storage
from gitops.preview.report import CostRow, LimitRow, PoolRow
from gitops.prices import HOST_RESOURCES, Environment, Prices, Purchase
from kube.kinds.volcano import with_ancestors
from kube.names import SCHEDULING_GROUP
from kube.quantities import quantity_or_none
from kube.workloads.record import Role
from policies.views import Stack, View

_GIB = Decimal(2**30)
_UNKNOWN_PODS = "the number of its pods is unknown"
ANY = "any model"
"""GPU model if neither a pod nor the price table's entry for the environment specifies one."""


@dataclass(frozen=True, order=True)
class Pool:
    """A group of GPUs, cores or GiB of memory that are counted together."""

    queue: str
    """Empty for pods without a queue."""
    product: str
    """GPU model; for CPUs and memory, the host in the price table."""
    resource: str
    purchase: Purchase
    role: Role


def count_gpus(
    now: Iterable[Demand], after: Iterable[Demand], prices: Prices, stack: str
) -> list[PoolRow]:
    """Return the GPUs of each pool now and after the update, in a stable order."""
    default = prices.environment(stack).product or ANY

    def gpus(demand: Demand) -> Mapping[tuple[str, str], Decimal]:
        product = demand.product or default
        return {(product, resource): amount for resource, amount in demand.gpus.items()}

    return _count(now, after, gpus, prices, stack)


def count_hosts(
    now: Iterable[Demand], after: Iterable[Demand], prices: Prices, stack: str
) -> list[PoolRow]:
    """Return the requested cores and GiB of memory that are not included in GPU prices."""
    name = prices.environment(stack).host
    if name is None:
        return []
    host = prices.hosts.get(name)
    gpu_pods = host is not None and host.gpu_pods

    def requests(demand: Demand) -> Mapping[tuple[str, str], Decimal]:
        if demand.gpus and not gpu_pods:
            return {}
        units = zip(HOST_RESOURCES, (Decimal(1), _GIB), strict=True)
        return {(name, each): demand.requests.get(each, Decimal(0)) / unit for each, unit in units}

    return _count(now, after, requests, prices, stack)


def _count(
    now: Iterable[Demand],
    after: Iterable[Demand],
    amounts: Callable[[Demand], Mapping[tuple[str, str], Decimal]],
    prices: Prices,
    stack: str,
) -> list[PoolRow]:
    before, later = (_by_pool(found, amounts, prices, stack) for found in (now, after))
    empty = (Decimal(0), Decimal(0))
    return [
        PoolRow(**asdict(pool), now=before.get(pool, empty)[1], after=maximum, fewest_after=minimum)
        for pool in sorted({*before, *later})
        for minimum, maximum in [later.get(pool, empty)]
    ]


def uncounted(demands: Iterable[Demand], prices: Prices, stack: str) -> list[str]:
    """Return a note for each workload that is not counted because its number of pods is unknown."""
    unknown = [demand for demand in demands if demand.pods is None]
    gpus = {demand.workload for demand in with_gpus(unknown)}
    priced = prices.environment(stack).host is not None
    others = {demand.workload for demand in unknown} - gpus if priced else set[str]()
    return [
        *(f"{each}: {_UNKNOWN_PODS}, so its GPUs are not counted." for each in sorted(gpus)),
        *(
            f"{each}: {_UNKNOWN_PODS}, so its CPUs and memory are not counted."
            for each in sorted(others)
        ),
    ]


def _by_pool(
    demands: Iterable[Demand],
    amounts: Callable[[Demand], Mapping[tuple[str, str], Decimal]],
    prices: Prices,
    stack: str,
) -> Mapping[Pool, tuple[Decimal, Decimal]]:
    """Return the minimum and the maximum amount of each pool."""
    environment = prices.environment(stack)
    minimum: dict[Pool, Decimal] = defaultdict(Decimal)
    maximum: dict[Pool, Decimal] = defaultdict(Decimal)
    for demand in demands:
        purchase = _purchase(demand, prices, environment)
        for (product, resource), each in amounts(demand).items():
            if not each:
                continue
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


def costs(rows: Iterable[PoolRow], prices: Prices, stack: str) -> list[CostRow]:
    """Return the cost of every pool.

    Hourly costs assume that all pods are running; monthly costs use the pool's utilization. Both
    are None if the price is unknown, but an empty pool always costs 0.
    """
    environment = prices.environment(stack)
    return [_cost(row, prices, environment) for row in rows]


def _cost(row: PoolRow, prices: Prices, environment: Environment) -> CostRow:
    hourly = prices.of_resource(row.product, row.resource, row.purchase)
    utilization = _utilization(row, environment)
    hours = prices.hours_per_month * utilization
    now, after = _cost_of(row.now, hourly), _cost_of(row.after, hourly)
    return CostRow(
        **row.model_dump(include={"queue", "product", "resource", "purchase", "role"}),
        price=hourly,
        utilization=utilization,
        now_hour=now,
        after_hour=after,
        now_month=_cost_of(hours, now),
        after_month=_cost_of(hours, after),
    )


def _cost_of(amount: Decimal, price: Decimal | None) -> Decimal | None:
    """Return the cost of an amount, or None if the amount is not 0 and its price is unknown."""
    return amount * price if price is not None else None if amount else Decimal(0)


def _utilization(row: PoolRow, environment: Environment) -> Decimal:
    queue = environment.queues.get(row.queue)
    if queue is not None and queue.utilization is not None:
        return queue.utilization
    shares = environment.utilization
    by_role = {"training": shares.training, "serving": shares.inference}
    return by_role.get(row.role, shares.other)


def limits(
    views: Sequence[View],
    demands: Sequence[Demand],
    rows: Sequence[PoolRow],
    prices: Prices,
    name: str,
) -> list[LimitRow]:
    """Return the usage of a stack's quotas and queues, and of the installed GPUs.

    The price table lists the installed GPUs. It also maps partial devices, such as MIG devices, to
    fractions of a GPU. A GPU model is omitted if the table has no fraction for a device in use.
    """
    stack, ancestry = Stack(views), ancestors(views)
    queues = _queues(stack, ancestry, demands)
    return [*_quotas(stack, demands), *queues, *_gpus(rows, prices, name)]


def _limit(what: str, resource: str, requested: Decimal, allowed: Decimal) -> LimitRow:
    return LimitRow(
        what=what, resource=resource, asked=requested, allowed=allowed, left=allowed - requested
    )


def _quotas(stack: Stack, demands: Sequence[Demand]) -> Iterator[LimitRow]:
    for quota in stack.of_kind("", "ResourceQuota"):
        inside = [demand for demand in demands if demand.namespace == quota.namespace]
        for name, node in sorted(quota.root["spec"]["hard"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                requested = _requested_amount(stack, quota.namespace, inside, name)
                if requested is not None:
                    yield _limit(f"quota of {quota.namespace}", name, requested, allowed)


def _requested_amount(
    stack: Stack, namespace: str | None, inside: Sequence[Demand], name: str
) -> Decimal | None:
    if name == "pods":
        return sum((demand.pods or Decimal(0) for demand in inside), Decimal(0))
    claims = stack.of_kind("", "PersistentVolumeClaim")
    sizes = [storage(claim).value for claim in claims if claim.namespace == namespace]
    if name == "persistentvolumeclaims":
        return Decimal(len(sizes))
    if name == "requests.storage":
        return sum((quantity_or_none(size) or Decimal(0) for size in sizes), Decimal(0))
    if name.startswith("limits."):
        resource = name.removeprefix("limits.")
        return sum((demand.total(demand.limits, resource) for demand in inside), Decimal(0))
    # In a quota, `cpu` means the same as `requests.cpu`. The same applies to `memory` and
    # `ephemeral-storage`.
    if name.startswith("requests.") or name in (*HOST_RESOURCES, "ephemeral-storage"):
        resource = name.removeprefix("requests.")
        return sum((demand.total(demand.requests, resource) for demand in inside), Decimal(0))
    return None


def ancestors(views: Iterable[View]) -> dict[str, set[str]]:
    """Map each queue of a stack to itself and its ancestors, whose limits also apply to it."""
    queues = Stack(list(views)).of_kind(SCHEDULING_GROUP, "Queue")
    parents = {queue.name: queue.root["spec"]["parent"].text for queue in queues}
    return {name: set(with_ancestors(name, parents)) for name in parents}


def _queues(
    stack: Stack, ancestry: Mapping[str, set[str]], demands: Sequence[Demand]
) -> Iterator[LimitRow]:
    for queue in sorted(stack.of_kind(SCHEDULING_GROUP, "Queue"), key=lambda q: q.name):
        inside = [demand for demand in demands if queue.name in ancestry.get(demand.queue, ())]
        for name, node in sorted(queue.root["spec"]["capability"].fields()):
            allowed = quantity_or_none(node.value)
            if allowed is not None:
                total = sum((d.total(d.requests, name) for d in inside), Decimal(0))
                yield _limit(f"queue {queue.name}", name, total, allowed)


def _gpus(rows: Sequence[PoolRow], prices: Prices, stack: str) -> Iterator[LimitRow]:
    for product, number in sorted(prices.environment(stack).installed.items()):
        used = [row for row in rows if row.product == product and row.after]
        known = [
            row.after * share for row in used if (share := prices.share(row.resource)) is not None
        ]
        if len(known) == len(used):
            # For example, seven devices with a seventh of a GPU each count as one GPU.
            total = round(sum(known, Decimal(0)), 2)
            yield _limit("installed GPUs", product, total, Decimal(number))
