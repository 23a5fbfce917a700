"""Types of settings, checked against the rules of the Kubernetes API before objects are created."""

import re
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from kube.accelerators import BUILT_IN_RESOURCES
from kube.quantities import MEBIBYTE, parse_quantity

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED_NAME: Final = re.compile(
    rf"(?:(?=[^/]{{1,253}}/){_LABEL}(?:\.{_LABEL})*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    r"(?:(?P<host>(?=[^/]*[.:]|localhost/)[A-Za-z0-9.-]+(?::\d+)?)/)?"
    rf"(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_NO_DOTS: Final = r"(?!\.{1,2}(?:/|$))"
"""Start of a pattern for a path segment. It excludes the segments `.` and `..`."""
_ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST: Final = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?\.?")


class Settings(BaseModel):
    """Base class of all settings. Types are strict, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


_MAX_ANNOTATION_BYTES: Final = 256 * 1024

TMP_SIZE: Final = "1Gi"
"""Size of the volume at /tmp."""


def _as_text(value: object) -> object:
    """Return a number as a string, because YAML reads the quantity in `cpu: 2` as a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def _positive_quantity(text: str) -> str:
    if parse_quantity(text) <= 0:
        raise ValueError("must be greater than zero")
    return text


def _memory(text: str) -> str:
    size = parse_quantity(text)
    if 0 < size < MEBIBYTE:
        raise ValueError(
            "is less than a mebibyte, so its suffix is probably wrong: use for example 512Mi or "
            "2Gi (m means a thousandth, and no suffix means bytes)"
        )
    return text


def _disk(text: str) -> str:
    if parse_quantity(text) < parse_quantity(TMP_SIZE):
        raise ValueError(f"must be at least {TMP_SIZE}, which /tmp alone may use")
    return text


def _cpu(text: str) -> str:
    if parse_quantity(text) * 1000 % 1 != 0:
        raise ValueError("must be a multiple of a thousandth of a core (1m), such as 250m")
    return text


def matching(pattern: re.Pattern[str], limit: int, expected: str) -> AfterValidator:
    """Return a validator of strings. Its error message is `must be` and then `expected`."""

    def check(text: str) -> str:
        if len(text) > limit:
            raise ValueError(f"is {len(text)} characters long, but at most {limit} are allowed")
        if not pattern.fullmatch(text):
            raise ValueError(f"must be {expected}")
        return text

    return AfterValidator(check)


def check_mappings(values: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError if one of these chart values is set, but is not a mapping."""
    for key in keys:
        if not isinstance(values.get(key, {}), dict):
            raise ValueError(f"has an invalid {key}: it must be a mapping of chart keys to values")


def parse_image(text: str) -> re.Match[str]:
    """Return the parts `host`, `path`, `tag` and `digest` of an image reference.

    Raise ValueError if the text is not an image reference.
    """
    match = _IMAGE.fullmatch(text)
    if match is None:
        raise ValueError(
            "must be an image reference such as registry.example.com/team/name:1.0 (lower case, "
            "an optional tag, an optional @sha256: digest of 64 hexadecimal digits)"
        )
    return match


def _versioned_image(text: str) -> str:
    match = parse_image(text)
    if match["digest"] is None and match["tag"] in (None, "latest"):
        raise ValueError("must name a version: a tag other than 'latest', or a digest @sha256:…")
    return text


def _pinned_image(text: str) -> str:
    if parse_image(text)["digest"] is None:
        raise ValueError(
            "must be pinned by digest, such as registry.example.com/team/name@sha256:<64 digits>, "
            "because nothing else guarantees that every node runs the same image"
        )
    return text


def _annotations(annotations: dict[str, str]) -> dict[str, str]:
    size = sum(len(f"{key}{text}".encode()) for key, text in annotations.items())
    if size > _MAX_ANNOTATION_BYTES:
        raise ValueError(
            f"has {size} bytes, but Kubernetes accepts at most {_MAX_ANNOTATION_BYTES} "
            "bytes of annotations from all tools together: shorten them"
        )
    return annotations


def _http_url(text: str) -> str:
    try:
        url = urlsplit(text)
        host, port, network_location = url.hostname or "", url.port, url.netloc
    except ValueError:
        host, port, network_location = "", None, ""
    if (
        re.search(r"\s", text)
        or not text.startswith(("http://", "https://"))
        or not (_HOST.fullmatch(host) or ":" in host)
        or port == 0
        or "@" in network_location
    ):
        raise ValueError(
            "must be an HTTP or HTTPS URL with a host, an optional port from 1 to 65535 and no "
            "user name or password, such as http://prometheus.monitoring:9090"
        )
    return text


def _distinct(names: list[str]) -> list[str]:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"lists {name} {count} times: list each host name once")
    return names


def _not_an_address(text: str) -> str:
    # A DNS name cannot contain the colons of an IPv6 address.
    if re.fullmatch(r"\d+(\.\d+){3}", text):
        raise ValueError("must be a DNS name, not an IP address")
    return text


def _resource(name: str) -> str:
    # Kubernetes accepts other names without a domain in some fields, but no node offers them.
    if "/" not in name and not any(fnmatchcase(name, each) for each in BUILT_IN_RESOURCES):
        raise ValueError(
            "must be cpu, memory, pods, ephemeral-storage, or the name of a device with its "
            "domain, such as nvidia.com/gpu"
        )
    return name


def _device(name: str) -> str:
    if "/" not in name:
        raise ValueError("must be the name of a device with its domain, such as nvidia.com/gpu")
    return name


def _format(name: str, *types: str) -> WithJsonSchema:
    """Return a JSON schema with `name` as its format. The documentation shows `-` as a space."""
    return WithJsonSchema({"type": list(types) or "string", "format": name})


_PositiveQuantity = Annotated[str, BeforeValidator(_as_text), AfterValidator(_positive_quantity)]

Quantity = Annotated[_PositiveQuantity, _format("quantity", "string", "number")]
"""A Kubernetes quantity greater than zero."""

MemoryQuantity = Annotated[
    _PositiveQuantity, AfterValidator(_memory), _format("size", "string", "number")
]
"""A size of at least one mebibyte."""

DiskQuantity = Annotated[
    _PositiveQuantity, AfterValidator(_disk), _format("size", "string", "number")
]
"""A size of a pod's ephemeral storage, at least that of /tmp."""

CpuQuantity = Annotated[_PositiveQuantity, AfterValidator(_cpu), _format("CPU", "string", "number")]
"""A number of CPU cores in multiples of a thousandth."""

DnsLabel = Annotated[
    str,
    matching(
        _DNS_LABEL,
        63,
        "a DNS label: lower-case letters, digits and '-', with a letter or digit at both ends",
    ),
    _format("name"),
]
"""The name of a namespace, service, claim or service account."""

ServiceName = Annotated[
    str,
    matching(
        re.compile(rf"(?=[a-z]){_LABEL}"),
        63,
        "a DNS label that begins with a letter: lower-case letters, digits and '-'",
    ),
    _format("name"),
]
"""The name of a Service."""

RunKey = Annotated[
    str,
    matching(
        re.compile(rf"(?=[a-z]){_LABEL}"),
        40,
        "a short DNS label that begins with a letter: lower-case letters, digits and '-'",
    ),
    _format("name"),
]
"""The key of a job, sweep or service, from which names of pods and Services are built."""

DnsName = Annotated[
    str,
    matching(
        _DNS_SUBDOMAIN,
        253,
        "a DNS name: labels of lower-case letters, digits and '-', joined by dots",
    ),
    _format("name"),
]
"""The name of a storage class, priority class, volume or queue."""

HostName = Annotated[DnsName, AfterValidator(_not_an_address)]
"""The host name of a route. Neither the Gateway API nor an Ingress accepts IP addresses."""

HostNames = Annotated[list[HostName], AfterValidator(_distinct)]

QualifiedName = Annotated[
    str,
    matching(
        _QUALIFIED_NAME,
        317,
        "a Kubernetes name of at most 63 characters with an optional domain, such as "
        "nvidia.com/gpu",
    ),
    _format("qualified-name"),
]
"""A resource name, label key or taint key."""

ResourceName = Annotated[QualifiedName, AfterValidator(_resource)]
"""The name of a resource that pods can request."""

DeviceName = Annotated[QualifiedName, AfterValidator(_device)]
"""The resource name of a device, such as a GPU. The API server rejects pods that request a
resource without a domain, unless it is a built-in resource."""

LabelValue = Annotated[
    str, matching(_LABEL_VALUE, 63, "a label value: letters, digits, '-', '_' and '.'")
]

EnvironmentName = Annotated[
    str,
    matching(
        _ENVIRONMENT_NAME, 255, "a variable name: letters, digits and '_', no digit at the start"
    ),
    _format("name"),
]

AbsolutePath = Annotated[
    str,
    matching(
        re.compile(rf"/|(?:/{_NO_DOTS}[^/\n]+)+/?"),
        4096,
        "an absolute path without empty, '.' and '..' segments",
    ),
    _format("absolute-path"),
]

PathPrefix = Annotated[
    str,
    matching(
        re.compile(
            rf"/|(?:/{_NO_DOTS}(?:[-\w.~!$&'()*+,;=:@]|%(?!2[fF])[0-9a-fA-F]{{2}})+)+/?", re.ASCII
        ),
        1024,
        "an absolute URL path without empty, '.' and '..' segments, in which special characters "
        "are percent-encoded",
    ),
    _format("URL-path"),
]
"""A path prefix that the Gateway API accepts in a route."""

HttpUrl = Annotated[str, AfterValidator(_http_url), _format("HTTP-URL")]
"""URL of a server, such as Prometheus, with a valid host and port and without credentials."""

VersionedImage = Annotated[str, AfterValidator(_versioned_image), _format("image")]
"""An image reference with a tag other than latest, or a digest."""

PinnedImage = Annotated[str, AfterValidator(_pinned_image), _format("image-by-digest")]
"""An image reference with a digest."""

RegistryHost = Annotated[
    str,
    matching(
        re.compile(r"[A-Za-z0-9.-]+(:\d+)?"),
        253,
        "a host with an optional port, such as registry.example.com:5000; set the path in "
        "`repository`",
    ),
]

ChartRepository = Annotated[
    str,
    matching(re.compile(r"(https?|oci)://\S+"), 2048, "a URL with the scheme https, http or oci"),
]

ChartVersion = Annotated[
    str,
    matching(
        re.compile(r"v?\d+\.\d+\.\d+\S*"),
        64,
        "an exact version, such as 1.15.1; ranges are not accepted",
    ),
]

DataKey = Annotated[
    str,
    matching(
        re.compile(r"[-._A-Za-z0-9]{1,253}"),
        253,
        "a key in a Secret or ConfigMap: letters, digits, '-', '_' and '.'",
    ),
]

Sha256 = Annotated[
    str, matching(re.compile(r"[0-9a-f]{64}"), 64, "64 lower-case hexadecimal digits")
]

Labels = dict[QualifiedName, LabelValue]
Annotations = Annotated[dict[QualifiedName, str], AfterValidator(_annotations)]
PositiveInt = Annotated[int, Field(ge=1)]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
Port = Annotated[int, Field(ge=1024, le=65535)]
"""A port that an unprivileged process may listen on."""
