"""Rules about container images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from policies import cel
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, pod_rule
from policies.settings import NoConfig
from policies.values import Node
from policies.workloads import Pod

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_DEFAULT_REGISTRY = "docker.io"


def _without_slash(registry: str) -> str:
    return registry.rstrip("/")


class RegistryConfig(RuleConfig):
    """Configuration of `image-registry-allowed`."""

    allowed_registries: list[Annotated[str, AfterValidator(_without_slash)]] = Field(
        default=[],
        description="Registries, with or without a path, that images may come from; "
        "without any, every registry is allowed.",
    )


def _images(pod: Pod) -> Iterator[Node]:
    """Return the image of every container and of every image volume."""
    for container in pod.containers:
        yield container.node["image"]
    for volume in pod.volumes.items():
        if isinstance(volume["image"].value, dict):
            yield volume["image"]["reference"]


def _known_images(pod: Pod) -> Iterator[tuple[Node, str]]:
    for image in _images(pod):
        if image.known:
            yield image, image.text or ""


def registry_path(image: str) -> str:
    """Return the image's name with registry, without tag and digest."""
    name = image.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    name = f"{head}{slash}{tail.partition(':')[0]}"
    first, slash, _ = name.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return name if is_host else f"{_DEFAULT_REGISTRY}/{name}"


@pod_rule(
    name="image-tag-fixed",
    description="Images have a tag or a digest, and the tag is not latest.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write the version as the tag, or better the digest of the pushed image.",
    config=NoConfig,
    admission=cel.images(
        "!i.matches('@sha256:[0-9a-f]{64}$')"
        " && (!i.matches(r'^([^@]*/)?[^/:@]*:[^/@]*[^/@\\s][^/@]*(@|$)')"
        " || i.matches(r'(?i)^([^@]*/)?[^/:@]*:\\s*latest\\s*(@|$)'))"
    ),
)
def image_tag_fixed(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """A restarted worker must run the same code as the others."""
    for image, reference in _known_images(pod):
        tag = reference.partition("@")[0].rpartition("/")[2].partition(":")[2]
        pinned = bool(_DIGEST.search(reference))
        if not reference.strip() or (not pinned and tag.strip().lower() in ("", "latest")):
            yield Violation(image, "an image with a version, such as registry/name:1.4.2")


@pod_rule(
    name="image-digest-pinned",
    description="Images are pinned by digest.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Write name@sha256:…; the component WorkloadImage has it as an output.",
    config=NoConfig,
    admission=cel.images("!i.matches('@sha256:[0-9a-f]{64}$')"),
)
def image_digest_pinned(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """A tag can move between the starts of two workers."""
    for image, reference in _known_images(pod):
        if not _DIGEST.search(reference):
            yield Violation(image, "the same image with its digest: name@sha256:…")


@pod_rule(
    name="image-registry-allowed",
    description="Images come from allowed registries.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Push the image to an allowed registry, or allow its registry.",
    config=RegistryConfig,
    references=["NSA Building secure container images", "CIS 5.5.1", "OWASP K04"],
    admission=cel.images(
        "settings.allowedRegistries != [] && ![i.split('@')[0]]"
        ".map(n, n.matches('^(localhost|[^/]*[.:][^/]*)/') ? n : 'docker.io/' + n)"
        ".exists(n, settings.allowedRegistries.exists(r, n == r || n.startsWith(r + '/')"
        " || (n.startsWith(r + ':') && !n.substring(size(r)).contains('/'))))"
    ),
)
def image_registry_allowed(pod: Pod, config: RegistryConfig) -> Iterator[Violation]:
    """Images from these registries have been reviewed."""
    allowed = config.allowed_registries
    if not allowed:
        return
    for image, reference in _known_images(pod):
        path = registry_path(reference)
        if not any(path == registry or path.startswith(f"{registry}/") for registry in allowed):
            yield Violation(image, f"an image from {' or '.join(allowed)}")


RULES: list[Rule[Any]] = [image_tag_fixed, image_digest_pinned, image_registry_allowed]
