"""Rules about objects that extend the API server or rename devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from kube.names import ADMISSION_GROUP
from kube.workloads.record import steps
from policies.documents import DocumentError, embedded_values
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, resource_rule
from policies.rules.gpu_devices import NO_DEVICES, VISIBLE_DEVICES, LimitConfig
from policies.settings import SystemConfig
from policies.values import Node, nodes_at

_DRIVER: Final = re.compile(r"""\s*device\.driver\s*==\s*["']([^"']+)["']\s*(?:$|&&[^|]*$)""")
_PLUGIN_NAMES: Final = (
    *("sharing.timeSlicing.resources.*.rename", "sharing.mps.resources.*.rename"),
    *("resources.gpus.*.name", "resources.mig.*.name"),
)
"""Paths of resource names in the configuration of NVIDIA's device plugin."""
_WEBHOOKS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@resource_rule(
    name="api-extensions-trusted",
    description="The API server calls only webhooks and APIs in the cluster, and verifies their "
    "identity.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Set clientConfig.service, and caBundle instead of insecureSkipTLSVerify.",
    config=SystemConfig,
    references=["NSA Authentication and authorization", "OWASP K02"],
)
def api_extensions_trusted(resource: Resource, config: SystemConfig) -> Iterator[Violation]:
    """A webhook receives every object, including Secrets, and may change what is deployed."""
    root = resource.root
    if resource.is_kind(ADMISSION_GROUP, *_WEBHOOKS):
        for webhook in root["webhooks"].items():
            yield from _remote_urls(webhook["clientConfig"])
    elif resource.is_kind("apiextensions.k8s.io", "CustomResourceDefinition"):
        yield from _remote_urls(root["spec"]["conversion"]["webhook"]["clientConfig"])
    elif resource.is_kind("storage.k8s.io", "CSIDriver"):
        for request in root["spec"]["tokenRequests"].items():
            audience = request["audience"]
            if audience.absent or audience.value == "":
                yield Violation(audience, "the audience of a cloud provider, not of the API server")
    elif resource.is_kind("apiregistration.k8s.io", "APIService"):
        unchecked = root["spec"]["insecureSkipTLSVerify"]
        if unchecked.present and unchecked.value is not False:
            yield Violation(unchecked, "false, and the server's caBundle")


def _remote_urls(client: Node) -> Iterator[Violation]:
    if client["url"].present:
        yield Violation(client["url"], "a Service in the cluster instead")


@resource_rule(
    name="device-names-kept",
    description="No object exposes accelerators under a non-standard name, or to containers "
    "without a GPU limit.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use the standard resource and class names, because rules, quotas and queues count "
    "devices by name.",
    config=LimitConfig,
)
def device_names_kept(resource: Resource, config: LimitConfig) -> Iterator[Violation]:
    """Under non-standard names, pods could get GPUs that no rule, quota or queue counts."""
    root = resource.root
    if resource.is_kind("node.k8s.io", "RuntimeClass"):
        handler = root["handler"]
        alias = _is_gpu_runtime(handler.text or "", config) and not _is_gpu_runtime(
            resource.name, config
        )
        if alias:
            yield Violation(handler, f'"{resource.name}", or rename the class to {handler.text}')
    elif resource.is_kind("resource.k8s.io", "DeviceClass"):
        name = root["spec"]["extendedResourceName"]
        counted = config.accelerators.includes_class(resource.name)
        if name.text and counted and not config.accelerators.includes(name.text):
            yield Violation(name, "the name of a resource that counts as an accelerator")
        selectors = resource.root["spec"]["selectors"]
        if not counted and selectors.known and not _selects_only_other_devices(selectors, config):
            expected = 'device.driver == "…" with a driver for other devices, such as "dra.net"'
            yield Violation(selectors, expected)
    elif resource.is_kind("resource.k8s.io", "ResourceSlice"):
        yield Violation(root["spec"]["driver"], "nothing: the driver publishes its devices")
    elif resource.is_kind("", "LimitRange"):
        for limit in root["spec"]["limits"].items():
            for field in ("default", "defaultRequest"):
                for device, amount in limit[field].fields():
                    if config.accelerators.includes(device):
                        yield Violation(amount, "nothing: containers must request GPUs themselves")
    elif resource.is_kind("", "ConfigMap", "Secret"):
        for field in ("data", "stringData"):
            for key, value in root[field].fields():
                if key in VISIBLE_DEVICES and value.value not in NO_DEVICES:
                    expected = "nothing, and write a GPU limit on the container"
                    yield Violation(value, expected, found="a value that assigns devices")
                for device in _plugin_resources(value.text or ""):
                    if not config.accelerators.includes(device):
                        expected = "the name of a resource that counts as an accelerator"
                        yield Violation(value, expected, found=f"the name {device} for GPUs")


def _plugin_resources(text: str) -> Iterator[str]:
    """Yield the resource names that a configuration of NVIDIA's device plugin assigns to GPUs."""
    if "resources" not in text:
        return
    try:
        documents = list(embedded_values(text))
    except DocumentError:
        return
    for document in documents:
        for path in _PLUGIN_NAMES:
            for node in nodes_at(Node(document), steps(path)):
                if node.text:
                    # The plugin adds its domain to names without one.
                    yield node.text if "/" in node.text else f"nvidia.com/{node.text}"


def _selects_only_other_devices(selectors: Node, config: LimitConfig) -> bool:
    """Return whether a device class is limited to a driver whose devices are not accelerators."""
    drivers = [
        _DRIVER.match(selector["cel"]["expression"].text or "") for selector in selectors.items()
    ]
    return any(found and not config.accelerators.includes_class(found[1]) for found in drivers)


def _is_gpu_runtime(name: str, config: LimitConfig) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in config.gpu_runtime_classes)


RULES: list[Rule[Any]] = [api_extensions_trusted, device_names_kept]
