from decimal import Decimal
from typing import Any

from gitops.demand import demands
from gitops.preview.capacity import costs, count_gpus, count_hosts, limits, uncounted
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
        "hosts": {
            "plain": {"cpu": {"on_demand": 0.1, "spot": 0.05}, "memory": {"on_demand": 0.01}},
            "charged": {
                "cpu": {"on_demand": 0.1},
                "memory": {"on_demand": 0},
                "gpu_pods": True,
            },
        },
        "environments": {
            "prod": {
                "product": "big",
                "host": "plain",
                "utilization": {"training": 0.5},
                "queues": {"night": {"purchase": "spot", "utilization": 0.1}},
            },
            "charged": {"product": "big", "host": "charged"},
            "typo": {"product": "big", "host": "plian"},
        },
    }
)


def cost(*steps: dict[str, Any], stack: str = "prod") -> list[CostRow]:
    found = changes(plans.plan(*steps).steps)
    now, later = demands(before(found)), demands(after(found))
    return costs(count_gpus(now, later, PRICES, stack), PRICES, stack)


def test_additional_gpus_raise_hourly_and_monthly_costs() -> None:
    job = plans.volcano_job
    (item,) = cost(plans.step("replace", job(pods=2, gpus=4), job(pods=3, gpus=4)))
    assert (item.now_hour, item.after_hour) == (32, 48)
    assert (item.now_month, item.after_month) == (1600, 2400)


def test_server_is_charged_for_the_whole_month() -> None:
    (item,) = cost(plans.step("create", new=plans.deployment(replicas=3, product="small")))
    assert (item.after_hour, item.after_month) == (Decimal("1.5"), 150)
    assert (item.now_hour, item.role) == (0, "serving")


def test_spot_price_depends_on_required_labels_and_queue() -> None:
    spot = plans.volcano_job(nodeSelector={"capacity": "spot"})
    (item,) = cost(plans.same(spot))
    assert (item.purchase, item.price) == ("spot", 1)
    expression = {"key": "capacity", "operator": "In", "values": ["spot"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    affine = plans.volcano_job(affinity={"nodeAffinity": required})
    (item,) = cost(plans.same(affine))
    assert (item.purchase, item.price) == ("spot", 1)
    night = plans.volcano_job()
    night["spec"]["queue"] = "night"
    (item,) = cost(plans.same(night))
    assert (item.purchase, item.utilization) == ("spot", Decimal("0.1"))


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


def test_gpu_share_costs_its_fraction_and_unlisted_shares_are_unknown() -> None:
    job = plans.volcano_job(pods=1)
    resources = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"] = {"nvidia.com/mig-1g.10gb": 2, "nvidia.com/gpu.shared": 1}
    listed = {item.resource: item for item in cost(plans.same(job))}
    assert listed["nvidia.com/mig-1g.10gb"].after_hour == 2
    assert listed["nvidia.com/gpu.shared"].price is None


def host_cost(*steps: dict[str, Any], stack: str = "prod") -> list[CostRow]:
    found = changes(plans.plan(*steps).steps)
    now, later = demands(before(found)), demands(after(found))
    return costs(count_hosts(now, later, PRICES, stack), PRICES, stack)


def test_a_server_without_gpus_costs_its_cpus_and_memory() -> None:
    cpu, memory = host_cost(plans.step("create", new=plans.deployment(replicas=3, gpus=0)))
    assert (cpu.resource, cpu.now_hour, cpu.after_hour) == ("cpu", 0, Decimal("1.2"))
    assert (memory.resource, memory.after_hour) == ("memory", Decimal("0.48"))
    assert (cpu.product, cpu.after_month, cpu.role) == ("plain", 120, "serving")


def test_gpu_pods_are_charged_for_cpus_only_if_configured() -> None:
    steps = [plans.same(plans.volcano_job(pods=2, gpus=1))]
    assert host_cost(*steps) == []
    cpu, memory = host_cost(*steps, stack="charged")
    assert (cpu.after_hour, memory.after_hour) == (Decimal("0.8"), 0)


def test_cpus_are_not_priced_without_a_host_in_the_table() -> None:
    assert host_cost(plans.same(plans.deployment(gpus=0)), stack="elsewhere") == []


def test_the_cost_of_cpus_without_a_price_is_unknown() -> None:
    cpu, _ = host_cost(plans.step("delete", plans.deployment(gpus=0)), stack="typo")
    assert (cpu.price, cpu.now_hour, cpu.after_hour) == (None, None, 0)
    spot = plans.deployment(gpus=0, nodeSelector={"capacity": "spot"})
    cpu, memory = host_cost(plans.same(spot))
    assert (cpu.price, memory.price) == (Decimal("0.05"), None)


def test_a_quota_of_storage_counts_the_claims() -> None:
    hard = {"requests.storage": "1Ti", "persistentvolumeclaims": "4"}
    steps = [plans.same(each) for each in (plans.quota(**hard), plans.claim(size="100Gi"))]
    views = list(after(changes(plans.plan(*steps).steps)))
    found = {row.resource: row.asked for row in limits(views, demands(views), [], PRICES, "prod")}
    assert (found["persistentvolumeclaims"], found["requests.storage"]) == (1, 100 * 2**30)


def test_unknown_number_of_pods_is_noted() -> None:
    found = demands(after(changes(plans.plan(plans.same(plans.agents())).steps)))
    assert uncounted(found, PRICES, "elsewhere") == []
    (note,) = uncounted(found, PRICES, "prod")
    assert note == (
        "DaemonSet agents: the number of its pods is unknown, so its CPUs and memory are not "
        "counted."
    )
