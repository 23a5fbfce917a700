"""Recording rules for third-party model servers.

The rules copy the servers' series to the names that this project's model server uses, so that
alerts, dashboards and autoscalers work for every runtime.
"""

from collections.abc import Mapping
from typing import Any, Final

from infra.observability.alerts import group
from infra.observability.rules import NOT_TERMINATED, Recording
from infra.serving.runtimes import Runtime
from infra.serving.runtimes.runtime import IN_FLIGHT, READY, SUM_BY_POD


def server_groups(servers: Mapping[str, Runtime], interval_seconds: int) -> list[dict[str, Any]]:
    """Return a list with the rule group for the servers, or [] if there are no servers.

    `servers` maps the names of services to their runtimes.
    """
    if not servers:
        return []
    recorded = dict.fromkeys(
        recording for runtime in servers.values() for recording in _recordings(runtime)
    )
    rules = [*recorded, Recording(READY, _ready(servers))]
    manifests = [rule.manifest() for rule in rules]
    return [group("gpu-platform-servers", manifests, interval_seconds)]


def _recordings(runtime: Runtime) -> list[Recording]:
    in_flight = runtime.in_flight("")
    recordings = [Recording(name, expr) for name, expr in runtime.recordings.items()]
    if in_flight is not None and not runtime.exports_in_flight:
        recordings.append(Recording(IN_FLIGHT, f"{SUM_BY_POD} ({in_flight})"))
    return recordings


_WORKERS: Final = ".+-[0-9]+-[0-9]+"
"""Regular expression for the names of all pods of a LeaderWorkerSet except the leaders."""


def _ready(servers: Mapping[str, Runtime]) -> str:
    """Return a query whose value is 1 for each pod that is ready, and 0 for other pods.

    The query includes only the leaders of a LeaderWorkerSet, because its workers have no probes.
    """
    names = "|".join(sorted(servers))
    label = "label_gpu_platform_dev_service"
    named = (
        f'label_replace(kube_pod_labels{{{label}=~"{names}", pod!~"{_WORKERS}"}}, '
        f'"service", "$1", "{label}", "(.+)")'
    )
    return (
        f"max by (namespace, service, pod) ({named} * on (namespace, pod) group_left () "
        f'max by (namespace, pod) (kube_pod_status_ready{{condition="true"}}) * {NOT_TERMINATED})'
    )
