"""YAML as kubectl reads it, with the line of each value.

kubectl reads YAML 1.1 with sigs.k8s.io/yaml, which differs from PyYAML: `y` and `n` are
booleans, `1:30` is a string, `0o14` is 12, keys become strings, and a merge (`<<`) overrides the
keys that precede it. A check that reads a manifest differently can be evaded.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import yaml

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = "!plain"
_MERGE = f"{_PREFIX}merge"
_BOOLEANS: dict[str, bool | None] = (
    dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True)
    | dict.fromkeys(["n", "N", "no", "No", "NO"], False)
    | dict.fromkeys(["false", "False", "FALSE", "off", "Off", "OFF"], False)
    | dict.fromkeys(["", "~", "null", "Null", "NULL"])
)
_INTEGERS = (
    (re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)"), 16),
    (re.compile(r"([-+]?)0[bB]([01]+)"), 2),
    (re.compile(r"([-+]?)0[oO]?([0-7]+)"), 8),
    (re.compile(r"([-+]?)(0|[1-9][0-9]{0,19})"), 10),
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_MAX_INTEGRAL = 1e15
"""Floats below this value are converted to integers if they have no fractional part."""
_MAX_DEPTH = 200
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "null": (type(None),),
}


@lru_cache(maxsize=100_000)
def scalar(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[:1] not in ".+-0123456789":
        return text
    number = text.replace("_", "")
    for pattern, base in _INTEGERS:
        if match := pattern.fullmatch(number):
            value = int(match[1] + match[2], base)
            if _SMALLEST <= value <= _LARGEST:
                return value
    decimal = float(number) if _FLOAT.fullmatch(number) else math.inf
    if math.isinf(decimal):
        return text
    # JSON does not distinguish 8.0 from 8.
    return int(decimal) if decimal.is_integer() and abs(decimal) < _MAX_INTEGRAL else decimal


class BoundedLoader(yaml.CSafeLoader):
    """Loader that rejects deep nesting, which would crash libyaml's recursive composer."""

    _depth = 0

    def descend_resolver(self, parent: Any, index: Any) -> None:
        """Increase the depth before a node, and reject a node that is too deep."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _error(parent, f"it is nested deeper than {_MAX_DEPTH} levels")

    def ascend_resolver(self) -> None:
        """Decrease the depth after a node."""
        self._depth -= 1


class Loader(BoundedLoader):
    """Loader that reads plain scalars and merge keys like kubectl, and rejects duplicate keys."""

    def __init__(self, stream: str | bytes) -> None:
        # Maps the ids of nodes to the nodes, which stay alive, so that no id is reused.
        self._flattened: dict[int, Any] = {}
        super().__init__(stream)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node without an explicit tag."""
        if kind is not yaml.ScalarNode:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if not implicit[0]:
            return f"{_PREFIX}str"
        return _MERGE if value == "<<" else _PLAIN

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return an object with strings as keys, because 1 and True are equal in Python."""
        self.flatten_mapping(node)
        return {key_of(key): self.construct_object(value, deep) for key, value in node.value}

    def flatten_mapping(self, node: Any) -> None:
        """Replace merges with the keys that they add or override."""
        if id(node) in self._flattened:
            return
        self._flattened[id(node)] = node
        seen: set[str] = set()
        pairs: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                pairs |= self._merged(value)
                continue
            name = key_of(key)
            if name in seen:
                raise _error(key, f"the key {name!r} appears twice")
            seen.add(name)
            pairs[name] = (key, value)
        node.value = list(pairs.values())

    def _merged(self, node: Any) -> dict[str, tuple[Any, Any]]:
        """Return the fields of the merged objects; earlier objects take precedence."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        pairs: dict[str, tuple[Any, Any]] = {}
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                raise _error(source, "a merge (<<) needs an object or a list of objects")
            self.flatten_mapping(source)
            pairs |= {key_of(key): (key, value) for key, value in source.value}
        return pairs


def key_of(node: Any) -> str:
    """Return the key that a node represents."""
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, "a key is an object or a list; write a string")
    value = node.value if node.tag == f"{_PREFIX}str" else scalar(node.value)
    if value is None:
        raise _error(node, "a key is null; write a string")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(node: Any, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _plain(_: Any, node: Any) -> Any:
    return scalar(node.value)


def _construct_typed(_: Any, node: Any) -> Any:
    """Return a value with an explicit type, such as `!!int`."""
    name = node.tag.removeprefix(_PREFIX)
    value = scalar(node.value)
    if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and name != "bool"):
        raise _error(node, f"found {node.value!r}, which is not of type {name}")
    return value


def _binary(_: Any, node: Any) -> str:
    """Return the text of a base64-encoded value."""
    try:
        return base64.b64decode("".join(node.value.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _error(node, "its !!binary value is not base64-encoded UTF-8 text") from None


# Kubernetes does not support the other types (dates, sets, pairs).
_KNOWN_TAGS = (None, *(f"{_PREFIX}{name}" for name in ("map", "seq", "str")))
Loader.yaml_constructors = {tag: yaml.CSafeLoader.yaml_constructors[tag] for tag in _KNOWN_TAGS} | {
    _PLAIN: _plain,
    f"{_PREFIX}binary": _binary,
    **{f"{_PREFIX}{name}": _construct_typed for name in _TYPES},
}


class Dumper(yaml.SafeDumper):
    """Dumper that writes no anchors, and quotes strings that kubectl would read as other types.

    PyYAML writes `1e3`, `08` and `y` without quotes, because PyYAML itself reads them as strings.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that no anchors are written."""
        return True


def _represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
    style = None if scalar(text) == text else "'"
    return dumper.represent_scalar(f"{_PREFIX}str", text, style=style)


Dumper.add_representer(str, _represent_text)
