"""A rule violation: a change to a complete, compliant stack, and the expected message."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from policies.catalogue import RULES_BY_NAME
from tests.policies import manifests
from tests.policies.harness import Manifest, changed

POD = "spec/tasks/0/template/spec"
MAIN = f"{POD}/containers/0"
LIMITS = f"{MAIN}/resources/limits"
REQUESTS = f"{MAIN}/resources/requests"
CONTEXT = f"{MAIN}/securityContext"
SERVER = "spec/template/spec/containers/0"
Build = Callable[[], Manifest]


@dataclass(frozen=True)
class Case:
    """A rule violation caused by a changed or missing manifest in the stack."""

    rule: str
    build: Build
    edits: tuple[tuple[str, Any], ...] = ()
    reports: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    removed: bool = False
    others: tuple[Build, ...] = field(default=())

    @property
    def of_stack(self) -> bool:
        """True if the rule evaluates the complete stack."""
        return RULES_BY_NAME[self.rule].scope == "stack"

    def stack(self) -> list[Manifest]:
        """Return the complete stack with the invalid manifest in place of the compliant one."""
        good = self.build()
        other_manifests = [item for item in manifests.whole_stack() if item != good]
        invalid = [] if self.removed else [changed(good, *self.edits)]
        return [*other_manifests, *invalid, *(build() for build in self.others)]


def job(rule: str, *edits: tuple[str, Any], reports: tuple[str, ...], **kwargs: Any) -> Case:
    return Case(rule, manifests.volcano_job, edits, reports, **kwargs)
