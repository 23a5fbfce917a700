"""A team's custom rule: every workload has a label with the name of the team that owns it."""

from collections.abc import Iterator

from pydantic import Field

from policies.controllers import Workload
from policies.rule import Level, RuleConfig, Severity, Violation, workload_rule


class OwnerConfig(RuleConfig):
    """Configuration of `owner-named`."""

    label: str = Field(default="example.com/owner", description="Label that names the owning team.")


@workload_rule(
    name="owner-named",
    description="Every workload has a label with the team that owns it.",
    severity=Severity.LOW,
    level=Level.MANDATORY,
    remediation="Add the label, with the name of your team as its value.",
    config=OwnerConfig,
    url="https://wiki.example.com/rules#owner-named",
)
def owner_named(workload: Workload, config: OwnerConfig) -> Iterator[Violation]:
    """On-call engineers need to know whom to ask."""
    owner = workload.resource.labels[config.label]
    if owner.known and not owner.text:
        yield Violation(owner, "the name of your team")
