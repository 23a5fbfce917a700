"""Applies edits to a resource's properties and preserves unknown and secret values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulumi_policy import Secret

from policies.rule import Edit
from policies.values import Key


def editable(value: Any) -> Any:
    """Copy properties to dicts and lists; secrets stay wrapped and unknowns stay sentinels.

    The SDK's proxies unwrap values on access; like its serializer, this reads the original from the
    key `__target`.
    """
    if isinstance(value, Secret):
        return Secret(editable(value.value))
    if isinstance(value, dict):
        return {key: editable(item) for key, item in value.items()}
    if isinstance(value, Mapping):
        return editable(value["__target"])
    if isinstance(value, list):
        return [editable(item) for item in value]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        target: Any = value
        return editable(target["__target"])
    return value


def apply_edits(properties: dict[str, Any], edits: Iterable[Edit]) -> None:
    """Apply the edits in place and in order, and create missing objects on their paths."""
    for edit in edits:
        _set(properties, edit.steps, edit.value)


def _set(holder: Any, steps: Sequence[Key], value: Any) -> None:
    for step in steps[:-1]:
        child = holder[step] if isinstance(step, int) else holder.get(step)
        if child is None:
            child = holder[step] = {}
        holder = child.value if isinstance(child, Secret) else child
    last = steps[-1]
    if isinstance(holder, list) and last == len(holder):
        holder.append(value)
    else:
        holder[last] = value
