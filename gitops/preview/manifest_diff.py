"""The difference of the manifests, and of what a chart or a build is given, as diffs of YAML."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from gitops.preview.objects import Change
from policies.resources import Resource
from policies.values import UNKNOWN
from policies.views import View

UNKNOWN_SHOWN = "(known after the update)"
_RUN_HASH = re.compile(r"-[0-9a-f]{8}(?=-|$)")


@dataclass(frozen=True)
class Difference:
    """A changed object; `lines` is a unified diff."""

    title: str
    lines: tuple[str, ...]


def differences(found: Iterable[Change]) -> list[Difference]:
    """The differences, in order. A run that takes the place of another is compared with it."""
    changed = [c for c in found if c.step.operation != "same"]
    made = {_key(c): c for c in changed if c.step.operation == "create"}
    gone = {_key(c): c for c in changed if c.step.operation == "delete"}
    pairs = made.keys() & gone.keys()
    result = [
        _difference(f"{gone[key].title} → {made[key].resource.name}", gone[key].old, made[key].new)
        for key in pairs
    ]
    paired = {id(side[key]) for key in pairs for side in (made, gone)}
    result += [_difference(c.title, c.old, c.new) for c in changed if id(c) not in paired]
    return sorted((item for item in result if item.lines), key=lambda item: item.title)


def _key(change: Change) -> tuple[str, str]:
    """The same for two runs of one job, whose names differ in a hash."""
    return change.step.type, _RUN_HASH.sub("-", change.step.name)


def _difference(title: str, old: View | None, new: View | None) -> Difference:
    before = _yaml(old.resource) if old is not None else []
    after = _yaml(new.resource) if new is not None else []
    lines = difflib.unified_diff(before, after, "now", "after", lineterm="")
    return Difference(title, tuple(lines))


def _yaml(resource: Resource) -> list[str]:
    text: str = yaml.dump(
        _shown(resource.properties), Dumper=yaml.CSafeDumper, sort_keys=True, width=100
    )
    return text.splitlines()


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return UNKNOWN_SHOWN if value is UNKNOWN else value


def unknown_fields(resource: Resource) -> list[str]:
    """The fields that only the update will tell, as paths."""
    return sorted(_unknown(resource.root))


def _unknown(node: Any) -> Iterable[str]:
    if not node.known:
        yield node.path
    for _, child in node.fields():
        yield from _unknown(child)
    if isinstance(node.value, list):
        for index in range(len(node.value)):
            yield from _unknown(node[index])
