"""Prices for sweeps with a money budget, taken from the previews' price table."""

from pathlib import Path
from typing import Any

import pytest

from gitops.demand import demands
from gitops.errors import GitopsError
from gitops.preview.new_runs import cost_per_hour
from gitops.prices import load
from gitops.sweep_prices import sweep_prices
from infra.settings import SettingsError
from policies.evaluation import resource_of
from policies.views import View
from tests.infra.sweeps import stack_settings, sweep

A800 = {"gpu_product": "NVIDIA-A800-SXM4-80GB"}


def problem(stack: str, table: Path | None = None, **changes: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        sweep_prices(
            stack_settings(**changes), stack, **({} if table is None else {"table": table})
        )
    (found,) = caught.value.problems
    return found


def test_gpu_hour_price_equals_the_price_in_previews() -> None:
    settings = stack_settings(job=A800, budget={"money": 100})
    (price,) = sweep_prices(settings, "elsewhere").values()
    manifest = sweep(settings).manifest({"learning_rate": 0.01, "optimizer": "sgd"})
    hourly = cost_per_hour(demands([View(resource_of(manifest))]), load(), "elsewhere")
    (searched,) = settings.training.sweeps.values()
    assert (price.gpu_hour, price.currency) == (2.40, "USD")
    assert price.gpu_hour * searched.gpus == pytest.approx(float(hourly or 0))


def test_price_includes_separately_charged_cpus(tmp_path: Path) -> None:
    table = tmp_path / "prices.yaml"
    host = "{cpu: {on_demand: 1}, memory: {on_demand: 0}, gpu_pods: true}"
    table.write_text(
        "currency: EUR\nproducts: {A: {on_demand: 2}}\n"
        f"hosts: {{racks: {host}}}\nenvironments: {{prod: {{product: A, host: racks}}}}\n"
    )
    settings = stack_settings(budget={"money": 100}, job={"cpu": 4, "gpus_per_node": 2})
    (price,) = sweep_prices(settings, "prod", table).values()
    assert (price.gpu_hour, price.currency) == (2 + 4 / 2, "EUR")


def test_money_budget_without_a_price_is_rejected() -> None:
    found = problem("elsewhere", budget={"money": 100}, job={"gpu_product": "NVIDIA-B200"})
    assert found == (
        "gpu-platform:training.sweeps.digits.budget.money is 100, but the price table prices.yaml "
        "lacks a price for NVIDIA-B200 (nvidia.com/gpu, on-demand): add the missing entries, or "
        "set budget.gpu_hours instead."
    )
    unnamed = problem("elsewhere", budget={"money": 100})
    assert "prices.yaml lacks environments.elsewhere.product: add the missing entries" in unnamed


def test_money_budget_does_not_limit_free_gpus() -> None:
    assert "the budget never runs out" in problem("dev", budget={"money": 100})
    settings = stack_settings(budget={"money": 100, "gpu_hours": 10})
    (price,) = sweep_prices(settings, "dev").values()
    assert price.gpu_hour == 0


def test_money_budget_too_small_for_one_trial_is_rejected() -> None:
    assert "so no trial would start: set a larger budget" in problem(
        "prod", budget={"money": 0.1}, job=A800
    )


def test_sweep_without_a_money_budget_needs_no_price() -> None:
    assert sweep_prices(stack_settings(), "elsewhere") == {}


def test_an_invalid_price_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GitopsError, match=r"the price table .*none.yaml cannot be read"):
        sweep_prices(stack_settings(budget={"money": 100}), "prod", tmp_path / "none.yaml")
