"""Storage costs of new, removed, resized and retained claims."""

from decimal import Decimal
from typing import Any

from gitops.preview.build import build
from gitops.preview.changes import changes
from gitops.preview.claims import storage_rows
from gitops.preview.markdown import render
from gitops.preview.report import Report, StorageRow
from gitops.prices import Prices
from tests.gitops import plans

PRICES = Prices.model_validate(
    {
        "currency": "EUR",
        "hours_per_month": 100,
        "products": {"big": {"on_demand": 4}},
        "hosts": {"plain": {"cpu": {"on_demand": 0.1}, "memory": {"on_demand": 0.0125}}},
        "storage": {"shared": 0.05, "fast": 0.2},
        "environments": {"prod": {"product": "big", "host": "plain", "storage_class": "shared"}},
    }
)


def rows(*steps: dict[str, Any], prices: Prices = PRICES) -> list[StorageRow]:
    return storage_rows(changes(plans.plan(*steps).steps), prices, "prod")


def report(*steps: dict[str, Any]) -> Report:
    return build(plans.plan(*steps), stack="prod", prices=PRICES)


def test_new_claim_is_charged_for_its_size() -> None:
    (row,) = rows(plans.step("create", new=plans.claim_of_class("fast")))
    assert (row.claim, row.namespace, row.storage_class) == ("datasets", "ml", "fast")
    assert (row.now, row.after, row.price) == (0, 100, Decimal("0.2"))
    assert (row.now_month, row.after_month) == (0, 20)


def test_a_larger_claim_costs_the_difference() -> None:
    old, new = (plans.claim_of_class("fast", size) for size in ("100Gi", "1Ti"))
    (row,) = rows(plans.step("update", old, new))
    assert (row.now_month, row.after_month) == (20, Decimal("204.8"))


def test_a_removed_claim_no_longer_costs_anything() -> None:
    (row,) = rows(plans.step("delete", plans.claim_of_class("fast")))
    assert (row.after, row.now_month, row.after_month, row.stays) == (0, 20, 0, False)


def test_removed_but_retained_claim_is_not_a_saving() -> None:
    (row,) = rows(plans.step("delete", plans.claim_of_class("fast"), retain=True))
    assert (row.after, row.now_month, row.after_month, row.stays) == (100, 20, 20, True)


def test_removed_claim_with_retained_volume_is_not_a_saving() -> None:
    retaining = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "fast"},
        "reclaimPolicy": "Retain",
    }
    (row,) = rows(plans.same(retaining), plans.step("delete", plans.claim_of_class("fast")))
    assert (row.now_month, row.after_month, row.stays) == (20, 20, True)


def test_renamed_claim_costs_twice_if_the_old_one_is_retained() -> None:
    old, new = (plans.claim_of_class("fast", name=name) for name in ("old", "new"))
    kept = rows(plans.step("replace", old, new, retain=True))
    assert [(row.claim, row.after_month) for row in kept] == [("new", 20), ("old", 20)]
    gone = rows(plans.step("replace", old, new))
    assert [(row.claim, row.after_month) for row in gone] == [("new", 20), ("old", 0)]


def test_claim_without_a_class_uses_the_environments_default() -> None:
    (row,) = rows(plans.same(plans.claim()))
    assert (row.storage_class, row.after_month) == ("shared", Decimal("0.25"))


def test_unknown_price_or_size_is_not_a_saving() -> None:
    old, new = plans.claim_of_class("fast"), plans.claim_of_class("unheard-of")
    (row,) = rows(plans.step("replace", old, new))
    assert (row.now_month, row.after_month, row.price) == (20, None, None)
    (row,) = rows(plans.step("create", new=plans.claim_of_class("fast", plans.UNKNOWN)))
    assert (row.after, row.after_month) == (None, None)
    (row,) = rows(plans.step("create", new=plans.claim_of_class(plans.UNKNOWN)))
    assert (row.storage_class, row.after_month) == ("", None)


def test_report_has_no_storage_costs_without_storage_prices() -> None:
    plain = Prices.model_validate({"currency": "EUR"})
    assert rows(plans.same(plans.claim()), prices=plain) == []


def test_comment_lists_costs_that_gpu_prices_exclude() -> None:
    comment = render(
        report(
            plans.step("create", new=plans.claim_of_class("fast")),
            plans.step("delete", plans.claim_of_class("shared", name="old"), retain=True),
            plans.same(plans.deployment(gpus=0, replicas=1)),
            plans.same(plans.volcano_job(pods=1)),
        )
    )
    section = comment.split("### Cost of CPUs and memory and of storage in EUR\n")[1]
    assert section.startswith(
        """
|  | now | after | change |
| :-- | --: | --: | --: |
| CPUs and memory per hour, all pods running | 0.60 | 0.60 | 0 |
| CPUs and memory per month, at their utilization | 60.00 | 60.00 | 0 |
| storage per month | 5.00 | 25.00 | +20.00 |
| **all per month**, GPUs, CPUs and memory, storage | 465.00 | 485.00 | +20.00 |

<details>
<summary>By queue and by claim</summary>

| queue | unit | price per hour | utilization | month now | month after | change |
| :-- | :-- | --: | --: | --: | --: | --: |
| (no queue, serving) | cores, `plain` | 0.1 | 100% | 40.00 | 40.00 | 0 |
| (no queue, serving) | GiB of memory, `plain` | 0.0125 | 100% | 20.00 | 20.00 | 0 |

| claim | class | price per GiB | now | after | month now | month after | change |
| :-- | :-- | --: | --: | --: | --: | --: | --: |
| `ml/datasets` | `fast` | 0.2 | 0 | 100Gi | 0.00 | 20.00 | +20.00 |
| `ml/old` (stays in the cluster) | `shared` | 0.05 | 100Gi | 100Gi | 5.00 | 5.00 | 0 |

</details>

"""
    )
    assert "Not in the price table" not in comment


def test_comment_lists_storage_classes_without_a_price() -> None:
    comment = render(report(plans.step("delete", plans.claim_of_class("unheard-of"))))
    assert "| storage per month | unknown | 0.00 | unknown |" in comment
    assert "Not in the price table: `unheard-of`.\n" in comment


def test_cost_of_a_new_run_includes_separately_charged_cpus() -> None:
    host = PRICES.hosts["plain"].model_copy(update={"gpu_pods": True})
    charged = PRICES.model_copy(update={"hosts": {"plain": host}})
    plan = plans.plan(plans.step("create", new=plans.volcano_job(pods=1)))
    for table, hourly in ((PRICES, "4"), (charged, "4.6")):
        (run,) = build(plan, stack="prod", prices=table).new_runs
        assert run.cost_hour == Decimal(hourly)
