"""Secrets in a stack's configuration, which must not appear in any output."""

import json
from collections.abc import Iterator
from typing import Any

from gitops.engine import Stack, run, stack_options
from gitops.errors import GitopsError
from gitops.stack_file import document

Steps = tuple[str | int, ...]
_SECURE = "secure"


def secure_paths(configuration: Any, path: Steps = ()) -> Iterator[Steps]:
    """Yield the paths of encrypted values in a stack's `config` mapping."""
    if isinstance(configuration, dict):
        if set(configuration) == {_SECURE}:
            yield path
            return
        for key, value in configuration.items():
            yield from secure_paths(value, (*path, key))
    elif isinstance(configuration, list):
        for index, value in enumerate(configuration):
            yield from secure_paths(value, (*path, index))


def values(stack: Stack) -> list[str]:
    """Return the decrypted secrets, so that they can be masked.

    The CLI is called only if there are secrets.

    Raises:
        GitopsError: If the secrets cannot be decrypted. A preview would fail as well.
    """
    paths = list(secure_paths(document(stack.file).get("config", {})))
    if not paths:
        return []
    result = run(stack, "config", "--show-secrets", "--json", *stack_options(stack))
    if result.status != 0:
        raise GitopsError(
            f"the secrets of stack {stack.name} cannot be decrypted; set PULUMI_CONFIG_PASSPHRASE "
            "or log in to its secrets provider, or preview with --rendered:\n"
            # stdout may contain the secrets that could be decrypted.
            f"{result.output.removeprefix(result.stdout)}"
        )
    shown = json.loads(result.stdout)
    return [text for path in paths for text in _texts(_value_at(shown, path))]


def _value_at(shown: dict[str, Any], path: Steps) -> Any:
    key, *steps = path
    entry = shown.get(str(key), {})
    value = entry.get("value")
    if not steps:
        return value
    value = entry.get("objectValue", json.loads(value or "null"))
    for step in steps:
        value = value[step]
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)] if value is not None else []
