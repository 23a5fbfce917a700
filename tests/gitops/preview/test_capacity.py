from decimal import Decimal
from typing import Any

from gitops.demand import demands
from gitops.preview.capacity import costs, count_gpus
from gitops.preview.changes import after, before, changes
from gitops.preview.report import CostRow
from gitops.prices import Prices
from tests.gitops import plans

PRICES = Prices.model_validate(
    {
        "currency": "EUR",
        "hours_per_month": 100,
        "products": {"big": {"on_demand": 4, "spot": 1}, "small": {"on_demand": 0.5}},
        "shares": {"nvidia.com/mig-1g.10gb": 0.25},
        "spot_labels": {"capacity": "spot"},
        "environments": {
            "prod": {
                "product": "big",
                "utilisation": {"training": 0.5},
                "queues": {"night": {"purchase": "spot", "utilisation": 0.1}},
            }
        },
    }
)


def cost(*steps: dict[str, Any], stack: str = "prod") -> list[CostRow]:
    found = changes(plans.plan(*steps).steps)
    now, later = demands(before(found)), demands(after(found))
    return costs(count_gpus(now, later, PRICES, stack), PRICES, stack)


def test_four_more_gpus_cost_four_prices_more_and_half_of_the_month() -> None:
    job = plans.volcano_job
    (item,) = cost(plans.step("replace", job(pods=2, gpus=4), job(pods=3, gpus=4)))
    assert (item.now_hour, item.after_hour) == (32, 48)
    assert (item.now_month, item.after_month) == (1600, 2400)


def test_a_server_costs_the_whole_month() -> None:
    (item,) = cost(plans.step("create", new=plans.deployment(replicas=3, product="small")))
    assert (item.after_hour, item.after_month) == (Decimal("1.5"), 150)
    assert (item.now_hour, item.role) == (0, "serving")


def test_spot_prices_follow_node_selectors_and_queues() -> None:
    spot = plans.volcano_job(nodeSelector={"capacity": "spot"})
    (item,) = cost(plans.same(spot))
    assert (item.purchase, item.price) == ("spot", 1)
    night = plans.volcano_job()
    night["spec"]["queue"] = "night"
    (item,) = cost(plans.same(night))
    assert (item.purchase, item.utilisation) == ("spot", Decimal("0.1"))


def test_the_cost_of_resources_without_a_price_is_unknown() -> None:
    (item,) = cost(plans.same(plans.volcano_job(product="NVIDIA-Unheard-Of")))
    assert (item.price, item.after_hour) == (None, None)
    no_spot_price = plans.volcano_job()
    selector = {"capacity": "spot", "nvidia.com/gpu.product": "small"}
    no_spot_price["spec"]["tasks"][0]["template"]["spec"]["nodeSelector"] = selector
    (item,) = cost(plans.same(no_spot_price))
    assert (item.price, item.after_hour) == (None, None)
    (item,) = cost(plans.same(plans.volcano_job()), stack="elsewhere")
    assert (item.price, item.product) == (None, "any model")


def test_a_share_of_a_gpu_costs_its_share_and_an_unlisted_one_is_unknown() -> None:
    job = plans.volcano_job(pods=1)
    resources = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"] = {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/gpu.shared": 1}
    listed = {item.resource: item for item in cost(plans.same(job))}
    assert listed["nvidia.com/mig-1g.10gb"].after_hour == 2
    assert listed["nvidia.com/gpu.shared"].price is None
