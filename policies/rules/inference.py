"""Rules about serving: probes, availability while nodes are drained, and autoscaled replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.workloads.serving import PROBES
from policies.availability import is_spread, protects, selects
from policies.commands import always_succeeds
from policies.controllers import Workload
from policies.rule import (
    Level,
    Rule,
    Severity,
    Violation,
    pod_rule,
    show,
    stack_rule,
    workload_rule,
)
from policies.settings import NoConfig, RoleConfig
from policies.values import UNKNOWN
from policies.views import Stack
from policies.workloads import Container, Pod

_HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc")
_METRICS_PORT = re.compile(r"metrics|prom(etheus)?$")
"""Pattern of the names of ports that Prometheus scrapes."""


class SpreadConfig(RoleConfig):
    """Configuration of `inference-spread`."""

    topology_keys: list[str] = Field(
        default=["kubernetes.io/hostname", "topology.kubernetes.io/zone"],
        description="Node labels whose values distinguish nodes or zones.",
    )


def _serving_containers(pod: Pod, config: RoleConfig) -> list[Container]:
    """Return the main containers that receive requests or use GPUs; if none do, return all."""
    main = [container for container in pod.containers if container.kind == "main"]
    serving = [
        container
        for container in main
        if _receives_requests(container) or container.requests_gpu(config.accelerators)
    ]
    return serving or main


def _receives_requests(container: Container) -> bool:
    """Return whether a container has ports for requests, unlike a metrics exporter."""
    ports = container.node["ports"]
    names = [port["name"].text or "" for port in ports.items()]
    return not ports.absent and not (names and all(map(_METRICS_PORT.search, names)))


@pod_rule(
    name="inference-probes",
    description="Inference containers have readiness, liveness and startup probes.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set the three probes; the startup probe gives a large model time to load.",
    config=RoleConfig,
)
def inference_probes(pod: Pod, config: RoleConfig) -> Iterator[Violation]:
    """Without probes, traffic reaches servers that have no model yet or that hang.

    If a replica is a group of pods with a leader that serves, only the leader needs probes.
    """
    if pod.role(config) != "serving" or _is_follower(pod, config):
        return
    for container in _serving_containers(pod, config):
        for key in ("readinessProbe",) if _is_probed_by_proxy(pod) else PROBES:
            probe = container.node[key]
            example = 'such as {"httpGet": {"path": …, "port": …}}'
            if probe.known and all(probe[handler].absent for handler in _HANDLERS):
                yield Violation(probe, f"a probe, {example}")
            elif always_succeeds(probe):
                expected = f"a probe that fails if the server fails, {example}"
                yield Violation(probe["exec"]["command"], expected)


def _is_follower(pod: Pod, config: RoleConfig) -> bool:
    """Return whether another pod of the same replica receives the requests and needs the probes."""
    leaders = (other for other in pod.siblings if not other.has_leader)
    return pod.has_leader and any(leader.role(config) == "serving" for leader in leaders)


def _is_probed_by_proxy(pod: Pod) -> bool:
    """Return whether a proxy, such as Knative's queue-proxy, probes and restarts the container."""
    proxy = pod.resource.record.proxy if pod.resource.record is not None else None
    if proxy is None or not proxy.annotation:
        return proxy is not None
    return pod.resource.annotations[proxy.annotation].value in (None, *proxy.values, UNKNOWN)


def _replicas(workload: Workload, config: RoleConfig) -> Decimal | None:
    """Return the number of serving replicas; None if unknown."""
    return workload.replicas(pod for pod in workload.pods if pod.role(config) == "serving")


def _min_replicas(workload: Workload, stack: Stack, config: RoleConfig) -> Decimal | None:
    """Return the number of replicas or, if larger, the autoscaler's minimum; None if unknown."""
    replicas = _replicas(workload, config)
    if replicas is None:
        return None
    return max(replicas, stack.scalings.minimum(workload.resource) or Decimal(0))


@workload_rule(
    name="inference-spread",
    description="The replicas of an inference workload are spread across nodes.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Set topologySpreadConstraints with topologyKey kubernetes.io/hostname.",
    config=SpreadConfig,
)
def inference_spread(workload: Workload, config: SpreadConfig) -> Iterator[Violation]:
    """Replicas on one node fail together."""
    replicas = _replicas(workload, config)
    if replicas is None or replicas <= 1:
        return
    for pod in workload.pods:
        spread = pod.spec["topologySpreadConstraints"]
        affinity = pod.spec["affinity"]["podAntiAffinity"]
        applies = pod.role(config) == "serving" and spread.known and affinity.known
        labels = pod.selectable_labels
        if applies and not is_spread(pod.spec, labels, replicas, config.topology_keys):
            yield Violation(
                spread, "a constraint with topologyKey kubernetes.io/hostname for these pods"
            )


@stack_rule(
    name="inference-disruption-budget",
    description="Inference workloads with several replicas have a PodDisruptionBudget.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Declare a PodDisruptionBudget that selects the pods.",
    config=RoleConfig,
)
def inference_disruption_budget(stack: Stack, config: RoleConfig) -> Iterator[Violation]:
    """Without a budget, draining several nodes may evict all replicas at once."""
    for workload in stack.workloads:
        pods = [pod for pod in workload.pods if pod.role(config) == "serving"]
        replicas = _min_replicas(workload, stack, config)
        if not pods or replicas is None or replicas <= 1:
            continue
        budgets = [
            budget
            for budget in stack.of_kind("policy", "PodDisruptionBudget")
            if None in (budget.namespace, workload.resource.namespace)
            or budget.namespace == workload.resource.namespace
            if selects(budget.root["spec"]["selector"], pods[0].selectable_labels)
            and protects(budget, replicas)
        ]
        if not budgets:
            labels = pods[0].selectable_labels
            yield Violation(
                labels,
                "a PodDisruptionBudget that selects these pods and keeps at least one replica "
                "available",
                found=f"{show(labels.value)} and no PodDisruptionBudget that selects them",
                resource=workload.resource,
            )


@stack_rule(
    name="autoscaled-without-replicas",
    description="Workloads with an autoscaler have no fixed number of replicas.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Remove replicas; the autoscaler's minimum applies.",
    config=NoConfig,
)
def autoscaled_without_replicas(stack: Stack, config: NoConfig) -> Iterator[Violation]:
    """A fixed count would make every update undo the autoscaler's scaling."""
    for resource in stack.resources:
        replicas = resource.root["spec"]["replicas"]
        for scaling in stack.scalings.for_target(resource) if replicas.present else ():
            if not scaling.exclusive:
                continue
            expected = f"nothing: {scaling.scaler.title} sets the number"
            yield Violation(replicas, expected, resource=resource)


RULES: list[Rule[Any]] = [
    inference_probes,
    inference_spread,
    inference_disruption_budget,
    autoscaled_without_replicas,
]
