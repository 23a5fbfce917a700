"""Objects that are embedded in other objects, as values or as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kube.workloads.record import steps
from policies.documents import DocumentError, embedded_values
from policies.resources import Resource
from policies.values import Node, nodes_at

_NAMES = ("apiVersion", "kind")


def embedded(resource: Resource) -> Iterator[Resource]:
    """Yield the items of a list, and the objects at the paths in the record of the kind."""
    for node in resource.listed:
        yield resource.inside(node)
    record = resource.record
    for path in record.objects if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            if _is_object(node.value):
                yield resource.inside(node)
            else:
                yield from _in_text(resource, node)
    for path in record.generators if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            if _is_object(node.value):
                yield resource.inside(Node(_generated_object(node.value), node.parent, node.key))
    for path in record.texts if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            yield from _in_text(resource, node)


def _generated_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a generator creates: `data`, with the generator's kind and name."""
    data = value.get("data")
    fields = data if isinstance(data, dict) else {}
    stated = fields.get("metadata")
    names = {key: value[key] for key in ("name", "namespace") if key in value}
    metadata = {**(stated if isinstance(stated, dict) else {}), **names}
    return {**fields, **{key: value[key] for key in _NAMES}, "metadata": metadata}


def _in_text(resource: Resource, node: Node) -> Iterator[Resource]:
    text = node.text
    if text is None or not all(name in text for name in _NAMES):
        return
    try:
        documents = list(embedded_values(text))
    except DocumentError:
        return  # Not a manifest, or only the template of one.
    for document in documents:
        for item in _objects(document):
            yield resource.inside(Node(item, node.parent, node.key))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if not _is_object(value):
        return
    items = value.get("items")
    if str(value["kind"]).endswith("List") and isinstance(items, list):
        for item in items:
            yield from _objects(item)
    else:
        yield value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in _NAMES)
