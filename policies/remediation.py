"""Application of remediation edits to plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from policies.values import Key
from policies.violations import Edit


def _identity(value: Any) -> Any:
    return value


def apply_edits(
    properties: Any, edits: Iterable[Edit], unwrap: Callable[[Any], Any] = _identity
) -> None:
    """Apply the edits in place and in order, creating missing objects along the paths.

    `unwrap` returns the value inside a wrapper, such as a secret.
    """
    for edit in edits:
        _set(properties, edit.steps, edit.value, unwrap)


def _set(parent: Any, steps: Sequence[Key], value: Any, unwrap: Callable[[Any], Any]) -> None:
    for step in steps[:-1]:
        child = parent[step] if isinstance(step, int) else parent.get(step)
        if child is None:
            child = parent[step] = {}
        parent = unwrap(child)
    last = steps[-1]
    if isinstance(parent, list) and last == len(parent):
        parent.append(value)
    else:
        parent[last] = value
