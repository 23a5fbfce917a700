"""Rules about models: inference serves only promoted models, whose origin is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from kube.names import CACHE_PATH, MODELS_PATH, SECRETS_PATH, SHM_PATH, TMP_PATH
from kube.promoted_models import DIGEST, ENTRY, NAME, NAMESPACE
from policies import cel
from policies.cel import MOUNTS
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, pod_rule, resource_rule
from policies.settings import NoConfig, RoleConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Pod

_FETCH: Final = "inference.fetch"
_OCI: Final = "oci://"
_MODEL_PATH: Final = "INFERENCE_MODEL_PATH"
_MODEL_PATH_VALUE: Final = rf"^{MODELS_PATH}(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")
_EMPTY_DIR_PATHS: Final = (MODELS_PATH, TMP_PATH, SHM_PATH)
_BY_DIGEST: Final = rf"^[^\s@]+@{DIGEST}$"


class ModelConfig(RoleConfig):
    """Configuration of `model-signed`."""

    repositories: list[str] = Field(
        default=[],
        description="Repositories of promoted models, such as `registry.example.com/models/*`; "
        "`*` matches anything. If empty, the rule is not evaluated.",
    )
    images: list[str] = Field(
        default=[],
        description="Images that inference containers may use, such as "
        "`registry.example.com/ml/inference@sha256:*`.",
    )
    commands: list[str] = Field(
        default=[
            "python3 -m inference",
            f"python3 -m {_FETCH} {_OCI}* {MODELS_PATH}/export",
            f"python3 -m {_FETCH} {_OCI}* {MODELS_PATH}/export --sha256=*",
            f"python3 -m {_FETCH} {_OCI}* {MODELS_PATH}/export --artifact=*",
            f"python3 -m {_FETCH} {_OCI}* {MODELS_PATH}/export --cache=*",
        ],
        description="Commands, including arguments, that inference containers may run.",
    )
    variables: list[str] = Field(
        default=[
            f"HOME={TMP_PATH}",
            "PYTHONUNBUFFERED=1",
            "NVIDIA_VISIBLE_DEVICES=void",
            "INFERENCE_*",
            "OCI_*",
            "OTEL_*",
            "RUN_NAME=*",
        ],
        description="Environment variables that inference containers may have, as `NAME=value`. "
        "Values from Secrets and ConfigMaps count as empty.",
    )


def _serves(pod: Pod, config: ModelConfig) -> bool:
    """Return whether any label assigns the `serving` role, regardless of the other labels."""
    labels = pod.metadata["labels"]
    components = (labels[name].text for name in config.component_labels)
    return any(config.component_roles.get(text or "") == "serving" for text in components)


def _not_promoted(reference: str) -> str:
    """Return the CEL condition under which a reference does not refer to a promoted model."""
    return (
        f"[{reference}].exists(r, !r.matches({cel.literal(_BY_DIGEST)})"
        " || !r.split('@')[0].matches(pattern(settings.repositories))"
        " || !variables.promoted[?r.substring(r.lastIndexOf(':') + 1)].orValue('')"
        ".startsWith(r + ' '))"
    )


# The following constants are parts of the CEL expression of `model-signed`.
_LABELS: Final = "variables.template.?metadata.?labels.orValue({})"
_WORDS: Final = "(c.?command.orValue([]) + c.?args.orValue([]))"
_EXEC: Final = " || ".join(
    [f"c.?{probe}.?exec.hasValue()" for probe in _PROBES]
    + [f"c.?lifecycle.?{hook}.?exec.hasValue()" for hook in _HOOKS]
)
_VARIABLES: Final = {
    "serves": (
        "settings.componentLabels.exists(l, settings.componentRoles"
        f"[?{_LABELS}[?l].orValue('')].orValue('') == 'serving')"
    ),
    "secretVolumes": "variables.volumes.filter(v, has(v.secret)).map(v, v.name)",
    "emptyVolumes": "variables.volumes.filter(v, has(v.emptyDir)).map(v, v.name)",
    "claimVolumes": "variables.volumes.filter(v, has(v.persistentVolumeClaim)).map(v, v.name)",
    "imageVolumes": "variables.volumes.filter(v, has(v.image)).map(v, v.name)",
    "promoted": "params.?data.orValue({})",
}
_VOLUME_NOT_PROMOTED: Final = _not_promoted("v.image.?reference.orValue('')")
_WORD_NOT_PROMOTED: Final = _not_promoted(f"w.substring({len(_OCI)})")
_VIOLATIONS: Final = " + ".join(
    [
        "variables.containers.filter(c, !c.?image.orValue('').matches(pattern(settings.images)))"
        ".map(c, 'image of ' + c.name)",
        f"variables.containers.filter(c, {_WORDS}.exists(w, w.contains(' '))"
        f" || !{_WORDS}.join(' ').matches(pattern(settings.commands)))"
        ".map(c, 'command of ' + c.name)",
        "variables.containers.filter(c, c.?envFrom.orValue([]).size() > 0"
        " || c.?env.orValue([]).exists(e, !(e.name + '=' + e.?value.orValue(''))"
        ".matches(pattern(settings.variables))"
        f" || e.name == '{_MODEL_PATH}'"
        f" && !e.?value.orValue('').matches({cel.literal(_MODEL_PATH_VALUE)})))"
        ".map(c, 'environment of ' + c.name)",
        "variables.containers.filter(c, c.?workingDir.orValue('') != '')"
        ".map(c, 'workingDir of ' + c.name)",
        f"variables.containers.filter(c, {_EXEC}).map(c, 'exec of ' + c.name)",
        f"variables.containers.filter(c, {MOUNTS}.exists(m,"
        " m.?subPath.orValue('') != '' || m.?subPathExpr.orValue('') != '' || !("
        "m.name in variables.secretVolumes"
        f" && m.mountPath.matches('^{SECRETS_PATH}/[A-Za-z0-9_-]+$')"
        f" || m.name in variables.imageVolumes && m.mountPath == '{MODELS_PATH}'"
        f" || m.name in variables.claimVolumes && m.mountPath == '{CACHE_PATH}'"
        f" && '{_FETCH}' in {_WORDS}"
        " || m.name in variables.emptyVolumes"
        f" && m.mountPath in {cel.literal(list(_EMPTY_DIR_PATHS))})))"
        ".map(c, 'volumeMounts of ' + c.name)",
        "variables.containers.filter(c, c.?volumeDevices.orValue([]).size() > 0)"
        ".map(c, 'volumeDevices of ' + c.name)",
        "variables.volumes.filter(v, !has(v.emptyDir) && !has(v.secret) && !has(v.image)"
        " && !has(v.persistentVolumeClaim)).map(v, 'volume ' + v.name)",
        f"variables.volumes.filter(v, has(v.image) && {_VOLUME_NOT_PROMOTED})"
        ".map(v, 'model of ' + v.name)",
        f"variables.containers.filter(c, {_WORDS}.exists(w,"
        f" w.startsWith('{_OCI}') && {_WORD_NOT_PROMOTED}))"
        ".map(c, 'model of ' + c.name)",
    ]
)


@pod_rule(
    name="model-signed",
    description="Inference serves only promoted models, whose signatures were verified.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Promote the model with `python -m gpu_platform models promote`, and set "
    "source.artifact to its reference by digest.",
    config=ModelConfig,
    admission=cel.Cel(
        f"!variables.serves ? [] : {_VIOLATIONS}",
        cel.MODEL_PODS,
        _VARIABLES,
        requires="repositories",
    ),
)
def model_signed(pod: Pod, config: ModelConfig) -> Iterator[Violation]:
    """Without signatures, anyone who can write to a bucket or claim could replace the model."""
    if not config.repositories or not _serves(pod, config):
        return
    kinds = dict(_volume_kinds(pod))
    for container in pod.containers:
        yield from _program_violations(container.node, config)
        yield from _mount_violations(container.node, kinds)
    for volume in pod.volumes.items():
        kind = kinds.get(volume["name"].text or "", "")
        if volume.known and not kind:
            yield Violation(
                volume, "an emptyDir, a Secret, a claim, or the image of a promoted model"
            )
    for model, reference in _models(pod):
        allowed = re.match(cel.pattern(config.repositories), reference.partition("@")[0])
        if not re.match(_BY_DIGEST, reference) or not allowed:
            yield Violation(model, f"a model from {' or '.join(config.repositories)}, by digest")


def _program_violations(container: Node, config: ModelConfig) -> Iterator[Violation]:
    """Yield a violation for each field that could make the container run a different program."""
    image = container["image"]
    if image.known and not re.match(cel.pattern(config.images), image.text or ""):
        yield Violation(
            image, f"an image that matches {' or '.join(config.images) or 'the `images` setting'}"
        )
    words = _command_words(container)
    if words is not None and (
        any(" " in word for word in words)
        or not re.match(cel.pattern(config.commands), " ".join(words))
    ):
        yield Violation(container["command"], f"one of {', '.join(config.commands)}")
    if not container["envFrom"].absent and container["envFrom"].value != []:
        yield Violation(container["envFrom"], "the variables themselves, under env")
    for variable in container["env"].items():
        name, value = variable["name"].text or "", variable["value"]
        text = "" if value.absent else value.text
        outside = name == _MODEL_PATH and not re.match(_MODEL_PATH_VALUE, text or "")
        allowed = re.match(cel.pattern(config.variables), f"{name}={text}")
        if text is not None and (outside or not allowed):
            yield Violation(variable, "a variable that the `variables` setting lists")
    if container["workingDir"].text:
        yield Violation(
            container["workingDir"], "nothing: Python imports modules from the working directory"
        )
    hooks = (container["lifecycle"][hook] for hook in _HOOKS)
    for handler in (*(container[probe] for probe in _PROBES), *hooks):
        if not handler["exec"].absent and handler.value is not UNKNOWN:
            yield Violation(
                handler["exec"], "httpGet, grpc or sleep: exec runs a different program"
            )


def _mount_violations(container: Node, kinds: dict[str, str]) -> Iterator[Violation]:
    """Yield a violation for each mount or device that could contain a different model."""
    # inference.fetch verifies the digest of everything that it copies from the claim.
    fetches = _FETCH in (_command_words(container) or ())
    for mount in container["volumeMounts"].items():
        path, kind = mount["mountPath"].text or "", kinds.get(mount["name"].text or "")
        allowed = (
            (kind == "secret" and re.match(f"^{SECRETS_PATH}/[A-Za-z0-9_-]+$", path))
            or (kind == "image" and path == MODELS_PATH)
            or (kind == "emptyDir" and path in _EMPTY_DIR_PATHS)
            or (kind == "persistentVolumeClaim" and path == CACHE_PATH and fetches)
        )
        if mount["subPath"].text or mount["subPathExpr"].text or not allowed:
            yield Violation(
                mount,
                f"the model at {MODELS_PATH}, Secrets below {SECRETS_PATH}, empty directories at "
                f"{' or '.join(_EMPTY_DIR_PATHS)}, or, for {_FETCH}, a claim at {CACHE_PATH}, "
                "each without subPath",
            )
    for device in container["volumeDevices"].items():
        yield Violation(device, "nothing: a device could contain a model")


def _volume_kinds(pod: Pod) -> Iterator[tuple[str, str]]:
    for volume in pod.volumes.items():
        for kind in ("secret", "image", "emptyDir", "persistentVolumeClaim"):
            if not volume[kind].absent:
                yield volume["name"].text or "", kind


def _command_words(container: Node) -> list[str] | None:
    """Return the command with its arguments, or None if a part is unknown."""
    parts = [*container["command"].items(), *container["args"].items()]
    words = [part.text for part in parts]
    unknown = UNKNOWN in (container["command"].value, container["args"].value)
    return None if unknown or None in words else [word for word in words if word is not None]


def _models(pod: Pod) -> Iterator[tuple[Node, str]]:
    for volume in pod.volumes.items():
        reference = volume["image"]["reference"]
        if not volume["image"].absent and reference.known:
            yield reference, reference.text or ""
    for container in pod.containers:
        for word in _command_words(container.node) or ():
            if word.startswith(_OCI):
                yield container.node["command"], word.removeprefix(_OCI)


@resource_rule(
    name="model-lineage-complete",
    description="The entry of a promoted model states its run, code, data, metrics and policy "
    "result.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Add entries with `python -m gpu_platform models promote`, which verifies them.",
    config=NoConfig,
    admission=cel.Cel(
        f"variables.inNamespace != '{NAMESPACE}' || object.metadata.?name.orValue('') != '{NAME}'"
        " ? [] : object.?data.orValue({}).map(k, k).filter(k,"
        f" !object.data[k].matches({cel.literal(ENTRY)})"
        " || !object.data[k].contains('@sha256:' + k + ' run='))",
        cel.PROMOTED_MODELS,
    ),
)
def model_lineage_complete(resource: Resource, config: NoConfig) -> Iterator[Violation]:
    """A model that cannot be traced to its data and code cannot be reproduced or recalled."""
    listed = resource.is_kind("", "ConfigMap") and resource.name == NAME
    if not listed or resource.namespace != NAMESPACE:
        return
    for key, entry in resource.root["data"].fields():
        text = entry.text
        complete = text and re.match(ENTRY, text) and f"@sha256:{key} run=" in text
        if entry.known and not complete:
            yield Violation(entry, "an entry created by `models promote`")


RULES: list[Rule[Any]] = [model_signed, model_lineage_complete]
