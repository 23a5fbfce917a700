"""Kubernetes objects from multi-document YAML, with the line of each field.

The reader is strict. It rejects duplicate keys, ambiguous separators, aliases that expand to too
many values, and objects without apiVersion or kind. Each error names the file and, if known, the
document.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from policies.kubernetes_yaml import Loader, key_of
from policies.values import Key
from policies.violations import found, show

_KUSTOMIZE = "kustomize.config.k8s.io/"
_KUSTOMIZE_KINDS = ("Kustomization", "Component")
_MAX_VALUES = 2_000_000
_SURROGATES = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(?:\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Escaped surrogates, paired or unpaired, after an even number of backslashes."""
_SPACE = frozenset(" \t\r\n\ufeff")
_SEPARATOR = re.compile(r"^---(?=[^ \t\r\n])\s*(#|$)", re.MULTILINE)
"""Lines, such as `---#`, that separate documents for kubectl, but are keys or text in YAML."""


class DocumentError(ValueError):
    """Text that cannot be checked; the message names the file and, if known, the document."""


@dataclass(frozen=True)
class Document:
    """One object, with its file and its YAML node; lines are counted from 1.

    If the YAML document is a list of objects, `base` is the path of the object in the document.
    """

    source: str
    manifest: dict[str, Any]
    node: Any
    base: tuple[Key, ...] = ()

    def line(self, steps: tuple[Key, ...] = ()) -> int:
        """Return the line of a field, or of its nearest existing ancestor."""
        node, line = self.node, self.node.start_mark.line
        for step in steps:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                found = node.value[step : step + 1]
                children = [(child, child) for child in found]
            elif isinstance(node, yaml.MappingNode):
                children = [pair for pair in node.value if key_of(pair[0]) == step]
            else:
                break
            if not children:
                break
            key, node = children[-1]
            line = key.start_mark.line
        return int(line) + 1


def read(
    source: str, text: str | bytes, skip: Callable[[str], None] | None = None
) -> Iterator[Document]:
    """Yield the objects in a text, including list items; raise `DocumentError` if it is invalid.

    For a document that is not a Kubernetes object, such as a kustomization or Helm values, `skip`
    is called with a message that contains the location and the reason. If `skip` is None, such a
    document is an error.
    """
    for location, value, node in _documents(source, text):
        reason = _skip_reason(value)
        if reason and skip is not None:
            skip(f"{location}: {reason}")
        else:
            yield from _objects(source, location, value, node)


def embedded_values(text: str) -> Iterator[Any]:
    """Yield the YAML documents of a text embedded in an object, as data with string keys.

    Raise `DocumentError` at the first invalid document. The same limits apply as for files.
    """
    # The program that reads the text may recognize the same separators as kubectl.
    for _, value, _ in _documents("the text", _SEPARATOR.sub("--- #", text)):
        yield value


def _documents(source: str, text: str | bytes) -> Iterator[tuple[str, Any, Any]]:
    """Yield the location, the value and the YAML node of each document."""
    number = 1
    loader = None
    decoded = text if isinstance(text, str) else text.decode(errors="replace")
    if separator := _SEPARATOR.search(decoded):
        line = decoded.count("\n", 0, separator.start()) + 1
        raise DocumentError(
            f"{source}, line {line}: found {separator[0].strip()!r}, which only kubectl reads as a "
            "separator; write --- on a line without other characters"
        )
    try:
        loader = Loader(_separated(_without_surrogates(text)))
        while loader.check_node():
            node = loader.get_node()
            location = f"{source}, document {number}"
            yield location, _plain(loader.construct_document(node), location), node
            number += 1
    except yaml.YAMLError as error:
        raise DocumentError(f"{source}, document {number}{_explain(error, text)}") from None
    except RecursionError:
        raise DocumentError(
            f"{source}, document {number}: it refers to itself or is nested too deeply"
        ) from None
    except UnicodeEncodeError:
        raise DocumentError(f"{source}: it contains an unpaired surrogate") from None
    finally:
        if loader is not None:
            loader.dispose()


def _without_surrogates(text: str | bytes) -> str | bytes:
    """Return a JSON text with its escaped surrogates decoded, and any other text unchanged.

    YAML has no surrogate pairs, but kubectl accepts them in JSON. An unpaired surrogate becomes the
    replacement character.
    """
    data = text.encode() if isinstance(text, str) else text
    if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"[")):
        return text
    replaced = _SURROGATES.sub(_replacement, data)
    return text if replaced == data else replaced


def _replacement(match: re.Match[bytes]) -> bytes:
    backslashes, high, low = match.groups()
    replacement = "\N{REPLACEMENT CHARACTER}".encode()
    if not low:
        return bytes(backslashes) + replacement
    units = bytes.fromhex((high + low).decode())
    return bytes(backslashes) + units.decode("utf-16-be").encode()


def _separated(text: str | bytes) -> str | bytes:
    """Return consecutive JSON objects with separators between them, and other text unchanged.

    kubectl needs no separators between JSON objects, and jq writes none.
    """
    decoded = text if isinstance(text, str) else text.decode(errors="replace")
    start = _end_of_space(decoded, 0)
    beginning, objects = decoded[:start], []
    try:
        while decoded.startswith("{", start):
            end = json.JSONDecoder().raw_decode(decoded, start)[1]
            following = _end_of_space(decoded, end)
            lines = max(decoded.count("\n", end, following), 1)
            objects.append(decoded[start:end] + "\n" * lines)
            start = following
    except (ValueError, RecursionError):
        return text
    if start < len(decoded) or len(objects) < 2:
        return text
    return beginning + "--- ".join(objects)


def _end_of_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    while text[position : position + 1] in _SPACE:
        position += 1
    return position


def _skip_reason(value: Any) -> str | None:
    """Return the reason to skip a document that is not a Kubernetes object, otherwise None."""
    if not isinstance(value, dict):
        return None
    version, kind = value.get("apiVersion", _KUSTOMIZE), value.get("kind")
    if isinstance(version, str) and version.startswith(_KUSTOMIZE) and kind in _KUSTOMIZE_KINDS:
        return "a kustomization; pass the output of kustomize build"
    if "apiVersion" not in value and "kind" not in value:
        return "it has neither apiVersion nor kind"
    return None


def _objects(
    source: str, location: str, value: Any, node: Any, base: tuple[Key, ...] = ()
) -> Iterator[Document]:
    """Yield an object, or the objects in a list; raise `DocumentError` if one is invalid."""
    if value is None:
        return  # The document contains only comments.
    if not isinstance(value, dict):
        raise DocumentError(
            f"{location}: found {show(value)}; write an object with apiVersion and kind"
        )
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise DocumentError(f"{location}: {key}: {found(value.get(key))}; write a name")
    items = value.get("items")
    if items is None:
        yield Document(source, value, node, base)
        return
    # kubectl treats every object with items as a list, regardless of its kind.
    if not isinstance(items, list):
        raise DocumentError(f"{location}: items: found {show(items)}; write a list of objects")
    items_node = next(child for key, child in node.value if key_of(key) == "items")
    kind = value["kind"].removesuffix("List")
    for index, item in enumerate(items):
        if isinstance(item, dict) and kind and not ("apiVersion" in item or "kind" in item):
            item |= {"apiVersion": value["apiVersion"], "kind": kind}
        path = (*base, "items", index)
        yield from _objects(
            source, f"{location}, items[{index}]", item, items_node.value[index], path
        )


def _plain(value: Any, location: str) -> Any:
    """Return plain data; raise `DocumentError` if its aliases expand to too many values."""
    count = 0

    def convert(item: Any) -> Any:
        nonlocal count
        count += 1
        if count > _MAX_VALUES:
            raise DocumentError(f"{location}: its aliases expand to more than {_MAX_VALUES} values")
        if isinstance(item, dict):
            return {key: convert(entry) for key, entry in item.items()}
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
    hint = "; if it is a template, render it first (helm template)" if template else ""
    return f"{line}: invalid YAML: {problem}{hint}"
