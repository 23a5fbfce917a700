"""Changes that are not visible in manifests: resource options and stack outputs."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gitops.preview.changes import Change, with_placeholders
from policies.values import UNKNOWN

_MAX_LENGTH: Final = 120
_MISSING: Final = object()


def option_changes(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a sentence for each changed option of a resource that stays in the stack."""
    for change in changes:
        old, new = change.step.old, change.step.new
        if old is None or new is None or change.step.operation not in ("same", "update"):
            continue
        if old.protected != new.protected:
            if new.protected:
                effect = "is protected (`protect`): updates that delete it will be rejected"
            else:
                effect = "is no longer protected (`protect`): an update may delete it"
            yield f"`{change.title}` {effect}."
        if old.retained != new.retained:
            effect = "kept in the cluster" if new.retained else "deleted"
            yield f"`{change.title}` will be {effect} when it is removed from the stack."


def output_changes(now: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield `path: value now → value after` for each changed output of the stack."""
    if isinstance(now, dict) and isinstance(after, dict):
        for key in sorted(now.keys() | after.keys(), key=str):
            inner = f"{path}.{key}" if path else str(key)
            yield from output_changes(now.get(key, _MISSING), after.get(key, _MISSING), inner)
    elif now != after:
        yield f"`{path}`: {_shown(now)} → {_shown(after)}"


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "none"
    if value is UNKNOWN:
        return str(with_placeholders(value))
    text = json.dumps(with_placeholders(value), default=str, ensure_ascii=False, sort_keys=True)
    return f"`{text}`" if len(text) <= _MAX_LENGTH else f"`{text[: _MAX_LENGTH - 1]}…`"
