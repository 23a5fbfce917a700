"""Monitoring: scraping, rules, alerts, dashboards and NVIDIA's DCGM exporter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import pulumi
import yaml

from infra.component import Component, chart_release
from infra.configuration import RegistryLogin
from infra.manifests import NOT_AWAITED, Manifest, from_namespaces, standard_labels
from infra.observability import dcgm_exporter, scraping
from infra.observability.alerts import rule_groups, server_groups
from infra.observability.dashboards import config_maps
from infra.pods import GpuNodes
from infra.serving.runtimes.runtime import Runtime
from infra.settings import StackSettings
from infra.settings.monitoring import RELEASE, MonitoringSettings
from kube.names import MONITORING_GROUP, WORKLOAD_LABEL


@dataclass(frozen=True, kw_only=True)
class MonitoringArgs:
    """Monitoring settings and the namespaces to scrape.

    `ports` are the metrics ports of workloads. `servers` maps each service or canary that runs a
    third-party server to its runtime. `rollback_seconds` are the intervals (s) at which canaries
    are evaluated. `rendering` is True if manifests are rendered without a cluster.
    """

    monitoring: MonitoringSettings
    namespace: str
    volcano_namespace: str
    gpu_nodes: GpuNodes
    ports: tuple[int, ...] = ()
    servers: Mapping[str, Runtime] = field(default_factory=dict)
    rollback_seconds: tuple[int, ...] = ()
    isolated: bool = False
    rendering: bool = False
    login: RegistryLogin | None = None

    @classmethod
    def of(cls, settings: StackSettings, gpu_nodes: GpuNodes, login: RegistryLogin | None) -> Self:
        """Build the arguments from the stack's settings."""
        return cls(
            monitoring=settings.monitoring,
            namespace=settings.tenancy.namespace,
            volcano_namespace=settings.volcano.namespace,
            gpu_nodes=gpu_nodes,
            ports=settings.metrics_ports,
            servers=settings.inference.other_servers,
            rollback_seconds=tuple(
                each.interval_seconds for each in settings.inference.rollbacks.values()
            ),
            isolated=settings.tenancy.network.isolate,
            rendering=settings.cluster.rendering,
            login=login,
        )


class Monitoring(Component):
    """Objects for Prometheus and Grafana. There are none if `monitoring.prometheus` is `none`."""

    def __init__(
        self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Monitoring", name, opts)
        chart, grafana = args.monitoring.kube_prometheus_stack, args.monitoring.grafana
        image_registry = str(chart.values.get("global", {}).get("imageRegistry"))
        login = args.login if args.login and args.login.serves(image_registry) else None
        # The chart's node exporters mount host paths, so its namespace is privileged.
        earlier: list[pulumi.Resource] = []
        if chart.install:
            values = scraping.chart_values(chart, grafana, use_pull_secret=login is not None)
            earlier = chart_release(
                self, name, RELEASE, chart, values, rendering=args.rendering, login=login
            )
        for manifest in manifests(args):
            resource_name = f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
            created = self.create(resource_name, manifest, self.options(after=earlier))
            if manifest["kind"] == "Namespace":
                earlier = [*earlier, created]
        self.register_outputs({})


def manifests(args: MonitoringArgs) -> list[Manifest]:
    """Return the objects in the order of creation."""
    settings = args.monitoring
    if settings.prometheus == "none":
        return []
    built: list[Manifest] = []
    if settings.dcgm_exporter.install:
        exporter, login = settings.dcgm_exporter, args.login
        in_registry = login is not None and login.serves(exporter.image)
        built += dcgm_exporter.manifests(
            exporter,
            args.gpu_nodes,
            scraped_from=settings.scraped_from if args.isolated else None,
            pull_secret=login.secret(exporter.namespace) if login and in_registry else None,
        )
    if args.isolated and args.ports and settings.scraped_from:
        built.append(_allow_prometheus(args))
    if settings.grafana.dashboards:
        built += config_maps(settings, lambda name: _metadata(args, name))
    if settings.prometheus == "plain":
        return [*built, _config_map(args)]
    monitors = [
        scraping.monitor(each, _metadata(args, each.name), settings.interval_seconds)
        for each in targets(args)
    ]
    return [*built, *monitors, _prometheus_rule(args)]


def targets(args: MonitoringArgs) -> list[scraping.Target]:
    """Return all scrape targets."""
    exporter, existing = args.monitoring.dcgm_exporter, args.monitoring.dcgm_exporter.existing
    gpus = []
    if exporter.install:
        selector = {"app.kubernetes.io/name": dcgm_exporter.EXPORTER}
        gpus = [scraping.dcgm(exporter.namespace, selector)]
    elif existing is not None:
        gpus = [scraping.dcgm(existing.namespace, existing.labels, existing.port)]
    return [
        *scraping.workloads(args.namespace, serving_seconds=_serving_seconds(args)),
        *scraping.volcano(args.volcano_namespace),
        *gpus,
    ]


def _prometheus_rule(args: MonitoringArgs) -> Manifest:
    return {
        "apiVersion": f"{MONITORING_GROUP}/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(args, "gpu-platform"),
        "spec": {"groups": _groups(args)},
    }


def _groups(args: MonitoringArgs) -> list[Manifest]:
    """Return the rule groups. Server groups come first, because alerts read their series."""
    servers = server_groups(args.servers, _serving_seconds(args))
    return [*servers, *rule_groups(args.monitoring)]


def _serving_seconds(args: MonitoringArgs) -> int:
    """Return the scrape interval (s) for services: at most the shortest rollback interval."""
    return min((args.monitoring.interval_seconds, *args.rollback_seconds))


def _config_map(args: MonitoringArgs) -> Manifest:
    """Return the ConfigMap for a Prometheus server without the operator.

    The ConfigMap is in Prometheus' namespace, because pods can mount only ConfigMaps in their own
    namespace.
    """
    configs = [
        scraping.scrape_config(each, args.monitoring.interval_seconds) for each in targets(args)
    ]
    namespace = next(iter(args.monitoring.scraped_from), args.namespace)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**_metadata(args, "gpu-platform-prometheus"), "namespace": namespace},
        "data": {
            "scrape.yaml": yaml.safe_dump({"scrape_configs": configs}, sort_keys=False),
            "rules.yaml": yaml.safe_dump({"groups": _groups(args)}, sort_keys=False, width=1000),
        },
    }


def _allow_prometheus(args: MonitoringArgs) -> Manifest:
    """Return the NetworkPolicy that lets Prometheus connect to the workloads' metrics ports."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(args, "allow-prometheus"),
        "spec": {
            "podSelector": {"matchExpressions": [{"key": WORKLOAD_LABEL, "operator": "Exists"}]},
            "policyTypes": ["Ingress"],
            "ingress": [from_namespaces(args.monitoring.scraped_from, args.ports)],
        },
    }


def _metadata(args: MonitoringArgs, name: str) -> Manifest:
    labels = dict(args.monitoring.labels) if args.monitoring.prometheus == "operator" else {}
    return {
        "name": name,
        "namespace": args.namespace,
        "labels": {**standard_labels("monitoring", name), **labels},
        "annotations": dict(NOT_AWAITED),
    }
