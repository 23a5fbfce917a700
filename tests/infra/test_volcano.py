from infra.settings.volcano import PriorityClassSettings, QueueSettings
from infra.volcano import parents_first, priority_class, queue


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
        }
    )
    assert queue("research", settings)["spec"] == {
        "weight": 3,
        "reclaimable": False,
        "capability": {"nvidia.com/gpu": "16"},
        "deserved": {"nvidia.com/gpu": "8"},
        "guarantee": {"resource": {"nvidia.com/gpu": "4"}},
        "parent": "root",
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
