"""Rule about entry points for traffic from outside the cluster."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import Field

from kube.names import GATEWAY_GROUP
from policies import cel
from policies.resources import Resource
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, resource_rule, show
from policies.settings import ExactNames
from policies.values import Node, any_field

_PUBLIC_TYPES: Final = ("loadbalancer", "nodeport")
"""Types of public Services, in lower case as in Strimzi's custom resources."""
_SERVICE_WORDS: Final = ("service", "expose", "listener")
"""Words in field names of custom resources. Below such a field, `type` is the type of a Service."""
_INTERNET_FACING: Final = "internet-facing"
_PUBLIC_SCHEMES: Final = {
    "alb.ingress.kubernetes.io/scheme": (_INTERNET_FACING,),
    "kubernetes.io/ingress.class": ("gce",),
    "tailscale.com/funnel": ("true",),
}
_PUBLIC_CLASS: Final = re.compile(r"external|gxlb")
"""Pattern of Gateway classes with external load balancers. GKE's older names contain `gxlb`."""
_SNIPPET_ANNOTATIONS: Final = (
    "nginx.ingress.kubernetes.io/*-snippet",
    "nginx.org/*-snippets",
    "haproxy.org/*-snippet",
    "haproxy-ingress.github.io/config-*",
)
_GATEWAYS: Final = {
    GATEWAY_GROUP: ("Gateway", "ListenerSet"),
    "gateway.networking.x-k8s.io": ("XListenerSet",),
}
_TLS_PATHS: Final = {
    ("route.openshift.io", "route"): "tls",
    **{
        (group, kind): "tls"
        for group in ("traefik.io", "traefik.containo.us")
        for kind in ("ingressroute", "ingressroutetcp")
    },
    ("projectcontour.io", "httpproxy"): "virtualhost.tls",
    ("configuration.konghq.com", "tcpingress"): "tls",
    ("k8s.nginx.org", "virtualserver"): "tls",
}
"""Maps kinds of entry points to the path of their TLS settings below `spec`."""
_NODE_NAME: Final = re.compile(
    r"^(127|169\.254)\.[0-9.]+$|^100\.100\.100\.200$"
    r"|^(localhost|instance-data)(\.localdomain|\.ec2\.internal)?\.?$"
    r"|(^|\.)metadata\.google\.internal\.?$"
)
"""Pattern of externalName values that refer to a node or to the cloud's metadata server."""
_METADATA_ADDRESSES: Final = tuple(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Addresses of metadata servers that are not link-local."""
_CERTIFICATE_ANNOTATION: Final = "alb.ingress.kubernetes.io/certificate-arn"
_PORTS_ANNOTATION: Final = "alb.ingress.kubernetes.io/listen-ports"
_BUILT_IN_GROUPS: Final = ("", "apps", "batch", "networking.k8s.io", "apiextensions.k8s.io")


class ServiceConfig(RuleConfig):
    """Configuration of `service-not-public`."""

    allowed_services: ExactNames = Field(
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
    """A public port exposes models and APIs, such as Ray's API, which executes arbitrary code."""
    if resource.address in config.allowed_services:
        return
    if resource.is_kind("", "Service"):
        yield from _service(resource.root["spec"])
    elif resource.is_kind("", "Endpoints") or resource.is_kind("discovery.k8s.io", "EndpointSlice"):
        yield from _endpoints(resource.root)
    elif resource.is_kind("networking.k8s.io", "Ingress"):
        yield from _ingress(resource)
    elif resource.is_kind(resource.group, *_GATEWAYS.get(resource.group, ())):
        yield from _gateway(resource.root["spec"])
    elif resource.is_kind("elbv2.k8s.aws", "IngressClassParams"):
        scheme = resource.root["spec"]["scheme"]
        if scheme.value == _INTERNET_FACING:
            yield Violation(scheme, '"internal"')
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
    return key.lower() in ("enableingress", "ingress", "externalips") or _is_public_type(key, value)


def _is_public_type(key: str, value: Any) -> bool:
    """Return whether a field, such as `serviceType`, sets the type of a public Service."""
    is_type = key.lower().endswith("type") and isinstance(value, str)
    return is_type and value.lower() in _PUBLIC_TYPES


def _service(spec: Node) -> Iterator[Violation]:
    kind, addresses = spec["type"], spec["externalIPs"]
    if kind.present and kind.value not in ("ClusterIP", "ExternalName"):
        yield Violation(kind, '"ClusterIP"', found=show(kind.value))
    name = spec["externalName"]
    if _NODE_NAME.search(name.text or ""):
        yield Violation(name, "a name that does not refer to a node or a metadata server")
    if addresses.present and addresses.value != []:
        yield Violation(addresses, "nothing: external addresses take over other hosts' traffic")


def _endpoints(root: Node) -> Iterator[Violation]:
    """Yield a violation for each endpoint at a loopback, link-local or metadata address."""
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
            expected = "an address that is not a loopback, link-local or metadata address"
            yield Violation(address, expected)


def _is_node_address(text: str) -> bool:
    """Return whether a text is a loopback, link-local or metadata address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_link_local or address in _METADATA_ADDRESSES


def _ingress(resource: Resource) -> Iterator[Violation]:
    for key, schemes in _PUBLIC_SCHEMES.items():
        scheme = resource.annotations[key]
        if scheme.text in schemes:
            yield Violation(scheme, "the value for an internal load balancer")
    for key, text in resource.annotations.fields():
        if any(fnmatchcase(key, pattern) for pattern in _SNIPPET_ANNOTATIONS):
            yield Violation(text, "nothing: the snippet would run in a proxy shared by all tenants")
    ports = resource.annotations[_PORTS_ANNOTATION]
    if "HTTP" in (ports.text or "") and "HTTPS" not in (ports.text or ""):
        yield Violation(ports, '[{"HTTPS": 443}]')
    tls = resource.root["spec"]["tls"]
    if not tls.complete or not resource.annotations[_CERTIFICATE_ANNOTATION].absent:
        return
    entries = [entry for entry in tls.items() if entry.value]
    if not entries:
        yield Violation(tls, "the hosts and the Secret that contains their certificate")
    if not all(entry["hosts"].value and entry["hosts"].complete for entry in entries):
        return  # Without hosts, the certificate determines the hosts.
    hosts = [host for entry in entries for host in entry["hosts"].items()]
    for rule in resource.root["spec"]["rules"].items() if entries else ():
        name = rule["host"].text
        if name and not any(_covers(host.text or "", name) for host in hosts):
            yield Violation(rule["host"], f"this host in {tls.path} as well")


def _covers(host: str, name: str) -> bool:
    """Return whether a TLS host equals `name`, or is a wildcard for the first label of `name`."""
    return host == name or host == f"*.{name.partition('.')[2]}"


def _gateway(spec: Node) -> Iterator[Violation]:
    name = spec["gatewayClassName"]
    if _PUBLIC_CLASS.search(name.text or ""):
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
        if _is_public_type(key, child.value) and (in_service or name != "type"):
            yield Violation(child, '"ClusterIP"')
        elif name == "externalips" and child.present and child.value != []:
            yield Violation(child, "nothing: external addresses take over other hosts' traffic")
        elif name in ("enableingress", "ingress") and flag.present and flag.value is not False:
            yield Violation(child, "nothing: use a Gateway with TLS")
        elif isinstance(child.value, dict | list):
            is_service = any(word in name for word in _SERVICE_WORDS)
            yield from _nested(child, in_service=in_service or is_service)
    for item in node.items():
        if isinstance(item.value, dict | list):
            yield from _nested(item, in_service=in_service)


RULES: list[Rule[Any]] = [service_not_public]
