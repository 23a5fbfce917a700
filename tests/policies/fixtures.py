"""All objects from all fixtures that admission evaluates, as the API server receives them."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from policies.documents import read
from policies.pod_search import find_pods
from policies.resources import Resource
from policies.values import UNKNOWN
from tests.policies.cases import CASES
from tests.policies.harness import Manifest, changed, rule_named, type_of
from tests.policies.test_evasions import EVASIONS
from tests.policies.test_ways import HARMLESS, WAYS
from tests.policies.ways.way import TOKEN, documents
from tools.generate.policy_examples import EXAMPLES

_FILES = Path(__file__).parent / "files"
_KINDS = {
    "v1": ("Pod", "Service", "PersistentVolume", "PodTemplate", "ReplicationController"),
    "apps/v1": ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
    "batch/v1": ("Job", "CronJob"),
    "resource.k8s.io/v1": ("ResourceClaim", "ResourceClaimTemplate"),
    "bus.volcano.sh/v1alpha1": ("Command",),
}


def manifests() -> Iterator[tuple[str, Manifest]]:
    """Yield every manifest together with the name of its fixture."""
    for path in sorted(_FILES.glob("*/*.yaml")):
        yield from (
            (path.stem, document.manifest) for document in read(path.name, path.read_bytes())
        )
    for evasion, _, manifest in EVASIONS:
        yield evasion, manifest
    for number, case in enumerate(CASES):
        yield from ((f"case {number} of {case.rule}", manifest) for manifest in case.stack())
    for way in (*WAYS.values(), *HARMLESS.values()):
        if any(value is UNKNOWN for _, value in way.edits):
            continue  # the API server receives no unknown values
        edited: Any = changed(documents(way.base), *way.edits)
        for manifest in edited:
            yield way.description, {key: value for key, value in manifest.items() if key != TOKEN}
    for rule, example in EXAMPLES.items():
        for text in (example.bad, example.good):
            for document in yaml.safe_load_all(text):
                yield f"example of {rule}", _whole(rule, document)


def _whole(rule: str, document: Any) -> Manifest:
    """Return an example as a manifest; examples for pod rules are only pod specifications."""
    if rule_named(rule).scope == "pod" and "kind" not in document:
        labels = {"app.kubernetes.io/component": "inference"}
        metadata = {"labels": labels} if rule_named(rule).topic == "models" else {}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": document}
    return dict(document)


def objects(namespace: str) -> dict[str, tuple[str, Manifest]]:
    """Return the fixture name and the object for each distinct object, keyed by its JSON.

    All objects are in the given namespace. Pods are extracted from manifests of all kinds.
    Fields that the API requires but an example omits are added.
    """
    found: dict[str, tuple[str, Manifest]] = {}
    for name, manifest in manifests():
        for item in _parts(manifest):
            completed = _completed(item, namespace)
            found.setdefault(json.dumps(completed, sort_keys=True, default=str), (name, completed))
    return found


def _parts(manifest: Manifest) -> Iterator[Manifest]:
    if manifest["kind"] in _KINDS.get(manifest["apiVersion"], ()):
        yield manifest
    resource = Resource(type_of(manifest), manifest)
    for pod in find_pods(resource):
        if pod.spec["containers"].present and manifest["kind"] != "Pod":
            template = pod.metadata.value if isinstance(pod.metadata.value, dict) else {}
            metadata = {key: template[key] for key in ("labels", "annotations") if key in template}
            spec = {
                key: item for key, item in pod.spec.value.items() if not _is_nested_workload(item)
            }
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _is_nested_workload(value: Any) -> bool:
    """Return true if a field is a pod or a container inside another kind."""
    return isinstance(value, dict) and bool({"containers", "image"} & value.keys())


def _completed(manifest: Manifest, namespace: str) -> Manifest:
    result = copy.deepcopy(manifest)
    metadata = result.setdefault("metadata", {})
    metadata.setdefault("name", "unnamed")
    if manifest["kind"] != "PersistentVolume":
        metadata["namespace"] = namespace
    if manifest["kind"] == "Service" and "spec" in manifest:
        result["spec"].setdefault("ports", [{"port": 80}])
    for pod in find_pods(Resource(type_of(result), result)):
        for constraint in pod.spec["topologySpreadConstraints"].items():
            constraint.value.setdefault("whenUnsatisfiable", "ScheduleAnyway")
        for container in pod.containers:
            if isinstance(container.node.value, dict):
                container.node.value.setdefault("name", "main")
                container.node.value.setdefault("image", "example.com/image:1")
    return result
