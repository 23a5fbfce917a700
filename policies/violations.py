"""Violations of rules, edits that correct them, and the format of values in messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from policies.resources import Resource
from policies.values import UNKNOWN, Key, Node, Unknown

_SHOWN_LENGTH = 80


@dataclass(frozen=True)
class Violation:
    """A violation of a rule.

    `node` is the offending value. `write` describes the value to set instead; if it starts with
    `nothing`, the message says to remove the value. `found` is shown instead of the value if the
    value is secret, or if several values conflict. Only stack rules set `resource`.
    """

    node: Node
    write: str
    found: str | None = None
    resource: Resource | None = None

    @property
    def text(self) -> str:
        """Description of the violation, without the resource's name."""
        value = found(self.node.value) if self.found is None else f"found {self.found}"
        path = f"{self.node.path}: " if self.node.path else ""
        advice = f"write {self.write}"
        if self.write.startswith("nothing"):
            advice = f"remove it{self.write.removeprefix('nothing')}"
        return f"{path}{value}; {advice}"


@dataclass(frozen=True)
class Edit:
    """An edit that sets the value at a path.

    An index equal to the length of the list appends the value.
    """

    steps: tuple[Key, ...]
    value: Any


def found(value: Any) -> str:
    """Return the part of a message that states the value: `found …`, or `not set` for None."""
    return "not set" if value is None else f"found {show(value)}"


def show(value: Any) -> str:
    """Format a value for a message; shorten long values."""
    if value is None:
        return "no value"
    if value is UNKNOWN:
        return "a value that is not known yet"
    text = json.dumps(value, ensure_ascii=False, default=_show_nested)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def _show_nested(value: Any) -> str:
    return "(not known yet)" if isinstance(value, Unknown) else str(value)


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
