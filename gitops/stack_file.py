"""Parser for stack configuration files that reads YAML in the same way as Pulumi.

Pulumi's parser differs from PyYAML: `no`, `on` and `1:30` are strings, `1e3` and `08` are numbers,
keys become strings, and a duplicate key is an error.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from gitops.errors import GitopsError
from infra.settings.problems import PROJECT
from policies import kubernetes_yaml

_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_PLAIN_TAG: Final = "!plain"
_MERGE_TAG: Final = f"{_TAG_PREFIX}merge"
_BOOLEANS: Final = ("true", "True", "TRUE", "false", "False", "FALSE")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_INFINITE_OR_NAN: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _Loader(kubernetes_yaml.BoundedLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        # Deep construction rejects recursive aliases.
        self.deep_construct = True

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node without an explicit tag."""
        if kind is not yaml.ScalarNode:
            return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if not implicit[0]:
            return f"{_TAG_PREFIX}str"
        return _MERGE_TAG if value == "<<" else _PLAIN_TAG

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping whose keys are strings."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = _key(key)
            if key.tag != _MERGE_TAG and name in seen:
                raise _error(key, f"the key {name!r} is defined twice")
            seen.add(name)
        self.flatten_mapping(node)
        return {_key(key): self.construct_object(value, deep) for key, value in node.value}


def _key(node: Any) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _error(node, "a key must be a string, not an object or a list")
    value = _scalar(node) if node.tag == _PLAIN_TAG else node.value
    if value is None:
        raise _error(node, "a key must be a string, not null")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(node: Any) -> Any:
    """Return the value of an unquoted scalar."""
    text = node.value
    if _DATE.fullmatch(text):
        raise _error(node, f"Pulumi reads {text} as a date and changes it; quote it")
    if _INFINITE_OR_NAN.fullmatch(text):
        raise _error(node, f"{text} is not a finite number")
    value = kubernetes_yaml.scalar(text)
    # Kubernetes reads `yes`, `on` and `n` as booleans, but Pulumi does not.
    return text if isinstance(value, bool) and text not in _BOOLEANS else value


def _error(node: Any, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


# Other tags (`!!set`, `!!binary`) are not useful in a configuration and are rejected.
_Loader.yaml_constructors = {
    tag: yaml.CSafeLoader.yaml_constructors[tag]
    for tag in (None, *(f"{_TAG_PREFIX}{name}" for name in ("map", "seq", "str")))
} | {_PLAIN_TAG: lambda _, node: _scalar(node)}


class Dumper(kubernetes_yaml.Dumper):
    """Dumper that also quotes strings that Pulumi would read as dates, such as 2026-1-1."""


Dumper.add_implicit_resolver(f"{_TAG_PREFIX}timestamp", _DATE, list("0123456789"))


def parse(text: str) -> Any:
    """Parse YAML in the same way as Pulumi.

    Raises:
        YAMLError: If Pulumi rejects the text or would change a value.
    """
    return yaml.load(text, _Loader)  # noqa: S506  constructs plain data only


def document(file: Path) -> dict[str, Any]:
    """Return the content of a stack's configuration file.

    Raises:
        GitopsError: If the file cannot be read or is not the configuration of a stack.
    """
    try:
        return document_of(file.read_bytes(), str(file))
    except OSError as error:
        raise GitopsError(f"the configuration {file} cannot be read: {error}") from error


def document_of(content: bytes, file: str) -> dict[str, Any]:
    """Parse the content of a stack's configuration file.

    Raises:
        GitopsError: If the content is not a stack's configuration. The message names the file.
    """
    try:
        value = parse(content.decode())
    except (ValueError, yaml.YAMLError) as error:
        raise GitopsError(f"the configuration {file} cannot be read: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("config", {}), dict):
        raise GitopsError(
            f"{file} is not the configuration of a stack: it must contain `config:` with its keys"
        )
    return value


def section(configuration: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a stack's configuration; empty if it is missing."""
    value = configuration.get("config", {}).get(f"{PROJECT}:{name}")
    return value if isinstance(value, dict) else {}
