"""The Kubernetes objects of a plan, before and after, as the policy pack's views see them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gitops.preview.events import State, Step
from policies.resources import Resource
from policies.views import View

_INTERNAL = ("pulumi:", "gpu-platform:")


@dataclass(frozen=True)
class Change:
    """A step with the objects on its two sides."""

    step: Step

    @cached_property
    def old(self) -> View | None:
        """The object as it is; None where the step creates it."""
        return self._view(self.step.old) if self.step.operation != "create" else None

    @cached_property
    def new(self) -> View | None:
        """The object as it will be; None where the step deletes it."""
        return self._view(self.step.new)

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
        """The newest object that is known."""
        view = self.new or self.old
        if view is None:
            return Resource(self.step.type, {}, name=self.step.name, urn=self.step.urn)
        return view.resource

    @property
    def title(self) -> str:
        """Such as `PersistentVolumeClaim checkpoints in ml-prod`; Pulumi's name for the rest."""
        resource = self.resource
        if not resource.is_manifest:
            return f"{resource.pulumi_type.rpartition(':')[2]} {self.step.name}"
        place = resource.root["metadata"]["namespace"].text
        return f"{resource.kind} {resource.name}" + (f" in {place}" if place else "")

    @property
    def is_retained(self) -> bool:
        """Whether the object stays in the cluster after it has left the stack."""
        return self.step.old is not None and self.step.old.retained


def changes(steps: tuple[Step, ...]) -> list[Change]:
    """The steps about anything but components, providers and the stack itself."""
    return [Change(step) for step in steps if not step.type.startswith(_INTERNAL)]


def before(found: list[Change]) -> Iterator[View]:
    """Every Kubernetes object that the stack has now."""
    return (c.old for c in found if c.old is not None and c.old.resource.is_manifest)


def after(found: list[Change]) -> Iterator[View]:
    """Every Kubernetes object that it will have."""
    return (c.new for c in found if c.new is not None and c.new.resource.is_manifest)
