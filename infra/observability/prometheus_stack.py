"""The chart kube-prometheus-stack: what its values must say for rules and dashboards to work."""

from collections.abc import Mapping
from typing import Any, Final

from infra.settings.monitoring import GrafanaSettings, KubePrometheusStackSettings
from kube.names import QUEUE_ANNOTATION, QUEUE_LABEL, RUN_LABEL, SERVICE_LABEL, WORKLOAD_LABEL

POD_LABELS: Final = (RUN_LABEL, WORKLOAD_LABEL, SERVICE_LABEL, QUEUE_LABEL)
NODE_LABELS: Final = ("nvidia.com/gpu.product",)
POD_ANNOTATIONS: Final = (QUEUE_ANNOTATION,)
"""What kube-state-metrics has to pass on."""


def chart_values(settings: KubePrometheusStackSettings, grafana: GrafanaSettings) -> dict[str, Any]:
    """The chart's values: those of the settings, over what the rules and dashboards need."""
    ours = {
        "kube-state-metrics": {
            "metricLabelsAllowlist": [
                _allowed("pods", POD_LABELS),
                _allowed("nodes", NODE_LABELS),
            ],
            "metricAnnotationsAllowList": [_allowed("pods", POD_ANNOTATIONS)],
        },
        "grafana": _grafana(grafana),
    }
    return _over(ours, settings.values)


def _allowed(resource: str, names: tuple[str, ...]) -> str:
    return f"{resource}=[{','.join(names)}]"


def _grafana(settings: GrafanaSettings) -> dict[str, Any]:
    """The sidecar looks for our ConfigMaps in their namespace; else the chart's own ways."""
    if not settings.dashboards:
        return {}
    ((label, value),) = settings.labels.items()
    found = {"enabled": True, "label": label, "labelValue": value, "searchNamespace": "ALL"}
    return {"sidecar": {"dashboards": found}}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays values over each other: mappings key by key, anything else as a whole."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _over(under, value) if both else value  # type: ignore[arg-type]
    return merged
