"""Rule that requires the registry of workload kinds to contain every kind that runs pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kube.accelerators import NVIDIA_GPU
from kube.quantities import quantity_or_none
from kube.workloads.record import WorkloadKind, steps
from policies.counts import structural_counts
from policies.documents import DocumentError, embedded_values
from policies.embedded import unreadable_manifests
from policies.pod_search import find_all_pods
from policies.resources import Resource
from policies.rule import Level, Rule, Severity, Violation, resource_rule
from policies.rules.images import MODEL_FIELD
from policies.settings import GpuConfig
from policies.values import Key, Node, any_field, nodes_at

_CONTAINER_LISTS = frozenset({"containers", "initContainers", "ephemeralContainers"})
_POD_FIELDS = frozenset(
    {"serviceAccountName", "nodeSelector", "tolerations", "volumes", "affinity", "restartPolicy"}
)
_SECURITY_CONTEXT = re.compile(r"(?i)(pod|container)?securityContext")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_UNSAFE_FLAGS = ("privileged", "allowPrivilegeEscalation", "hostProcess")
_IDS = ("runAsUser", "runAsGroup", "fsGroup")
_IMAGE = "image"
_SECURITY, _MODEL = "an unsafe security setting", "a model"
_EVIDENCE_IN_KNOWN_KINDS = ("a pod", "a container", "a manifest", _SECURITY)
"""Types of evidence that the rule also searches for in objects of known kinds."""
_MANIFEST = re.compile(r"(?s)apiVersion.*\bkind\b|\bkind\b.*apiVersion")
_BODY = re.compile(r"\b(metadata|spec)\b")
_LABELS = "/metadata/labels"
_EVENT_TARGETS = re.compile(
    r"((k8s|argoWorkflow)\.source\.resource\.)?"
    r"(spec\.arguments\.parameters\.[0-9]+\.value"
    r"|metadata\.(name|generateName|labels\.[A-Za-z0-9_-]+))"
    r"|(http|slack|email|log|kafka|nats|pulsar|awsLambda|openWhisk|azure\w+)\..+"
)
"""Paths to which events may write: workflow arguments, names, labels, and sent messages."""
_METADATA_FIELDS = ("annotations", "labels", "selector")
"""Suffixes, in lower case, of fields whose keys are names of annotations or labels."""
_LABEL_KEYS = ("key", "topologyKey")
"""Fields that contain a label or taint key, which may look like a resource name."""
_ACCELERATOR = re.compile(
    r"(nvidia\.com|amd\.com|habana\.ai|[^/]*gpu[^/]*|gpu\.intel\.com)/[^/\s]+"
    r"|google\.com/tpu|aws\.amazon\.com/neuron\w*"
)
"""Pattern of accelerator resource names in strings. Keys whose value is a quantity are compared
with the configured accelerators instead."""
_GPU_COUNT = re.compile(r"(?i)(num_?)?gpus?(_?count)?")
"""Pattern of keys, such as `num_gpus`, that set a number of GPUs in a field of `_REQUESTS`."""
_REQUESTS = ("resources", "limits", "requests")


def _evidence(root: Node, config: GpuConfig) -> Iterator[tuple[Node, str]]:
    """Yield each value that looks like a pod, container, manifest or accelerator, with its type."""
    pending = [child for key, child in root.fields() if key not in ("metadata", "apiVersion")]
    if evidence := _workload_evidence(root, config):
        yield root, evidence
    while pending:
        node = pending.pop()
        if isinstance(node.value, str):
            if _ACCELERATOR.fullmatch(node.value) and node.steps[-1] not in _LABEL_KEYS:
                yield node, "an accelerator"
            elif _MANIFEST.search(node.value) and _BODY.search(node.value):
                yield node, "a manifest"
        elif evidence := _evidence_type(node, config):
            yield node, evidence
        pending += [child for _, child in node.fields()]
        pending += list(node.items())


def _evidence_type(node: Node, config: GpuConfig) -> str:
    keys = dict(node.fields())
    has_fields = keys.keys() >= {"apiVersion", "kind", "metadata"}
    if has_fields and isinstance(node["metadata"].value, dict):
        return "a manifest"
    return _workload_evidence(node, config)


def _workload_evidence(node: Node, config: GpuConfig) -> str:
    keys = dict(node.fields())
    if any(isinstance(child.value, list) for key, child in keys.items() if key in _CONTAINER_LISTS):
        return "a pod"
    if len(_POD_FIELDS & keys.keys()) > 1:
        return "a pod"
    if any(_is_image_field(key, child) for key, child in keys.items()):
        return "a container"
    if any(_is_unsafe_setting(key, child.value) for key, child in keys.items()):
        return _SECURITY
    if any("://" in (child.text or "") for k, child in keys.items() if MODEL_FIELD.fullmatch(k)):
        return _MODEL
    if str(node.key).lower().endswith(_METADATA_FIELDS):
        return ""
    counted = (key for key, child in keys.items() if quantity_or_none(child.value) is not None)
    if any(config.accelerators.includes(key) for key in counted):
        return "an accelerator"
    return "an accelerator" if _gpu_count(node) else ""


def _gpu_count(node: Node) -> str:
    """Return the path, below `node`, of a GPU count without a resource name; empty if none."""
    fields = node.fields() if node.key in _REQUESTS else ()
    keys = (key for key, _ in fields if _GPU_COUNT.fullmatch(key))
    paths = (path for key in keys for path in (key, f"{key}.count", f"{key}.value"))
    return next((path for path in paths if (quantity_or_none(node.at(path).value) or 0) > 0), "")


def _is_unsafe_setting(key: str, value: Any) -> bool:
    """Return whether a field shares the host's namespaces, or is an unsafe security context."""
    if key in _HOST_NAMESPACES:
        return value not in (None, False)
    is_context = isinstance(value, dict) and bool(_SECURITY_CONTEXT.fullmatch(key))
    return is_context and any_field(value, _is_unsafe)


def _is_unsafe(key: str, value: Any) -> bool:
    """Return whether a field of a security context is less safe than its default."""
    if key in _UNSAFE_FLAGS:
        return value not in (None, False)
    if key == "runAsNonRoot" or key in _IDS:
        return value in (False, 0)
    if key == "procMount":
        return value not in (None, "Default")
    return value == "Unconfined" or (key in ("add", "sysctls") and bool(value))


def _is_image_field(key: str, node: Node) -> bool:
    if _IMAGE not in key.lower():
        return False
    if isinstance(node.value, dict):
        return any(node[part].text for part in ("repository", "registry", "name", "tag", "value"))
    exact = key.lower().endswith(_IMAGE)
    return bool(node.text) and (exact or any(sign in str(node.value) for sign in "/:@"))


@resource_rule(
    name="kind-known",
    description="The registry of workload kinds contains the kind of each object that runs pods, "
    "and rules can read the object.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Add a record of the kind to `kinds` in the configuration, or use fields that the "
    "rules can read. If objects of the kind run no pods, the record is {}.",
    config=GpuConfig,
)
def kind_known(resource: Resource, config: GpuConfig) -> Iterator[Violation]:
    """In an unknown kind, rules may miss containers, images and the number of pods."""
    if resource.record is not None:
        yield from _opaque(resource, resource.record.opaque)
        for node in unreadable_manifests(resource):
            expected = "a complete manifest: rules cannot read templates or invalid YAML"
            yield Violation(node, expected, found="an unreadable manifest")
        for path in resource.record.json_patches:
            for node in nodes_at(resource.root, steps(path)):
                if node.text is not None and not _changes_only_labels(node.text):
                    yield Violation(node, "a strategic merge patch, which the rules can read")
        for path in resource.record.destinations:
            for node in nodes_at(resource.root, steps(path)):
                if node.present and not _EVENT_TARGETS.fullmatch(node.text or ""):
                    expected = (
                        "a path that cannot change pods, such as "
                        "spec.arguments.parameters.0.value, metadata.name or a label"
                    )
                    yield Violation(node, expected)
        yield from _unrecorded(resource, resource.record, config)
    elif not resource.listed:
        if _scales(resource):
            record = {"target": "…", "minimum": "…", "maximum": "…"}
            expected = _remedy(resource, {"scaler": record})
            found = "an autoscaler of an unknown kind"
            yield Violation(resource.root["spec"], expected, found=found)
        for node, evidence_type in _evidence(resource.root, config):
            if resource.group == "extensions":
                expected = '"apps/v1": Kubernetes 1.16 removed this API'
                yield Violation(resource.root["apiVersion"], expected)
                return
            found = f"{evidence_type} in an unknown kind"
            yield Violation(node, _remedy(resource, _record(node, evidence_type)), found=found)
            return


def _scales(resource: Resource) -> bool:
    """Return whether an object appears to set the number of replicas of another object."""

    def has(*names: str) -> bool:
        return any_field(resource.properties, lambda key, _: key in names)

    return has("scaleTargetRef") or (has("targetRef") and has("maxReplicas"))


def _unrecorded(resource: Resource, record: WorkloadKind, config: GpuConfig) -> Iterator[Violation]:
    """Yield a violation for the first pod or container in an unknown field of a known kind."""
    runs = record.pods or record.objects or record.generators or record.texts
    if not runs or record.unseen or "" in record.patterns:
        return
    evidence = [
        (node, evidence_type)
        for node, evidence_type in _evidence(resource.root, config)
        if evidence_type in _EVIDENCE_IN_KNOWN_KINDS
    ]
    if not evidence:
        return
    complete, partial = _readable_paths(resource, record)
    for node, evidence_type in evidence:
        path = node.steps
        parents = (path[:length] for length in range(len(path) + 1))
        if path not in partial and "metadata" not in path and complete.isdisjoint(parents):
            parts = json.dumps(_record(node, evidence_type))
            expected = f"fields that the rules can read, or add {parts} to the record of the kind"
            yield Violation(node, expected, found=f"{evidence_type} in an unknown field")
            return


def _readable_paths(
    resource: Resource, record: WorkloadKind
) -> tuple[set[tuple[Key, ...]], set[tuple[Key, ...]]]:
    """Return the paths that other rules read completely, and the paths that they read in part."""
    complete, partial = set(), set()
    if "." not in resource.group:
        # The API server ignores the status of built-in kinds, but custom controllers may read the
        # status of their objects.
        complete.add(resource.root["status"].steps)
    for pod in find_all_pods(resource):
        partial.add(pod.spec.steps)
        for container in pod.containers:
            if container.node.steps != pod.spec.steps:
                complete.add(container.node.steps)
            partial.add(container.node.steps[:-2])
        for image in pod.images:
            complete.add(image.steps)
            partial.add(image.steps[:-1])
        complete.add(pod.spec["volumes"].steps)
    embedded = (*record.objects, *record.generators, *record.texts)
    other = (*record.patterns, *record.opaque, *(claims.at for claims in record.claims))
    for path in (*embedded, *other):
        complete |= {node.steps for node in nodes_at(resource.root, steps(path))}
    for path in record.remote:
        sources = (node for node in nodes_at(resource.root, steps(path)) if node.text)
        complete |= {(*node.steps[:-1], "values") for node in sources}
    for path in record.texts:
        if path.endswith(".*"):
            partial |= {node.steps for node in nodes_at(resource.root, steps(path)[:-1])}
    for pods in record.pods:
        for path in pods.defaults:
            partial |= {node.steps for node in nodes_at(resource.root, steps(path))}
    return complete, partial


def _opaque(resource: Resource, paths: Sequence[str]) -> Iterator[Violation]:
    """Yield a violation for each field that changes pods in a way that no rule can check."""
    for path in paths:
        for node in nodes_at(resource.root, steps(path)):
            if node.present and not _is_flag_of_deletion(node):
                yield Violation(node, "nothing: no rule can check how it changes pods")


def _is_flag_of_deletion(node: Node) -> bool:
    """Return whether a field contains the flags of `kubectl delete`, which creates nothing."""
    parent = node.parent
    return node.key == "flags" and parent is not None and parent["action"].value == "delete"


def _changes_only_labels(patch: str) -> bool:
    """Return whether a JSON patch, given as text, changes only labels."""
    try:
        documents = list(embedded_values(patch))
    except DocumentError:
        return False
    return all(
        isinstance(operations, list)
        and all(
            isinstance(item, dict)
            and all(str(item.get(key, _LABELS)).startswith(_LABELS) for key in ("path", "from"))
            for item in operations
        )
        for operations in documents
    )


def _remedy(resource: Resource, record: dict[str, Any]) -> str:
    """Return the advice to add a record of the object's kind to the configuration."""
    name = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    text = json.dumps({name: record}, ensure_ascii=False)
    return f'a record of this kind in the configuration, such as "kinds": {text}'


def _record(node: Node, evidence_type: str) -> dict[str, Any]:
    """Return a record that lets the rules read a value that looks like part of a workload."""
    if evidence_type == "a manifest":
        return {"objects" if isinstance(node.value, dict) else "texts": [_path(node.steps)]}
    if evidence_type == "an accelerator":
        pods = {**_devices(node), "partial": True}
    else:
        containers = {} if evidence_type == "a pod" else {"containers": [""]}
        partial = {"partial": True} if evidence_type in (_SECURITY, _MODEL) else {}
        pods = {"at": _path(node.steps), **containers, **partial}
    # The node itself may set the number of its pods, so the search starts at one of its children.
    counts = [{"paths": [_path(each.steps)]} for each in structural_counts(node["containers"])]
    return {"pods": [{**pods, **({"count": counts} if counts else {})}]}


def _devices(node: Node) -> dict[str, Any]:
    """Return the part of a record that describes the accelerators in a value."""
    keys = node.steps
    if isinstance(node.value, dict) and (number := _gpu_count(node)):
        return _requests(keys, resource=NVIDIA_GPU, count=number)
    if keys[-2:-1] == ("resources",):
        return {"at": _path(keys[:-2]), "containers": [""]}
    if isinstance(node.value, dict):
        return _requests(keys, "*")
    if isinstance(node.key, int):
        names, _ = _split(keys)
        return _requests(names, resource=str(node.value))
    fields = node.parent.fields() if node.parent is not None else ()
    counts = [key for key, value in fields if quantity_or_none(value.value) is not None]
    count = {"count": _path(counts[:1])} if counts else {}
    return _requests(keys[:-1], name=_path(keys[-1:]), **count)


def _requests(keys: Sequence[Key], *rest: Key, **devices: str) -> dict[str, Any]:
    at, each = _split(keys)
    requests = {"each": _path((*each, *rest)), **devices}
    return {"at": _path(at), "containers": [""], "devices": [requests]}


def _split(keys: Sequence[Key]) -> tuple[Sequence[Key], Sequence[Key]]:
    """Split a path before its last key that is not an index; the first part leads to an object."""
    index = max((i for i, key in enumerate(keys) if isinstance(key, str)), default=0)
    return keys[:index], keys[index:]


def _path(keys: Sequence[Key]) -> str:
    """Return a path in the syntax of records, with `*` in place of list indexes."""
    names = ["*" if isinstance(key, int) else str(key) for key in keys]
    path = "".join(f"[{name}]" if re.search(r"[.\[]", name) else f".{name}" for name in names)
    return path.removeprefix(".")


RULES: list[Rule[Any]] = [kind_known]
