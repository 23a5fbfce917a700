"""Rule about entry points for traffic from outside the cluster."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import Field

from policies import cel
from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, resource_rule, show
from policies.values import Node, any_field

_PUBLIC_TYPES: Final = ("LoadBalancer", "NodePort")
_PUBLIC_SCHEMES: Final = {
    "alb.ingress.kubernetes.io/scheme": ("internet-facing",),
    "kubernetes.io/ingress.class": ("gce",),
}
_SNIPPET_ANNOTATIONS: Final = "nginx.ingress.kubernetes.io/*-snippet"
_TLS_PATHS: Final = {
    ("route.openshift.io", "route"): "tls",
    ("traefik.io", "ingressroute"): "tls",
    ("traefik.containo.us", "ingressroute"): "tls",
    ("projectcontour.io", "httpproxy"): "virtualhost.tls",
}
"""Maps kinds of entry points to the path of their TLS settings below `spec`."""
_NODE_NAME: Final = re.compile(r"^(127|169\.254)\.[0-9.]+$|(^|\.)metadata\.google\.internal\.?$")
"""Pattern of externalName values that refer to a node or to the cloud's metadata server."""
_CERTIFICATE_ANNOTATION: Final = "alb.ingress.kubernetes.io/certificate-arn"
_BUILT_IN_GROUPS: Final = ("", "apps", "batch", "networking.k8s.io", "apiextensions.k8s.io")


class ServiceConfig(RuleConfig):
    """Configuration of `service-not-public`."""

    allowed_services: list[str] = Field(
        default=[],
        description="Services, Ingresses, Gateways and custom resources that may be public, each "
        "as `namespace/Kind/name` or `namespace/Kind.group/name`.",
    )


@resource_rule(
    name="service-not-public",
    description="Services, Ingresses and Gateways are not public and do not route to nodes, unless "
    "allowed by name.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use a ClusterIP Service behind a Gateway with TLS, or add this object to "
    "allowedServices.",
    config=ServiceConfig,
    references=["OWASP K05", "NSA Network policies"],
    admission=cel.Cel(
        "settings.allowedServices.exists(a, a == variables.inNamespace + '/Service/'"
        " + object.metadata.name) ? []"
        " : (object.spec.type in ['LoadBalancer', 'NodePort'] ? ['type'] : [])"
        " + (object.spec.?externalIPs.orValue([]) != [] ? ['externalIPs'] : [])"
        f" + (object.spec.?externalName.orValue('').matches({cel.literal(_NODE_NAME.pattern)})"
        " ? ['externalName'] : [])",
        cel.SERVICES,
    ),
)
def service_not_public(resource: Resource, config: ServiceConfig) -> Iterator[Violation]:
    """A public port exposes models, and APIs that execute arbitrary code, such as Ray's."""
    if resource.address in config.allowed_services:
        return
    if resource.is_kind("", "Service"):
        yield from _service(resource.root["spec"])
    elif resource.is_kind("", "Endpoints") or resource.is_kind("discovery.k8s.io", "EndpointSlice"):
        yield from _endpoints(resource.root)
    elif resource.is_kind("networking.k8s.io", "Ingress"):
        yield from _ingress(resource)
    elif resource.is_kind("gateway.networking.k8s.io", "Gateway"):
        yield from _gateway(resource.root["spec"])
    elif resource.is_kind("networking.istio.io", "Gateway"):
        for server in resource.root["spec"]["servers"].items():
            if server["tls"]["httpsRedirect"].value is not True:
                yield from _unencrypted(server["port"]["protocol"])
    elif path := _TLS_PATHS.get((resource.group, resource.kind.lower())):
        tls = resource.root["spec"].at(path)
        if tls.absent:
            yield Violation(tls, "TLS settings with a certificate or the Secret that contains it")
    elif resource.group not in _BUILT_IN_GROUPS and any_field(resource.properties, _may_expose):
        yield from _nested(resource.root["spec"], in_service=False)


def _may_expose(key: str, value: Any) -> bool:
    is_named = key.lower() in ("enableingress", "ingress", "externalips")
    return is_named or (isinstance(value, str) and value in _PUBLIC_TYPES)


def _service(spec: Node) -> Iterator[Violation]:
    kind, addresses = spec["type"], spec["externalIPs"]
    if kind.present and kind.value not in ("ClusterIP", "ExternalName"):
        yield Violation(kind, '"ClusterIP"', found=show(kind.value))
    name = spec["externalName"]
    if _NODE_NAME.search(name.text or ""):
        yield Violation(name, "a name other than that of a node or a metadata server")
    if addresses.present and addresses.value != []:
        yield Violation(addresses, "nothing: external addresses take over other hosts' traffic")


def _endpoints(root: Node) -> Iterator[Violation]:
    """Yield a violation for each endpoint with a loopback or link-local address."""
    slice_addresses = [
        item for endpoint in root["endpoints"].items() for item in endpoint["addresses"].items()
    ]
    subset_addresses = [
        item["ip"]
        for subset in root["subsets"].items()
        for key in ("addresses", "notReadyAddresses")
        for item in subset[key].items()
    ]
    for address in (*slice_addresses, *subset_addresses):
        if _is_node_address(address.text or ""):
            yield Violation(address, "an address that is neither loopback nor link-local")


def _is_node_address(text: str) -> bool:
    """Return whether a text is a loopback or link-local address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_loopback or address.is_link_local


def _ingress(resource: Resource) -> Iterator[Violation]:
    for key, schemes in _PUBLIC_SCHEMES.items():
        scheme = resource.annotations[key]
        if scheme.text in schemes:
            yield Violation(scheme, "the value for an internal load balancer")
    for key, text in resource.annotations.fields():
        if fnmatchcase(key, _SNIPPET_ANNOTATIONS):
            yield Violation(text, "nothing: it would run in the proxy of all tenants")
    tls = resource.root["spec"]["tls"]
    if tls.known and not tls.value and resource.annotations[_CERTIFICATE_ANNOTATION].absent:
        yield Violation(tls, "the hosts and the Secret that contains their certificate")


def _gateway(spec: Node) -> Iterator[Violation]:
    name = spec["gatewayClassName"]
    if "external" in (name.text or ""):
        yield Violation(name, "the class of an internal load balancer")
    for listener in spec["listeners"].items():
        yield from _unencrypted(listener["protocol"])


def _unencrypted(protocol: Node) -> Iterator[Violation]:
    if protocol.known and protocol.value not in ("HTTPS", "TLS"):
        yield Violation(protocol, '"HTTPS" with a certificate')


def _nested(node: Node, *, in_service: bool) -> Iterator[Violation]:
    """Yield a violation for each setting that makes a controller create a public entry point."""
    for key, child in node.fields():
        name = key.lower()
        flag = child if name == "enableingress" else child["enabled"]
        if child.value in _PUBLIC_TYPES and (
            name == "servicetype" or (name == "type" and in_service)
        ):
            yield Violation(child, '"ClusterIP"')
        elif name == "externalips" and child.present and child.value != []:
            yield Violation(child, "nothing: external addresses take over other hosts' traffic")
        elif name in ("enableingress", "ingress") and flag.present and flag.value is not False:
            yield Violation(child, "nothing: use a Gateway with TLS")
        elif isinstance(child.value, dict | list):
            yield from _nested(child, in_service=in_service or "service" in name)
    for item in node.items():
        if isinstance(item.value, dict | list):
            yield from _nested(item, in_service=in_service)


RULES: list[Rule[Any]] = [service_not_public]
