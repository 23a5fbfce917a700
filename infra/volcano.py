"""Volcano: its chart release, scheduler configuration, queues and priority classes."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi
import yaml

from infra.component import Component, KubernetesObject, chart_release, on_error
from infra.configuration import RegistryLogin
from infra.manifests import PULL_SECRET, Manifest, compact, from_namespaces, standard_labels
from infra.observability import scraping
from infra.settings import StackSettings
from infra.settings.volcano import (
    FIRST_WITH_TOPOLOGY,
    OVERCOMMIT,
    OVERRIDE,
    PriorityClassSettings,
    QueueSettings,
    SchedulerSettings,
    SlaSettings,
    VolcanoSettings,
)
from kube.accelerators import NVIDIA_GPU
from kube.names import SCHEDULING_GROUP


@dataclass(frozen=True, kw_only=True)
class VolcanoArgs:
    """Volcano settings. `rendering` is True if manifests are rendered without a cluster.

    If `isolated`, a NetworkPolicy allows only connections to Volcano's webhooks, and scrape
    requests from the namespaces in `scraped_from`. By default, the scheduler packs pods by
    `gpu_resource`.
    """

    volcano: VolcanoSettings
    gpu_resource: str = NVIDIA_GPU
    rendering: bool = False
    login: RegistryLogin | None = None
    isolated: bool = False
    scraped_from: Sequence[str] = ()

    @classmethod
    def of(cls, settings: StackSettings, login: RegistryLogin | None) -> Self:
        """Build the arguments from the stack's settings."""
        return cls(
            volcano=settings.volcano,
            gpu_resource=settings.gpu.offered,
            rendering=settings.cluster.rendering,
            login=login,
            isolated=settings.tenancy.network.isolate,
            scraped_from=settings.monitoring.scraped_from,
        )


class Volcano(Component):
    """The scheduler, its queues and priority classes."""

    queues: list[str]
    """Names of the queues that accept jobs: the queues without child queues."""

    def __init__(
        self, name: str, args: VolcanoArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("Volcano", name, opts)
        settings = args.volcano
        image_registry = str(settings.values.get("basic", {}).get("image_registry"))
        login = args.login if args.login and args.login.serves(image_registry) else None
        values = chart_values(settings, args.gpu_resource, use_pull_secret=login is not None)
        release: list[pulumi.Resource] = []
        if settings.install:
            release = chart_release(
                self, name, "volcano", settings, values, rendering=args.rendering, login=login
            )
            if args.isolated:
                self.create(f"{name}-network", network_policy(args), self.options(after=release))
        for key, priority in settings.priority_classes.items():
            options = self.options(after=release)
            self.create(f"{name}-priority-{key}", priority_class(key, priority), options)
        self.queue_objects: dict[str, KubernetesObject] = {}
        """All queues by name. Not an output of the component."""
        retry = on_error(f"{name}-queue", retry_queue)
        for key in parents_first(settings.queues):
            parent = self.queue_objects.get(settings.queues[key].parent or "")
            parents = [parent] if parent else []
            manifest = queue(key, settings.queues[key])
            options = pulumi.ResourceOptions.merge(self.options(after=[*release, *parents]), retry)
            self.queue_objects[key] = self.create(
                f"{name}-queue-{key}", manifest, options, references=parents
            )
        self.queues = settings.leaf_queues
        self.register_outputs({"queues": self.queues})


def chart_values(
    settings: VolcanoSettings, gpu_resource: str = NVIDIA_GPU, *, use_pull_secret: bool = False
) -> dict[str, Any]:
    """Return the chart values that the settings determine, overridden by the `values` setting.

    `use_pull_secret` is True if the namespace has the registry's pull secret.
    """
    values_from_settings = {**settings.controllers.chart_values(), **settings.log_values}
    custom = {**values_from_settings, **settings.values.get("custom", {})}
    if not settings.custom_configuration:
        hierarchical = settings.hierarchical
        custom[OVERRIDE] = scheduler_configuration(
            settings.scheduler,
            gpu_resource,
            hierarchical=hierarchical,
            topology=settings.release >= FIRST_WITH_TOPOLOGY,
        )
    values = {**settings.values, "custom": custom}
    if use_pull_secret:
        values["basic"] = {"image_pull_secret": PULL_SECRET, **settings.values["basic"]}
    return values


def parents_first(queues: dict[str, QueueSettings]) -> list[str]:
    """Return the queue names, parents first. In a cycle, the queue visited first comes last."""
    ordered: list[str] = []

    def visit(name: str, path: frozenset[str]) -> None:
        if name in queues and name not in path and name not in ordered:
            visit(queues[name].parent or "", path | {name})
            ordered.append(name)

    for name in queues:
        visit(name, frozenset())
    return ordered


_RETRY_DELAYS: Final = (1, 2, 4, 8, 15, 15, 15)
"""Delay (s) before each retry of an operation that Volcano's webhook did not answer."""
_OUTDATED_CACHE: Final = re.compile(r"because it has \d+ child queues|failed to get parent queue")
"""Webhook errors that may be transient: the webhook reads parent and child queues from a cache,
which is briefly outdated after one of them is created or deleted."""
_CACHE_RETRIES: Final = 3


async def retry_queue(failed: pulumi.ErrorHookArgs) -> bool:
    """Return whether to retry a failed operation on a queue. Wait before returning True.

    Helm's installation finishes as soon as the webhook's pod is running, although the pod may not
    be listening yet. Later, the webhook's cache of queues may be briefly outdated.
    """
    error, attempts = failed.errors[0], len(failed.errors)
    if "timed out waiting" in error:
        pulumi.log.warn(
            f"{failed.name}: Volcano's controllers have not opened the queue. Check that they are "
            "running: kubectl get pods -A -l app=volcano-controller"
        )
    retries = len(_RETRY_DELAYS) if "failed calling webhook" in error else 0
    if _OUTDATED_CACHE.search(error):
        retries = _CACHE_RETRIES
    if attempts > retries:
        return False
    await asyncio.sleep(_RETRY_DELAYS[attempts - 1])
    return True


# Volcano's webhook rejects jobs in a queue that the controllers have not opened yet, so Pulumi
# waits until the queue has a state. Any state is accepted, because a queue may be closed.
_WAIT_ANNOTATIONS: Final = {
    "pulumi.com/waitFor": "jsonpath={.status.state}",
    "pulumi.com/timeoutSeconds": "120",
}


def queue(name: str, settings: QueueSettings) -> Manifest:
    """Return a queue."""
    return {
        "apiVersion": f"{SCHEDULING_GROUP}/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": _WAIT_ANNOTATIONS},
        "spec": compact(
            {
                "weight": settings.weight,
                "priority": settings.priority,
                "reclaimable": settings.reclaimable,
                "capability": settings.capability,
                # Since 1.14, the webhook requires `deserved` even if the scheduler ignores it.
                "deserved": settings.deserved_at_least,
                "guarantee": compact({"resource": settings.guarantee}),
                "parent": settings.parent,
            }
        ),
    }


_CHART_PODS: Final = {
    "key": "app",
    "operator": "In",
    "values": ["volcano-admission", "volcano-controller", "volcano-scheduler"],
}
"""Label selector for the chart's pods."""


def network_policy(args: VolcanoArgs) -> Manifest:
    """Return the NetworkPolicy for Volcano's pods.

    A NetworkPolicy cannot select the API server, so the webhooks accept connections from anywhere,
    and all egress is allowed.
    """
    webhooks = args.volcano.values.get("basic", {}).get("admission_port", 8443)
    ports = {int(target.port) for target in scraping.volcano(args.volcano.namespace)}
    scraped = [from_namespaces(args.scraped_from, sorted(ports))] if args.scraped_from else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": "volcano",
            "namespace": args.volcano.namespace,
            "labels": standard_labels("volcano", "volcano"),
        },
        "spec": {
            # The chart may be installed in a namespace that has other pods.
            "podSelector": {"matchExpressions": [_CHART_PODS]},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": webhooks, "protocol": "TCP"}]}, *scraped],
        },
    }


def priority_class(name: str, settings: PriorityClassSettings) -> Manifest:
    """Return a priority class."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": settings.value,
        "preemptionPolicy": settings.preemption,
        "description": settings.description,
    }


_PLACEMENT_WEIGHT: Final = 10
"""Weight of the score that implements `placement`. nodeorder's other scores have weights 1 to 3."""


def scheduler_configuration(
    settings: SchedulerSettings,
    gpu_resource: str = NVIDIA_GPU,
    *,
    hierarchical: bool,
    topology: bool = True,
) -> str:
    """Return the text of `volcano-scheduler.conf`.

    `hierarchical` is True if queues have parents. `topology` is True if Volcano has the network
    topology plugin. The configuration keys are defined in Volcano's `pkg/scheduler/conf` and are
    the same from 1.10 to 1.15.
    """
    # All plugins that select victims are in one tier. With several tiers, the first tier that
    # selects any victims would decide alone, and a queue could lose pods within its share
    # (`Session.Reclaimable`).
    plugins: dict[str, dict[str, Any] | None] = {
        "priority": {} if settings.priority else None,
        "gang": {
            "enablePreemptable": settings.preempt == "surplus",
            "enableReclaimable": settings.reclaim == "surplus",
        },
        "conformance": {},
        "overcommit": _overcommit(settings),
        # drf ignores priorities when it selects victims.
        "drf": {"enablePreemptable": False} if settings.drf else None,
        "predicates": {},
        settings.share: {"enableHierarchy": True} if hierarchical else {},
        "nodeorder": _node_order(settings),
        "binpack": _binpack(settings, gpu_resource),
        "network-topology-aware": {} if topology else None,
    }
    used = [{"name": name, **options} for name, options in plugins.items() if options is not None]
    tiers = [{"plugins": used}]
    if settings.sla is not None:
        tiers.insert(0, {"plugins": [_sla(settings.sla)]})
    document = {"actions": ", ".join(_actions(settings)), "tiers": tiers}
    return yaml.safe_dump(document, sort_keys=False)


def _actions(settings: SchedulerSettings) -> list[str]:
    enabled = {
        "enqueue": settings.enqueues,
        "allocate": True,
        "preempt": settings.preempt != "none",
        "reclaim": settings.reclaim != "none",
        "backfill": settings.backfill,
    }
    return [action for action, is_enabled in enabled.items() if is_enabled]


def _overcommit(settings: SchedulerSettings) -> dict[str, Any] | None:
    if not settings.enqueues:
        return None
    return {"arguments": {"overcommit-factor": settings.overcommit or OVERCOMMIT}}


def _sla(settings: SlaSettings) -> dict[str, Any]:
    # Volcano follows the votes of the sla plugin only if the plugin is in the first tier.
    # enableJobOrder is off, so that priorities still determine the order of the jobs.
    return {
        "name": "sla",
        "enableJobOrder": False,
        "enableJobPipelined": settings.reserve,
        "arguments": {"sla-waiting-time": f"{settings.longest_wait_seconds}s"},
    }


def _node_order(settings: SchedulerSettings) -> dict[str, Any]:
    # By default, nodeorder prefers the emptiest node, the opposite of binpack.
    weight = 0 if settings.placement == "binpack" else _PLACEMENT_WEIGHT
    return {"arguments": {"leastrequested.weight": weight}}


def _binpack(settings: SchedulerSettings, gpu_resource: str) -> dict[str, Any] | None:
    if settings.placement != "binpack":
        return None
    # `binpack.resources` lists the devices; CPU and memory have separate keys.
    by_default = {gpu_resource: 10, "cpu": 1, "memory": 1}
    weights = dict(by_default if settings.pack_by is None else settings.pack_by)
    basic = {f"binpack.{name}": weights.pop(name, 0) for name in ("cpu", "memory")}
    devices = {"binpack.resources": ", ".join(weights)} if weights else {}
    each = {f"binpack.resources.{name}": weight for name, weight in weights.items()}
    return {"arguments": {"binpack.weight": _PLACEMENT_WEIGHT, **basic, **devices, **each}}
