"""Objects that are embedded in other objects, as values or as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kube.workloads.record import steps
from policies.documents import DocumentError, embedded_values
from policies.resources import Resource
from policies.values import Node, nodes_at

_TYPE_FIELDS = ("apiVersion", "kind")


def embedded(resource: Resource) -> Iterator[Resource]:
    """Yield the items of a list, and the objects at the paths that the kind's record lists."""
    for node in resource.listed:
        yield resource.list_item(node)
    record = resource.record
    for path in record.objects if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            if _is_object(node.value):
                yield resource.embedded_object(node)
            else:
                yield from _in_text(resource, node)
    for path in record.generators if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            if _is_object(node.value):
                yield resource.embedded_object(
                    Node(_generated_object(node.value), node.parent, node.key)
                )
    for path in record.texts if record is not None else ():
        for node in nodes_at(resource.root, steps(path)):
            if _may_be_manifest(node.text):
                yield from _in_text(resource, node)


def _generated_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a generator creates: `data`, with the generator's kind and name."""
    data = value.get("data")
    fields = data if isinstance(data, dict) else {}
    declared_metadata = fields.get("metadata")
    names = {key: value[key] for key in ("name", "namespace") if key in value}
    metadata = {**(declared_metadata if isinstance(declared_metadata, dict) else {}), **names}
    return {**fields, **{key: value[key] for key in _TYPE_FIELDS}, "metadata": metadata}


def unreadable_manifests(resource: Resource) -> Iterator[Node]:
    """Yield each text that should contain only manifests, but cannot be read completely.

    Texts in ConfigMaps are skipped, because they may contain anything, such as manifest templates.
    """
    record = resource.record
    if record is None:
        return
    for path in record.objects:
        for node in nodes_at(resource.root, steps(path)):
            documents, complete = _documents(node.text or "")
            if not complete or not all(item is None or _is_object(item) for item in documents):
                yield node
    for path in () if resource.is_kind("", "ConfigMap") else record.texts:
        for node in nodes_at(resource.root, steps(path)):
            if _may_be_manifest(node.text) and not _documents(node.text or "")[1]:
                yield node


def _in_text(resource: Resource, node: Node) -> Iterator[Resource]:
    for document in _documents(node.text or "")[0]:
        if _is_object(document):
            yield resource.embedded_object(Node(document, node.parent, node.key))


def _may_be_manifest(text: str | None) -> bool:
    return text is not None and all(name in text for name in _TYPE_FIELDS)


def _documents(text: str) -> tuple[list[Any], bool]:
    """Return the documents before the first invalid one, and whether all documents are valid."""
    documents = []
    try:
        for document in embedded_values(text):
            documents.append(document)
    except DocumentError:
        return documents, False
    return documents, True


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) for name in _TYPE_FIELDS
    )
