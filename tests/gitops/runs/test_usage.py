"""GPU-hours of runs and their cost."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from gitops.prices import Prices
from gitops.runs.snapshot import Snapshot
from gitops.runs.status import Usage, usage
from tests.gitops.runs.objects import ended, node, pod

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
PRICES = Prices.model_validate(
    {
        "currency": "USD",
        "products": {"NVIDIA-L4": {"on_demand": "0.75", "spot": "0.30"}},
        "shares": {"nvidia.com/mig-1g.10gb": "0.25"},
        "spot_labels": {"karpenter.sh/capacity-type": "spot"},
    }
)


def usage_of(*pods: dict[str, Any], on: dict[str, Any] | None = None, product: str = "") -> Usage:
    return usage(pods, Snapshot.of([on or node()]), PRICES, NOW, product)


def test_running_pod_counts_from_its_placement_until_now() -> None:
    assert usage_of(pod("run"), pod("run", 1)) == Usage(Decimal(8), Decimal(6))


def test_finished_pod_counts_until_its_end() -> None:
    over = pod("run", phase="Succeeded", **ended(at="2026-01-01T08:30:00Z"))
    assert usage_of(over).gpu_hours == 1


def test_waiting_pod_costs_nothing() -> None:
    assert usage_of(pod("run", phase="Pending")) == Usage(Decimal(0), Decimal(0))


def test_spot_nodes_are_charged_at_the_spot_price() -> None:
    spot = node(**{"karpenter.sh/capacity-type": "spot"})
    assert usage_of(pod("run"), on=spot).cost == Decimal("1.20")


def test_gpu_share_counts_as_a_fraction() -> None:
    sliced = pod("run")
    limits = sliced["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/mig-1g.10gb"] = limits.pop("nvidia.com/gpu")
    assert usage_of(sliced) == Usage(Decimal(1), Decimal("0.75"))


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"])
def test_cost_of_an_unlisted_gpu_share_is_unknown(resource: str) -> None:
    shared = pod("run")
    limits = shared["spec"]["containers"][0]["resources"]["limits"]
    limits[resource] = limits.pop("nvidia.com/gpu")
    assert usage_of(shared) == Usage(Decimal(0), None)
    assert usage_of(pod("run"), shared) == Usage(Decimal(4), None)


def test_devices_that_are_not_gpus_cost_nothing() -> None:
    connected = pod("run")
    limits = connected["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"rdma/hca": "1", "nvidia.com/gpumem": "3000"}
    assert usage_of(connected) == Usage(Decimal(4), Decimal(3))


@pytest.mark.parametrize(("product", "cost"), [("", None), ("NVIDIA-L4", Decimal(3))])
def test_cost_is_none_if_the_gpu_model_is_unknown(product: str, cost: Decimal | None) -> None:
    unlabeled = node()
    unlabeled["metadata"]["labels"] = {}
    assert usage_of(pod("run"), on=unlabeled, product=product).cost == cost
