"""Kubernetes objects from multi-document YAML, with the line of each field.

The reader is strict: documents without apiVersion and kind, duplicate keys (of which Kubernetes
might use another one) and aliases that expand without bounds are errors that name file and
document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from policies.rule import show
from policies.values import Key

_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MAX_VALUES = 2_000_000


class DocumentError(ValueError):
    """The text cannot be checked; the message names file and document."""


@dataclass(frozen=True)
class Document:
    """One object with the file and line where it begins; lines are counted from 1."""

    source: str
    manifest: dict[str, Any]
    node: Any

    def line(self, steps: tuple[Key, ...] = ()) -> int:
        """Return the line of a field, or of the innermost existing object around it."""
        node, line = self.node, self.node.start_mark.line
        for step in steps:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                found = node.value[step : step + 1]
                children = [(child, child) for child in found]
            elif isinstance(node, yaml.MappingNode):
                children = [pair for pair in node.value if pair[0].value == step]
            else:
                break
            if not children:
                break
            key, node = children[-1]
            line = key.start_mark.line
        return int(line) + 1


class _Loader(yaml.CSafeLoader):
    """Loads dates as strings, as Kubernetes does, and refuses duplicate keys."""

    def __init__(self, stream: str | bytes) -> None:
        # Manifests repeat their scalars, and resolving the type of a scalar is slow.
        self._resolved: dict[tuple[str, Any], str] = {}
        super().__init__(stream)

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library's own way
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is not yaml.ScalarNode:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        known = self._resolved.get((value, implicit))
        if known is None:
            known = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
            self._resolved[value, implicit] = known
        return known

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.tag != _MERGE and isinstance(key.value, str):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is written twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read(source: str, text: str | bytes) -> Iterator[Document]:
    """Return the objects of a text, lists unfolded. Raises `DocumentError`."""
    number = 1
    loader = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            place = f"{source}, document {number}"
            yield from _objects(source, place, _plain(loader.construct_document(node), place), node)
            number += 1
    except yaml.YAMLError as error:
        raise DocumentError(f"{source}, document {number}{_explain(error, text)}") from None
    except RecursionError:
        raise DocumentError(
            f"{source}, document {number}: it refers to itself or is nested too deeply"
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def _objects(source: str, place: str, value: Any, node: Any) -> Iterator[Document]:
    if value is None:
        return  # a document of comments only
    if not isinstance(value, dict):
        raise DocumentError(f"{place}: found {show(value)}; write an object with apiVersion, kind")
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise DocumentError(f"{place}: {key}: found {show(value.get(key))}; write a name")
    items = value.get("items")
    if value["kind"].endswith("List") and isinstance(items, list):
        holder = next(child for key, child in node.value if key.value == "items")
        for index, item in enumerate(items):
            yield from _objects(source, f"{place}, items[{index}]", item, holder.value[index])
    else:
        yield Document(source, value, node)


def _plain(value: Any, place: str) -> Any:
    """Return the value with string keys, limited in size: aliases may multiply it."""
    count = 0

    def convert(item: Any) -> Any:
        nonlocal count
        count += 1
        if count > _MAX_VALUES:
            raise DocumentError(f"{place}: its aliases make it larger than {_MAX_VALUES} values")
        if isinstance(item, dict):
            return {str(key): convert(entry) for key, entry in item.items()}
        if isinstance(item, list):
            return [convert(entry) for entry in item]
        if item is None or isinstance(item, str | int | float):
            return item
        return str(item)

    return convert(value)


def _explain(error: yaml.YAMLError, text: str | bytes) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark is not None else ""
    problem = getattr(error, "problem", None) or str(error).replace("\n", " ")
    template = b"{{" in text if isinstance(text, bytes) else "{{" in text
    hint = "; is it a template? Render it first, with helm template" if template else ""
    return f"{line}: this is not YAML: {problem}{hint}"
