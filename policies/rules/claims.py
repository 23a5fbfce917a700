"""Rules about the ResourceClaims of Dynamic Resource Allocation (DRA)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kube.accelerators import Accelerators
from kube.quantities import quantity_or_none
from policies import cel
from policies.counts import UNLIMITED
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, resource_rule, stack_rule
from policies.settings import GpuConfig, SystemConfig
from policies.values import Node
from policies.views import Stack
from policies.workloads import Pod

_GROUP = "resource.k8s.io"
_ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
_CLAIM, _TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"


_ACCELERATOR_SELECTOR = re.compile(
    r"(?i)(driver *== *|attributes *\[ *|capacity *\[ *)[\"'][^\"']*(gpu|mig|tpu|neuron|gaudi|npu)"
)
"""Pattern of CEL selectors that match accelerators. The admission policy contains it as well."""


class CountedConfig(GpuConfig, SystemConfig):
    """Configuration of `claim-devices-counted`."""


def _requests(resource: Resource) -> Node:
    """Return the device requests of a claim or a template."""
    spec = resource.root["spec"]
    return (spec["spec"] if resource.is_kind(_GROUP, _TEMPLATE) else spec)["devices"]["requests"]


def _alternatives(request: Node) -> list[Node]:
    """Return the alternatives of a request. The scheduler allocates one of them.

    The alternatives are in `firstAvailable` and `exactly`. If a request has neither field, as in
    v1beta1, return the request itself. An empty `firstAvailable` counts as absent, as in the API.
    """
    alternatives = list(request["firstAvailable"].items())
    if not request["exactly"].absent:
        return [*alternatives, request["exactly"]]
    return alternatives if request["firstAvailable"].value else [request]


def _is_accelerator(device: Node, accelerators: Accelerators) -> bool:
    return accelerators.includes_class(device["deviceClassName"].text or "")


def _count(device: Node) -> Decimal:
    """Return the number of devices, which is 1 by default.

    Return 0 if it is unknown, and `UNLIMITED` if it is invalid or the allocation mode is `All`.
    """
    if device["allocationMode"].value == "All":
        return UNLIMITED
    if not device["count"].known:
        return Decimal(0)
    number = Decimal(1) if device["count"].absent else quantity_or_none(device["count"].value)
    return number if number is not None and number >= 0 else UNLIMITED


@resource_rule(
    name="claim-devices-counted",
    description="ResourceClaims request a fixed number of accelerators, without admin access.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set count to the number of devices, and allocationMode to ExactCount.",
    config=CountedConfig,
    admission=cel.Cel(
        "(request.resource.resource == 'resourceclaims' ? dyn(object).spec"
        " : dyn(object).spec.spec).?devices.?requests.orValue([]).filter(r,"
        " (r.?firstAvailable.orValue([]) + (has(r.exactly) ? [r.exactly]"
        " : r.?firstAvailable.orValue([]).size() > 0 ? [] : [r]))"
        ".exists(d, d.?adminAccess.orValue(false)"
        " || d.?tolerations.orValue([]).exists(t, t.?key.orValue('') == '')"
        " || d.?selectors.orValue([]).exists(s, s.?cel.?expression.orValue('').matches("
        f"{cel.literal(_ACCELERATOR_SELECTOR.pattern)})"
        f" && !{cel.accelerator_class('d.deviceClassName')})"
        f" || {cel.accelerator_class('d.deviceClassName')}"
        " && (d.?allocationMode.orValue('ExactCount') != 'ExactCount'"
        " || d.?count.orValue(1) < 1))).map(r, 'request ' + r.name)",
        cel.CLAIMS,
    ),
)
def claim_devices_counted(resource: Resource, config: CountedConfig) -> Iterator[Violation]:
    """A claim for all devices, or with admin access, takes GPUs that no quota counts.

    A claim that tolerates every taint may be allocated unhealthy GPUs.
    """
    if resource.is_kind("", "Namespace") and resource.labels[_ADMIN_ACCESS_LABEL].value == "true":
        yield Violation(
            resource.labels[_ADMIN_ACCESS_LABEL],
            "nothing: claims of this namespace could use devices that belong to other claims",
        )
    if not resource.is_kind(_GROUP, _CLAIM, _TEMPLATE):
        return
    requests = _requests(resource)
    if requests.known and not isinstance(requests.value, list):
        yield Violation(requests, "a list of device requests, as in resource.k8s.io/v1")
    for request in requests.items():
        for device in _alternatives(request):
            yield from _uncounted(device, config.accelerators)


def _uncounted(device: Node, accelerators: Accelerators) -> Iterator[Violation]:
    mode, count = device["allocationMode"], device["count"]
    if device["adminAccess"].present and device["adminAccess"].value is not False:
        yield Violation(device["adminAccess"], "nothing: admin access ignores other claims")
    for toleration in device["tolerations"].items():
        if toleration["key"].absent or toleration["key"].value == "":
            yield Violation(toleration, "the key of a device taint, so that other taints apply")
    if not _is_accelerator(device, accelerators):
        for selector in device["selectors"].items():
            expression = selector["cel"]["expression"]
            if _ACCELERATOR_SELECTOR.search(expression.text or ""):
                yield Violation(expression, "a deviceClassName that counts as an accelerator")
        return
    if mode.present and mode.value != "ExactCount":
        yield Violation(mode, '"ExactCount", and set count to the number of devices')
    amount = count.value
    if count.present and (isinstance(amount, bool) or not isinstance(amount, int) or amount < 1):
        yield Violation(count, "an integer such as 1")


@stack_rule(
    name="claim-declared",
    description="The ResourceClaims of pods are declared in the stack and used by a container.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Declare the ResourceClaimTemplate, or set its number of accelerators"
    " in claimDevices.",
    config=GpuConfig,
)
def claim_declared(stack: Stack, config: GpuConfig) -> Iterator[Violation]:
    """An undeclared claim may request any number of GPUs.

    A claim that no container uses still reserves its devices.
    """
    for workload in stack.workloads:
        for pod in workload.pods:
            for claim in (*pod.spec["resourceClaims"].items(), *pod.added_claims):
                for violation in _undeclared(stack, pod, claim, config.accelerators):
                    yield Violation(violation.node, violation.write, resource=workload.resource)


def _undeclared(
    stack: Stack, pod: Pod, claim: Node, accelerators: Accelerators
) -> Iterator[Violation]:
    template, direct = claim["resourceClaimTemplateName"], claim["resourceClaimName"]
    source = direct if template.absent else template
    listed = claim not in pod.added_claims
    created = not listed and not claim["claimCreationSpec"].absent
    if not source.known or pod.resource.awaits_namespace or created:
        return
    if not source.text:
        yield Violation(source, "the name of a ResourceClaimTemplate or ResourceClaim")
    elif accelerators.in_claim(pod.claim_address(claim)) is None and not _declares(
        stack, pod.resource.namespace, source.text, _CLAIM if template.absent else _TEMPLATE
    ):
        yield Violation(source, "the name of a ResourceClaimTemplate of this stack")
    if listed and claim["name"].known and not _is_used(pod, claim["name"]):
        yield Violation(claim, "an entry with this name in the container's resources.claims")


def _declares(stack: Stack, namespace: str | None, name: str, kind: str) -> bool:
    if stack.may_have(_GROUP, kind, namespace, name):
        return True
    # NVIDIA's controller creates a template for each ComputeDomain.
    domains = stack.of_kind("resource.nvidia.com", "ComputeDomain")
    return kind == _TEMPLATE and any(
        (namespace is None or domain.namespace in (namespace, None))
        and domain.root["spec"]["channel"]["resourceClaimTemplate"]["name"].value == name
        for domain in domains
    )


def _is_used(pod: Pod, name: Node) -> bool:
    for container in pod.containers:
        uses = container.resources["claims"]
        if not uses.complete or any(use["name"].value == name.value for use in uses.items()):
            return True
        if any(not use["name"].known for use in uses.items()):
            return True
    return not pod.spec["containers"].complete


def claimed_devices(
    stack: Stack, pod: Pod, accelerators: Accelerators
) -> Iterator[tuple[str, str, Decimal]]:
    """Yield (shared claim, device class, number of devices) for the accelerators that a pod claims.

    For a template, the shared claim is an empty string, because every pod gets a separate claim.
    """
    for claim in (*pod.spec["resourceClaims"].items(), *pod.added_claims):
        created = pod.created_devices(claim)
        for device_class, device in created:
            if accelerators.includes_class(device_class):
                yield "", device_class, _count(device)
        if created:
            continue
        direct = claim["resourceClaimTemplateName"].absent
        address = pod.claim_address(claim)
        shared, kind = (address, _CLAIM) if direct else ("", _TEMPLATE)
        configured = accelerators.in_claim(address)
        declared = stack.find(_GROUP, kind, pod.resource.namespace, address.partition("/")[2])
        if configured is not None:
            yield shared, "", Decimal(configured)
        elif declared is not None:
            for device_class, count in _accelerators_of(declared, accelerators):
                yield shared, device_class, count


def _accelerators_of(claim: Resource, accelerators: Accelerators) -> Iterator[tuple[str, Decimal]]:
    """Yield the device class and number of accelerators of each request.

    If a request has alternatives, the largest alternative counts.
    """
    for request in _requests(claim).items():
        devices = [item for item in _alternatives(request) if _is_accelerator(item, accelerators)]
        if devices:
            largest = max(devices, key=_count)
            yield largest["deviceClassName"].text or "", _count(largest)


RULES: list[Rule[Any]] = [claim_devices_counted, claim_declared]
