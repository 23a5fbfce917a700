"""Every alert, by what it is about."""

from typing import Final

from infra.observability.alerts import gpus, queues, serving, training
from infra.observability.rule import Alert
from infra.settings.monitoring import Thresholds

TOPICS: Final = {
    "gpus": gpus.alerts,
    "training": training.alerts,
    "queues": queues.alerts,
    "serving": serving.alerts,
}


def alerts(limits: Thresholds) -> dict[str, list[Alert]]:
    """The alerts of each topic."""
    return {topic: build(limits) for topic, build in TOPICS.items()}
