"""Every dashboard, as a ConfigMap that Grafana's sidecar takes up."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from infra.manifests import Manifest
from infra.observability.dashboards import cluster, cost, inference, one_run, queues
from infra.observability.dashboards.page import Page
from infra.settings.monitoring import MonitoringSettings

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

PAGES: Final[dict[str, Callable[[MonitoringSettings], Page]]] = {
    "cluster": cluster.page,
    "queues": queues.page,
    "run": one_run.page,
    "inference": inference.page,
    "cost": cost.page,
}


def dashboards(settings: MonitoringSettings) -> dict[str, "Dashboard"]:
    """Grafana's own objects, by name."""
    from infra.observability.dashboards.building import build

    return {name: build(name, page(settings)) for name, page in PAGES.items()}


def config_maps(
    settings: MonitoringSettings, metadata: Callable[[str], Manifest]
) -> list[Manifest]:
    """A ConfigMap for each; `metadata` is asked with its name."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    made: list[Manifest] = []
    for name, dashboard in dashboards(settings).items():
        described = metadata(f"gpu-platform-dashboard-{name}")
        described["labels"] = {**described["labels"], **settings.grafana.labels}
        text = JSONEncoder(sort_keys=True, indent=1).encode(dashboard)
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": described,
                "data": {f"gpu-platform-{name}.json": text},
            }
        )
    return made
