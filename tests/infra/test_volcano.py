import yaml

from devcluster.paths import CHECKOUT
from infra.settings.volcano import PriorityClassSettings, QueueSettings, VolcanoSettings
from infra.volcano import chart_values, parents_first, priority_class, queue


def test_a_queue_says_only_what_is_configured() -> None:
    assert queue("research", QueueSettings())["spec"] == {"weight": 1, "reclaimable": True}


def test_a_queue_has_shares_and_limits() -> None:
    settings = QueueSettings.model_validate(
        {
            "weight": 3,
            "reclaimable": False,
            "capability": {"nvidia.com/gpu": 16},
            "deserved": {"nvidia.com/gpu": 8},
            "guarantee": {"nvidia.com/gpu": 4},
            "parent": "root",
            "priority": 5,
        }
    )
    assert queue("research", settings)["spec"] == {
        "weight": 3,
        "reclaimable": False,
        "capability": {"nvidia.com/gpu": "16"},
        "deserved": {"nvidia.com/gpu": "8"},
        "guarantee": {"resource": {"nvidia.com/gpu": "4"}},
        "parent": "root",
        "priority": 5,
    }


def test_queues_are_made_after_their_parents() -> None:
    queues = {
        "leaf": QueueSettings(parent="middle"),
        "other": QueueSettings(),
        "middle": QueueSettings(parent="top"),
        "top": QueueSettings(parent="root"),
    }
    assert parents_first(queues) == ["top", "middle", "leaf", "other"]


def test_a_circle_of_queues_ends() -> None:
    queues = {"a": QueueSettings(parent="b"), "b": QueueSettings(parent="a")}
    assert sorted(parents_first(queues)) == ["a", "b"]


def test_a_priority_class_is_built() -> None:
    settings = PriorityClassSettings(value=100, preemption="Never", description="Training")
    assert priority_class("training", settings) == {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "training"},
        "value": 100,
        "preemptionPolicy": "Never",
        "description": "Training",
    }


def test_the_chart_gets_the_schedulers_configuration_beside_its_values() -> None:
    settings = VolcanoSettings.model_validate(
        {
            "values": {
                "basic": {"image_registry": "registry"},
                "custom": {"admission_replicas": 2},
            },
            "scheduler": {"share": "capacity"},
            "queues": {"top": {}, "below": {"parent": "top"}},
        }
    )
    values = chart_values(settings)
    assert values["basic"] == {"image_registry": "registry"}
    assert values["custom"]["admission_replicas"] == 2
    (tier,) = yaml.safe_load(values["custom"]["scheduler_config_override"])["tiers"]
    assert {"name": "capacity", "enableHierarchy": True} in tier["plugins"]


def test_a_text_of_ones_own_is_left_as_it_is() -> None:
    text = "actions: allocate\ntiers: []\n"
    values = {"custom": {"scheduler_config_override": text}}
    assert (
        chart_values(VolcanoSettings(values=values))["custom"].items() >= values["custom"].items()
    )


def test_the_controllers_have_the_pace_that_is_configured() -> None:
    settings = VolcanoSettings.model_validate(
        {
            "controllers": {"requests_per_second": 200, "burst": 400},
            "values": {"custom": {"controller_worker_threads": 4}},
        }
    )
    custom = chart_values(settings)["custom"]
    assert custom["controller_kube_api_qps"] == 200
    assert custom["controller_kube_api_burst"] == 400
    assert custom["controller_worker_threads"] == 4
    assert custom["controller_worker_threads_for_podgroup"] == 10


def test_the_logs_are_as_detailed_as_is_configured() -> None:
    custom = chart_values(VolcanoSettings(log_level=4))["custom"]
    assert custom["scheduler_log_level"] == custom["controller_log_level"] == 4
    of_ones_own = VolcanoSettings(values={"custom": {"scheduler_log_level": 5}})
    assert chart_values(of_ones_own)["custom"]["scheduler_log_level"] == 5


def test_the_webhooks_are_on_in_production() -> None:
    config = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text())["config"]
    settings = VolcanoSettings.model_validate(config["gpu-platform:volcano"])
    assert chart_values(settings)["custom"]["admission_enable"] is True
