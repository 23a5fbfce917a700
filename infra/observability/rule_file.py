"""All rules together."""

from typing import Any

from infra.observability.alerts import alerts
from infra.observability.recording import recordings
from infra.observability.rule import group
from infra.settings.monitoring import MonitoringSettings


def rule_groups(settings: MonitoringSettings) -> list[dict[str, Any]]:
    """The groups of a rule file, which are those of a PrometheusRule as well."""
    every = settings.interval_seconds
    series = [rule.manifest() for rule in recordings(settings.gpu_prices, every)]
    groups = [group("gpu-platform-series", series, every)]
    for topic, found in alerts(settings.thresholds).items():
        told = [alert.manifest(settings.runbooks) for alert in found]
        groups.append(group(f"gpu-platform-{topic}", told, every))
    return groups
