"""Price of a GPU-hour for each sweep, computed from the price table that previews use."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pulumi

from gitops.errors import GitopsError
from infra.gpu_stack import gpu_nodes
from infra.settings import SettingsError, StackSettings
from infra.settings.problems import full_key
from infra.settings.training.sweep import SweepSettings
from infra.sweep import Price
from infra.training_run import TrainingJobArgs, manifests

if TYPE_CHECKING:
    from gitops.prices import Prices


def stack_prices(settings: StackSettings) -> dict[str, Price]:
    """Return the GPU-hour price of each sweep with a money budget, for use in a stack's program.

    Raises:
        RunError: If `sweep_prices` fails. Pulumi prints this error without a traceback.
    """
    try:
        return sweep_prices(settings, pulumi.get_stack())
    except (GitopsError, SettingsError) as error:
        raise pulumi.RunError(str(error)) from None


def sweep_prices(
    settings: StackSettings, stack: str, table: Path | None = None
) -> dict[str, Price]:
    """Return the price of a GPU-hour for each sweep with a money budget.

    The price includes the trials' CPUs and memory if the price table charges for them.

    Raises:
        SettingsError: If a price is unknown, or a money budget is too small or has no effect.
        GitopsError: If the table cannot be read.
    """
    if not settings.training.has_money_budget:
        return {}
    # Imported here, because these modules take longer to import than the rest of a stack's program.
    from gitops.demand import demands
    from gitops.preview.capacity import ANY, count_gpus, count_hosts
    from gitops.preview.new_runs import cost_per_hour
    from gitops.prices import DEFAULT, load
    from policies.evaluation import resource_of
    from policies.views import View

    table = table or DEFAULT
    prices, by_sweep, problems = load(table), {}, list[str]()
    for key, sweep in settings.training.sweeps.items():
        if sweep.budget.money is None:
            continue
        views = [View(resource_of(manifest)) for manifest in _trial(settings, key, sweep)]
        pods = demands(views)
        hourly = cost_per_hour(pods, prices, stack)
        if hourly is None:
            rows = [*count_gpus([], pods, prices, stack), *count_hosts([], pods, prices, stack)]
            missing = {
                f"environments.{stack}.product"
                if row.product == ANY
                else f"a price for {row.product} ({row.resource}, {row.purchase})"
                for row in rows
                if prices.of_resource(row.product, row.resource, row.purchase) is None
            }
            problems.append(
                f"{_budget_text(key, sweep)}, but the price table {table.name} lacks "
                f"{' and '.join(sorted(missing))}: add the missing entries, or set "
                "budget.gpu_hours instead."
            )
            continue
        price = hourly / sweep.gpus
        problems += _problems(settings, key, sweep, price, prices)
        by_sweep[key] = Price(gpu_hour=float(price), currency=prices.currency)
    if problems:
        raise SettingsError(problems)
    return by_sweep


def _problems(
    settings: StackSettings, key: str, sweep: SweepSettings, price: Decimal, prices: Prices
) -> Iterator[str]:
    if not price and sweep.budget.gpu_hours is None:
        yield (
            f"{_budget_text(key, sweep)}, but the price of the sweep's GPUs is 0 in the price "
            "table, so the budget never runs out: set budget.gpu_hours."
        )
    interval = settings.training.sweep_controller.interval_seconds
    reserve = sweep.reserve(interval) / 3600 * float(price)
    if sweep.budget.money is not None and price and sweep.budget.money <= reserve:
        yield (
            f"{_budget_text(key, sweep)}, but the sweep's parallel trials can cost {reserve:.2g} "
            f"{prices.currency} before the controller has paused them, so no trial would start: "
            "set a larger budget."
        )


def _budget_text(key: str, sweep: SweepSettings) -> str:
    return f"{full_key('training', 'sweeps', key, 'budget', 'money')} is {sweep.budget.money:.15g}"


def _trial(settings: StackSettings, key: str, sweep: SweepSettings) -> list[dict[str, object]]:
    """Return the objects of a trial. The placeholder names do not affect the price."""
    args = TrainingJobArgs(
        key=key,
        job=sweep.job,
        namespace=settings.tenancy.namespace,
        image="image",
        image_identity="image",
        gpu_nodes=gpu_nodes(settings.gpu),
        claims={claim: claim for claim in settings.storage.claims},
    )
    return manifests(args, key, args.image)
