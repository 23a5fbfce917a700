"""Redaction of the names in a snapshot."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gitops.forecast.state import State

_KEPT_QUEUES: Final = ("default", "root")
_KEPT_CLASS_PREFIX: Final = "system-"
_KNOWN_LABELS: Final = ("nvidia.com/", "kubernetes.io/", "node.kubernetes.io/")
_TOPOLOGY: Final = "topology"
_KEYS_WITHOUT_NAMES: Final = ("state", "operator", "effect", "requests", "allocatable", "reserved")
"""Keys whose values are never names. These values are kept even if they equal a replaced name."""


def redact(state: State) -> State:
    """Replace names of nodes, namespaces, gangs, queues and PriorityClasses with pseudonyms.

    A name is replaced wherever a value equals it, so references stay intact. Node labels are kept
    if a gang's constraint refers to them, if NVIDIA or Kubernetes defines them, or if their prefix
    contains `topology`. Pod labels are kept only if a constraint refers to them. The values of kept
    labels are replaced only if they equal a replaced name.
    """
    classes = [each.name for each in state.priority_classes]
    classes += [gang.priority_class for gang in state.gangs]
    queues = [queue.name for queue in state.queues]
    queues += [str(queue.spec["parent"]) for queue in state.queues if queue.spec.get("parent")]
    queues += [gang.queue for gang in state.gangs]
    hidden = {
        **_pseudonyms("namespace", (gang.namespace for gang in state.gangs)),
        **_pseudonyms(
            "priority", (c for c in classes if c and not c.startswith(_KEPT_CLASS_PREFIX))
        ),
        **_pseudonyms("queue", (queue for queue in queues if queue not in _KEPT_QUEUES)),
        **_pseudonyms("run", (gang.name for gang in state.gangs)),
        **_pseudonyms("node", (node.name for node in state.nodes)),
    }
    shapes = (shape for gang in state.gangs for shape in gang.pods)
    referenced = set(_referenced_keys([shape.constraints for shape in shapes]))
    document = state.model_dump(mode="json")
    for node in document["nodes"]:
        node["labels"] = {
            k: v for k, v in node["labels"].items() if k in referenced or _is_known(k)
        }
    for shape in (shape for gang in document["gangs"] for shape in gang["pods"]):
        shape["labels"] = {k: v for k, v in shape["labels"].items() if k in referenced}
    for part in ("nodes", "queues", "gangs", "priority_classes"):
        document[part] = _replace_names(document[part], hidden)
    return State.model_validate({**document, "redacted": True})


def _pseudonyms(prefix: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{prefix}-{n}" for n, name in enumerate(dict.fromkeys(names), 1)}


def _is_known(label: str) -> bool:
    return label.startswith(_KNOWN_LABELS) or _TOPOLOGY in label.partition("/")[0]


def _referenced_keys(value: Any) -> Iterator[str]:
    """Yield all keys in a tree, and the strings under `key` and `topologyKey`."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            if key in ("key", "topologyKey"):
                yield str(child)
            yield from _referenced_keys(child)
    elif isinstance(value, list):
        for child in value:
            yield from _referenced_keys(child)


def _replace_names(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: child if key in _KEYS_WITHOUT_NAMES else _replace_names(child, names)
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [_replace_names(child, names) for child in value]
    return names.get(value, value) if isinstance(value, str) else value
