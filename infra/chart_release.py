"""The release of a chart in a privileged namespace of its own."""

from typing import Any

import pulumi
from pulumi_kubernetes.helm.v3 import Release, ReleaseArgs, RepositoryOptsArgs

from infra.component import Component
from infra.manifests import privileged_namespace
from infra.settings.monitoring import KubePrometheusStackSettings
from infra.settings.volcano import VolcanoSettings

Chart = VolcanoSettings | KubePrometheusStackSettings


def chart_release(
    parent: Component,
    prefix: str,
    release: str,
    chart: Chart,
    values: dict[str, Any],
    *,
    rendering: bool,
) -> list[pulumi.Resource]:
    """Resources that everything of the chart's has to wait for; none where it is not installed.

    `prefix` begins the logical names, `release` is the name in the cluster. Where manifests are
    only rendered, the release is left out with a warning: it needs a cluster.
    """
    if not chart.install:
        return []
    namespace = parent.create(f"{prefix}-namespace", privileged_namespace(chart.namespace, release))
    if rendering:
        pulumi.log.warn(
            f"The release of chart {chart.chart} {chart.version} is not among the manifests, "
            "because a chart release needs a cluster: install it from "
            f"{chart.repository} with the values of this stack.",
            parent,
        )
        return [namespace]
    return [
        Release(
            f"{prefix}-release",
            ReleaseArgs(
                name=release,
                chart=chart.chart,
                version=chart.version,
                namespace=chart.namespace,
                repository_opts=RepositoryOptsArgs(repo=chart.repository),
                values=values,
                timeout=chart.timeout_seconds,
            ),
            parent.options(after=[namespace]),
        )
    ]
