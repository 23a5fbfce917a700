"""Changes of a plan: objects before and after the update, manifest diffs, options and outputs."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import yaml

from gitops.demand import is_suspended
from gitops.preview.events import State, Step
from gitops.preview.report import Difference
from policies.resources import Resource
from policies.values import UNKNOWN
from policies.views import View

_UNKNOWN_PLACEHOLDER = "(known after the update)"
_INTERNAL_TYPES = ("pulumi:", "gpu-platform:")
_PROVIDER_TYPE = "pulumi:providers:"
_RUN_HASH = re.compile(r"-[0-9a-f]{8}(?=-|$)")


@dataclass(frozen=True)
class Change:
    """A step of a plan, with the object before and after the step."""

    step: Step

    @cached_property
    def old(self) -> View | None:
        """The current object; None if the step creates it."""
        return self._view(self.step.old) if self.step.operation != "create" else None

    @cached_property
    def new(self) -> View | None:
        """The future object; None if the step deletes it."""
        return self._view(self.step.new)

    @property
    def adopts(self) -> bool:
        """True if the stack starts managing an object that already exists in the cluster."""
        old, new = (self._identity(each)[:2] for each in (self.step.old, self.step.new))
        return self.step.found and (old != new or "provider" in self.step.replaced_for)

    @property
    def is_deleted_last(self) -> bool:
        """True if the engine deletes the new object at the end of the update.

        This happens if an earlier update replaced the object but failed before deleting the old
        one, and this update reverts the replacement. The new and the old resource are then the same
        object in the cluster, and the engine still deletes it.
        """
        if self.step.new is None:
            return False
        live = self._identity(self.step.old) if self.step.operation == "replace" else None
        # The identity of a new provider is not known yet.
        moves = "provider" in self.step.replaced_for
        new = self._identity(self.step.new)[: 2 if moves else 3]
        left = [self._identity(each) for each in self.step.deleted_last if not each.retained]
        return any(each[: len(new)] == new for each in left if each != live)

    def _identity(self, state: State | None) -> tuple[str | None, ...]:
        view = self._view(state)
        if view is None or state is None:
            return ()
        return view.resource.namespace, view.resource.name, state.provider

    def _view(self, state: State | None) -> View | None:
        if state is None:
            return None
        step = self.step
        return View(
            Resource(
                step.type, state.inputs, name=step.name, urn=step.urn, protected=state.protected
            )
        )

    @property
    def resource(self) -> Resource:
        """The new object, or the old one if the step deletes it."""
        view = self.new or self.old
        if view is None:
            return Resource(self.step.type, {}, name=self.step.name, urn=self.step.urn)
        return view.resource

    @property
    def title(self) -> str:
        """Kind, name and namespace of a Kubernetes object; type and name of any other resource."""
        resource = self.resource
        if not resource.is_manifest:
            return f"{resource.pulumi_type.rpartition(':')[2]} {self.step.name}"
        namespace = resource.root["metadata"]["namespace"].text
        return f"{resource.kind} {resource.name}" + (f" in {namespace}" if namespace else "")

    @property
    def suspends(self) -> bool:
        """True if the step suspends a job."""
        return not self._was_suspended and self.new is not None and is_suspended(self.new.resource)

    @property
    def resumes(self) -> bool:
        """True if the step resumes a suspended job."""
        return self._was_suspended and self.new is not None and not is_suspended(self.new.resource)

    @property
    def _was_suspended(self) -> bool:
        return self.old is not None and is_suspended(self.old.resource)

    @property
    def is_retained(self) -> bool:
        """True if the object stays in the cluster when it is removed from the stack."""
        return self.step.old is not None and self.step.old.retained


def changes(steps: tuple[Step, ...]) -> list[Change]:
    """Return the steps of all resources except components and the stack itself.

    Providers are included only if they change. Their changes can affect the deletion of resources,
    because Pulumi uses the last configuration of a provider to delete its resources.
    """
    return [Change(step) for step in steps if _is_reported(step)]


def _is_reported(step: Step) -> bool:
    if step.type.startswith(_PROVIDER_TYPE):
        return step.operation in ("update", "replace")
    return not step.type.startswith(_INTERNAL_TYPES)


def before(changes: list[Change]) -> Iterator[View]:
    """Yield every Kubernetes object of the stack before the update."""
    return (c.old for c in changes if c.old is not None and c.old.resource.is_manifest)


def after(changes: list[Change]) -> Iterator[View]:
    """Yield every Kubernetes object of the stack after the update."""
    return (c.new for c in changes if c.new is not None and c.new.resource.is_manifest)


def differences(changes: Iterable[Change]) -> list[Difference]:
    """Return the diffs, sorted by title. A new run is compared with the run that it replaces."""
    changed = [c for c in changes if c.step.operation != "same"]
    created = {_key(c): c for c in changed if c.step.operation == "create"}
    deleted = {_key(c): c for c in changed if c.step.operation == "delete"}
    pairs = created.keys() & deleted.keys()
    result = [
        _difference(
            f"{deleted[key].title} → {created[key].resource.name}",
            deleted[key].old,
            created[key].new,
        )
        for key in pairs
    ]
    paired = {id(side[key]) for key in pairs for side in (created, deleted)}
    result += [_difference(c.title, c.old, c.new) for c in changed if id(c) not in paired]
    return sorted((item for item in result if item.lines), key=lambda item: item.title)


def _key(change: Change) -> tuple[str, str]:
    """Return a key that all runs of a job share. Their names differ only in a hash."""
    return change.step.type, _RUN_HASH.sub("-", change.step.name)


def _difference(title: str, old: View | None, new: View | None) -> Difference:
    now = _yaml(old.resource) if old is not None else []
    later = _yaml(new.resource) if new is not None else []
    lines = difflib.unified_diff(now, later, "now", "after", lineterm="")
    return Difference(title=title, lines=list(lines))


def _yaml(resource: Resource) -> list[str]:
    text: str = yaml.dump(
        with_placeholders(resource.properties), Dumper=yaml.CSafeDumper, sort_keys=True, width=100
    )
    return text.splitlines()


def with_placeholders(value: Any) -> Any:
    """Return plain data in which a placeholder replaces each unknown value."""
    if isinstance(value, dict):
        return {key: with_placeholders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_placeholders(item) for item in value]
    return _UNKNOWN_PLACEHOLDER if value is UNKNOWN else value


def unknown_fields(resource: Resource) -> list[str]:
    """Return the paths of the fields that are known only after the update."""
    return sorted(_unknown(resource.root))


def _unknown(node: Any) -> Iterable[str]:
    if not node.known:
        yield node.path
    for _, child in node.fields():
        yield from _unknown(child)
    if isinstance(node.value, list):
        for index in range(len(node.value)):
            yield from _unknown(node[index])


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
