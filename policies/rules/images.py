"""Rules about container images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from policies import cel
from policies.pod_parts import image_of_uri
from policies.rule import Level, Rule, RuleConfig, Severity, Violation, pod_rule
from policies.settings import NoConfig
from policies.values import Node, any_field
from policies.workloads import Pod

# The patterns are also part of CEL expressions, so they must not use lookaround, which RE2 lacks.
_PATH_COMPONENT: Final = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"^(([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?{_PATH_COMPONENT}(/{_PATH_COMPONENT})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?$"
)
"""Grammar of image references. It allows only ASCII, so look-alike letters are rejected."""
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")
_TAG: Final = re.compile(r"^([^@]*/)?[^/:@]*:[^/@]+(@|$)")
_LATEST: Final = re.compile(r"(?i)^([^@]*/)?[^/:@]*:([^@/]*[-_.])?latest([-_.][^@/]*)?(@|$)")
_BRANCH: Final = re.compile(
    r"(?i)^([^@]*/)?[^/:@]*:([^@/0-9]*|([^@/]*[-_.])?(nightly|main|master|dev|develop|edge|head|canary"
    r"|unstable|snapshot|trunk|stable|prod|production|staging|release|current|rolling|lts|testing"
    r"|newest|live|next|weekly|daily|preview|tip|experimental|mainline|prerelease|candidate|alpha"
    r"|beta|test|qa|uat|debug|nonroot|feature|wip)([-_.][^@/]*)?)(@|$)"
)
"""Pattern of tags that are usually moved: those without a digit, and those named like a branch."""
_VERSION: Final = re.compile(
    r"(?i):[^@/]*([0-9]\.[0-9]|[0-9]{6}|[0-9a-f]{7}|[0-9]{4}-[0-9]{2}-[0-9]{2})[^@/]*(@|$)"
)
"""Pattern of tags that contain a version, a date or a commit."""
_DEFAULT_REGISTRY: Final = "docker.io"
_OFFICIAL: Final = re.compile(r"^docker\.io/([^/]+)$")
"""Pattern of Docker's official images, which are in the `library` repository."""
_PVC: Final = "pvc://"
MODEL_FIELD: Final = re.compile(r"storageUri|(?i:(source_?)?model_?ur[il])")
"""Pattern of fields with the URI of a model."""
_MODELS: Final = frozenset({"storageUris", "model", "adapters"})
"""Fields below which the `uri` field contains the URI of a model."""
_URI: Final = "uri"
_TRAINER: Final = ("spec", "trainer")


def _prefix(registry: str) -> str:
    if "*" in registry:
        raise ValueError(f"{registry!r} contains a wildcard; write a prefix, such as ghcr.io/team")
    return registry.rstrip("/")


class RegistryConfig(RuleConfig):
    """Configuration of `image-registry-allowed`."""

    allowed_registries: list[Annotated[str, AfterValidator(_prefix)]] = Field(
        default=[],
        description="Registries, with or without a path, that images may come from, and prefixes "
        "of model URIs, such as `hf://team` or `s3://models`. An empty list allows all.",
    )


def _images(pod: Pod) -> Iterator[Node]:
    """Yield the images that a pod uses in containers, image volumes and other fields."""
    for container in pod.containers:
        yield container.node["image"]
    yield from pod.images
    for volume in pod.volumes.items():
        if isinstance(volume["image"].value, dict):
            yield volume["image"]["reference"]


def _known_images(pod: Pod) -> Iterator[tuple[Node, str]]:
    for image in _images(pod):
        if image.known:
            yield image, image.text or ""


def _model_uris(pod: Pod) -> Iterator[Node]:
    """Yield the URIs of the models that a controller downloads for a pod."""
    spec = pod.resource.root["spec"]
    if "." not in pod.resource.group or not isinstance(spec.value, dict):
        return
    location, pending = pod.spec.steps[:2], [spec]
    if not any_field(spec.value, lambda key, _: key == _URI or bool(MODEL_FIELD.fullmatch(key))):
        return
    while pending:
        node = pending.pop()
        for key, child in node.fields():
            in_pod = child.steps[: len(location)] == location or location == _TRAINER
            of_model = key == _URI and not _MODELS.isdisjoint(node.steps)
            if (of_model or MODEL_FIELD.fullmatch(key)) and child.text and in_pod:
                yield child
            pending.append(child)
        pending.extend(node.items())


def _model_images(pod: Pod) -> Iterator[tuple[Node, str]]:
    """Yield the URI and the image reference of each model that is mounted from an image.

    Model images that `pod.images` already contains are omitted.
    """
    recorded = {image.steps for image in pod.images}
    for uri in _model_uris(pod):
        image = image_of_uri(uri.text or "")
        if image and uri.steps not in recorded:
            yield uri, image


def registry_path(image: str) -> str:
    """Return an image's name with its registry, but without its tag and digest."""
    name = image.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    name = f"{head}{slash}{tail.partition(':')[0]}"
    first, slash, _ = name.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return name if is_host else f"{_DEFAULT_REGISTRY}/{name}"


@pod_rule(
    name="image-tag-fixed",
    description="Image names are valid and include a digest or a fixed tag.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use a version as the tag or, better, the digest of the pushed image.",
    config=NoConfig,
    admission=cel.images(
        f"!i.matches({cel.literal(_REFERENCE.pattern)})"
        f" || !i.matches({cel.literal(_DIGEST.pattern)})"
        f" && (!i.matches({cel.literal(_TAG.pattern)})"
        f" || i.matches({cel.literal(_LATEST.pattern)})"
        f" || (i.matches({cel.literal(_BRANCH.pattern)})"
        f" && !i.matches({cel.literal(_VERSION.pattern)})))"
    ),
)
def image_tag_fixed(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """A restarted worker must run the same code as the other workers."""
    for image, reference in [*_known_images(pod), *_model_images(pod)]:
        if not _REFERENCE.fullmatch(reference):
            yield Violation(image, "registry/name:tag in ASCII, without placeholders")
        elif not _DIGEST.search(reference) and _may_move(reference):
            yield Violation(image, "an image with a version, such as registry/name:1.4.2")


def _may_move(reference: str) -> bool:
    """Return whether a reference has no tag, or a tag that is usually moved, such as `latest`."""
    is_branch = _BRANCH.search(reference) and not _VERSION.search(reference)
    return not _TAG.search(reference) or bool(_LATEST.search(reference) or is_branch)


@pod_rule(
    name="image-digest-pinned",
    description="Images are pinned by digest.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Use name@sha256:…, which is an output of the WorkloadImage component.",
    config=NoConfig,
    admission=cel.images("!i.matches('@sha256:[0-9a-f]{64}$')"),
)
def image_digest_pinned(pod: Pod, config: NoConfig) -> Iterator[Violation]:
    """A tag may be moved to a different image between the starts of two workers."""
    for image, reference in _known_images(pod):
        # `image-tag-fixed` reports a missing image.
        if reference and not _DIGEST.search(reference):
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
        ".map(n, [n, n.matches('^docker[.]io/[^/]+$')"
        " ? n.replace('docker.io/', 'docker.io/library/', 1) : n])"
        ".exists(ns, ns.exists(n, settings.allowedRegistries.exists(r, n == r"
        " || n.startsWith(r + '/')"
        " || (n.startsWith(r + ':') && !n.substring(size(r)).contains('/')))))"
    ),
)
def image_registry_allowed(pod: Pod, config: RegistryConfig) -> Iterator[Violation]:
    """Images from other registries have not been reviewed."""
    allowed = config.allowed_registries
    if not allowed:
        return
    paths = [(image, registry_path(text)) for image, text in _known_images(pod)]
    paths += [(image, registry_path(text)) for image, text in _model_images(pod)]
    for uri in _model_uris(pod):
        text = str(uri.value)
        if not (image_of_uri(text) or text.startswith(_PVC)):
            paths.append((uri, text))
    for image, path in paths:
        names = (path, _OFFICIAL.sub(r"docker.io/library/\1", path))
        if not any(f"{name}/".startswith(f"{entry}/") for name in names for entry in allowed):
            yield Violation(image, f"an image or a model from {' or '.join(allowed)}")


RULES: list[Rule[Any]] = [image_tag_fixed, image_digest_pinned, image_registry_allowed]
