"""What the GPUs cost: per hour while all of them are taken, and per month as they are used."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from gitops.preview.gpus import Count, Pool
from gitops.prices import Environment, Prices


@dataclass(frozen=True)
class Cost:
    """What a pool costs. `hourly` is None where the price table does not say."""

    pool: Pool
    hourly: Decimal | None
    """Price of one GPU, or of one share, for an hour."""
    utilisation: Decimal
    now_hour: Decimal
    after_hour: Decimal
    now_month: Decimal
    after_month: Decimal


def costs(counts: Iterable[Count], prices: Prices, stack: str) -> list[Cost]:
    """The cost of every pool; pools without a price cost nothing here and say so."""
    environment = prices.environment(stack)
    return [_cost(item, prices, environment) for item in counts]


def _cost(item: Count, prices: Prices, environment: Environment) -> Cost:
    price = _price(item.pool, prices)
    used = _utilisation(item.pool, environment)
    month = prices.hours_per_month * used
    now, after = item.now * (price or 0), item.after * (price or 0)
    return Cost(item.pool, price, used, now, after, now * month, after * month)


def _price(pool: Pool, prices: Prices) -> Decimal | None:
    share = prices.share(pool.resource)
    price = prices.of_product(pool.product, pool.purchase)
    return None if price is None or share is None else price * share


def _utilisation(pool: Pool, environment: Environment) -> Decimal:
    queue = environment.queues.get(pool.queue)
    if queue is not None and queue.utilisation is not None:
        return queue.utilisation
    by_role: Decimal = getattr(environment.utilisation, pool.role)
    return by_role
