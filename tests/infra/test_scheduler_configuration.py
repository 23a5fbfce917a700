from typing import Any

import pytest
import yaml

from infra.scheduler_configuration import scheduler_configuration
from infra.settings.scheduler import SchedulerSettings


def configuration(**settings: Any) -> dict[str, Any]:
    """Volcano's configuration as it reads it."""
    hierarchical = settings.pop("hierarchical", False)
    made = SchedulerSettings.model_validate(settings)
    return dict(yaml.safe_load(scheduler_configuration(made, hierarchical=hierarchical)))


def plugins(**settings: Any) -> dict[str, dict[str, Any]]:
    """Options of the plugins of the last tier, by name."""
    *_, tier = configuration(**settings)["tiers"]
    return {plugin.pop("name"): plugin for plugin in tier["plugins"]}


def test_without_settings_jobs_wait_by_weight_and_nobody_is_pushed_out() -> None:
    assert configuration()["actions"] == "enqueue, allocate, backfill"
    assert list(plugins()) == [
        *("priority", "gang", "conformance", "overcommit", "drf", "predicates"),
        *("proportion", "nodeorder", "binpack"),
    ]


def test_all_that_judges_victims_is_in_one_tier() -> None:
    (tier,) = configuration(preempt="gangs", reclaim="gangs")["tiers"]
    names = {plugin["name"] for plugin in tier["plugins"]}
    assert {"priority", "gang", "conformance", "proportion"} <= names


def test_where_jobs_are_pushed_out_none_is_held_back() -> None:
    for settings in ({"preempt": "gangs"}, {"reclaim": "surplus"}):
        assert "enqueue" not in configuration(**settings)["actions"]
        assert "overcommit" not in plugins(**settings)


@pytest.mark.parametrize(
    ("action", "option"), [("preempt", "enablePreemptable"), ("reclaim", "enableReclaimable")]
)
def test_the_gang_plugin_protects_gangs_only_where_they_are_to_stay_whole(
    action: str, option: str
) -> None:
    assert plugins(**{action: "surplus"})["gang"][option] is True
    assert plugins(**{action: "gangs"})["gang"][option] is False
    assert action in configuration(**{action: "gangs"})["actions"]


def test_drf_orders_jobs_and_never_names_victims() -> None:
    assert plugins()["drf"] == {"enablePreemptable": False}
    assert "drf" not in plugins(drf=False)


def test_packing_counts_gpus_and_spreading_does_not_pack() -> None:
    packed = plugins()
    assert packed["binpack"]["arguments"]["binpack.resources"] == "nvidia.com/gpu"
    assert packed["binpack"]["arguments"]["binpack.resources.nvidia.com/gpu"] == 10
    assert packed["nodeorder"]["arguments"] == {"leastrequested.weight": 0}
    spread = plugins(placement="spread")
    assert "binpack" not in spread
    assert spread["nodeorder"]["arguments"]["leastrequested.weight"] > 0


def test_packing_by_two_devices_and_nothing_else() -> None:
    arguments = plugins(pack_by={"a.example.com/x": 2, "b.example.com/y": 3})["binpack"][
        "arguments"
    ]
    assert arguments["binpack.resources"] == "a.example.com/x, b.example.com/y"
    assert arguments["binpack.resources.b.example.com/y"] == 3
    assert (arguments["binpack.cpu"], arguments["binpack.memory"]) == (0, 0)


def test_who_has_waited_too_long_is_let_in_before_others_are_asked() -> None:
    first, second = configuration(sla={"longest_wait_seconds": 7200})["tiers"]
    assert first["plugins"] == [
        {
            "name": "sla",
            "enableJobOrder": False,
            "enableJobPipelined": True,
            "arguments": {"sla-waiting-time": "7200s"},
        }
    ]
    assert "overcommit" in {plugin["name"] for plugin in second["plugins"]}


def test_parents_are_the_capacity_plugins_own() -> None:
    assert plugins(share="capacity", hierarchical=True)["capacity"] == {"enableHierarchy": True}
    assert plugins(share="capacity")["capacity"] == {}
