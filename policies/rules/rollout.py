"""Rules about updates without downtime, graceful shutdown, and the Services of routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from pydantic import Field

from kube.names import GATEWAY_GROUP
from kube.quantities import quantity_or_none
from policies.commands import sleep_seconds
from policies.controllers import Workload
from policies.resources import Resource
from policies.rule import (
    Level,
    Rule,
    RuleConfig,
    Severity,
    Violation,
    pod_rule,
    stack_rule,
    workload_rule,
)
from policies.settings import ExactNames, RoleConfig
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod

_DEFAULT_GRACE_SECONDS = Decimal(30)
_ROUTES = ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute")


class DrainConfig(RoleConfig):
    """Configuration of `inference-grace-period`."""

    drain_variables: list[str] = Field(
        default=["INFERENCE_NOTICE_SECONDS", "INFERENCE_DRAIN_SECONDS"],
        description="Environment variables with the number of seconds that a server takes to stop.",
    )


class BackendConfig(RuleConfig):
    """Configuration of `route-backends-declared`."""

    existing_services: ExactNames = Field(
        default=[],
        description="Services that exist without being declared in this stack, each as "
        "`namespace/name`.",
    )


@pod_rule(
    name="inference-grace-period",
    description="Inference pods have enough time to finish the requests in flight.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Raise terminationGracePeriodSeconds above the preStop pause plus the drain time.",
    config=DrainConfig,
)
def inference_grace_period(pod: Pod, config: DrainConfig) -> Iterator[Violation]:
    """A server that is killed while it drains loses the requests that it has accepted."""
    if pod.role(config) != "serving":
        return
    grace = pod.spec["terminationGracePeriodSeconds"]
    seconds = _DEFAULT_GRACE_SECONDS if grace.absent else quantity_or_none(grace.value)
    if seconds is None:
        return
    for container in pod.containers:
        if container.is_long_running:
            needed = sum(_stop_seconds(container.node, config.drain_variables), Decimal(0))
            if needed and needed >= seconds:
                expected = (
                    f"more than {needed} seconds, because {container.name} needs this time to stop"
                )
                yield Violation(grace, expected)


def _stop_seconds(container: Node, variables: Sequence[str]) -> Iterator[Decimal]:
    yield sleep_seconds(container["lifecycle"]["preStop"])
    for variable in container["env"].items():
        seconds = quantity_or_none(variable["value"].value)
        if variable["name"].text in variables and seconds is not None:
            yield seconds


@workload_rule(
    name="inference-rolling-update",
    description="A rolling update of an inference workload removes a pod only after a new one is "
    "ready. Without surge, it removes one pod at a time.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Use the RollingUpdate strategy, with maxUnavailable as stated in the message.",
    config=RoleConfig,
)
def inference_rolling_update(workload: Workload, config: RoleConfig) -> Iterator[Violation]:
    """During an update, the remaining pods must handle the whole load."""
    if not any(pod.role(config) == "serving" for pod in workload.pods):
        return
    resource = workload.resource
    update = resource.record.rollout if resource.record is not None else None
    if update is None or not update.at:
        return
    kind = resource.root.at(update.type) if update.type else Node(None)
    if kind.text == "Recreate":
        yield Violation(kind, '"RollingUpdate", with maxUnavailable 0')
        return
    if update.double and not resource.root.at(update.double).absent:
        return
    limits = resource.root.at(update.at)
    unavailable = limits["maxUnavailable"]
    missing = _removable_pods(
        update.unavailable if unavailable.absent else unavailable.value,
        workload.replicas(workload.pods),
    )
    # Without a spare GPU for a surge, pods can only be replaced one at a time.
    surge = update.surge if limits["maxSurge"].absent else limits["maxSurge"].value
    allowed = max(update.least, 1 if surge == 0 else 0)
    if missing > allowed:
        advice = f"{allowed}, because an update may otherwise remove {missing} of the pods at once"
        yield Violation(unavailable, advice)


def _removable_pods(value: Any, replicas: Decimal | None) -> int:
    """Return the number of pods or groups that an update may remove, rounding percentages down."""
    if isinstance(value, str) and value.endswith("%"):
        share = quantity_or_none(value.removesuffix("%"))
        return int(share * replicas / 100) if share is not None and replicas is not None else 0
    count = quantity_or_none(value)
    return int(count) if count is not None else 0


@stack_rule(
    name="route-backends-declared",
    description="Every Service that a route refers to exists.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Correct the Service's name, or list it in existingServices.",
    config=BackendConfig,
)
def route_backends_declared(stack: Stack, config: BackendConfig) -> Iterator[Violation]:
    """A route returns errors for requests to a missing Service."""
    for route, backend in _backends(stack):
        name, namespace = backend["name"], route.namespace
        # Services in other namespaces belong to other stacks.
        if not name.text or namespace is None or not backend["namespace"].absent:
            continue
        existing = f"{namespace}/{name.text}" in config.existing_services
        if not existing and not stack.may_have("", "Service", namespace, name.text):
            yield Violation(name, "the name of a Service of this stack", resource=route)


def _backends(stack: Stack) -> Iterator[tuple[Resource, Node]]:
    for route in stack.of_kind(GATEWAY_GROUP, *_ROUTES):
        for rule in route.root["spec"]["rules"].items():
            for backend in rule["backendRefs"].items():
                if backend["kind"].absent or backend["kind"].text == "Service":
                    yield route, backend
    for ingress in stack.of_kind("networking.k8s.io", "Ingress"):
        spec = ingress.root["spec"]
        paths = [path for rule in spec["rules"].items() for path in rule["http"]["paths"].items()]
        backends = [spec["defaultBackend"], *(path["backend"] for path in paths)]
        for backend in backends:
            if backend["service"].present:
                yield ingress, backend["service"]


RULES: list[Rule[Any]] = [
    inference_grace_period,
    inference_rolling_update,
    route_backends_declared,
]
