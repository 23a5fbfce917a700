"""GPUs by queue and product, now and after."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gitops.preview.demand import Demand, with_gpus
from gitops.prices import Environment, Prices, Purchase
from policies.workloads import Role

ANY = "any model"
"""The product of pods that choose none, where the price table names none either."""


@dataclass(frozen=True, order=True)
class Pool:
    """GPUs that are counted together."""

    queue: str
    """Empty for pods that wait in no queue."""
    product: str
    resource: str
    purchase: Purchase
    role: Role


@dataclass(frozen=True)
class Count:
    """How many GPUs of a pool are asked for; `fewest` differs where an autoscaler decides."""

    pool: Pool
    now: Decimal
    after: Decimal
    fewest_after: Decimal


def count(
    now: Iterable[Demand], after: Iterable[Demand], prices: Prices, stack: str
) -> list[Count]:
    """The pools of a stack, in order."""
    before, later = _by_pool(now, prices, stack), _by_pool(after, prices, stack)
    none = (Decimal(0), Decimal(0))
    return [
        Count(pool, before.get(pool, none)[1], most, fewest)
        for pool in sorted({*before, *later})
        for fewest, most in [later.get(pool, none)]
    ]


def uncounted(found: Iterable[Demand]) -> list[str]:
    """Workloads with GPUs whose number of pods is not known."""
    return sorted({demand.workload for demand in with_gpus(found) if demand.pods is None})


def _by_pool(
    found: Iterable[Demand], prices: Prices, stack: str
) -> dict[Pool, tuple[Decimal, Decimal]]:
    """Fewest and most GPUs by pool."""
    environment = prices.environment(stack)
    fewest: dict[Pool, Decimal] = defaultdict(Decimal)
    most: dict[Pool, Decimal] = defaultdict(Decimal)
    for demand in with_gpus(found):
        product = demand.product or environment.product or ANY
        purchase = _purchase(demand, prices, environment)
        for resource, each in demand.gpus.items():
            pool = Pool(demand.queue, product, resource, purchase, demand.role)
            pods = demand.pods or Decimal(0)
            most[pool] += each * pods
            fewest[pool] += each * (pods if demand.fewest is None else demand.fewest)
    return {pool: (fewest[pool], most[pool]) for pool in most}


def _purchase(demand: Demand, prices: Prices, environment: Environment) -> Purchase:
    if any(demand.labels.get(key) == value for key, value in prices.spot_labels.items()):
        return "spot"
    queue = environment.queues.get(demand.queue)
    return (queue.purchase if queue else None) or environment.purchase
