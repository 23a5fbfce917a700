"""Rules about scheduling, which `python -m gitops preview --simulate` evaluates.

The policy pack only declares these rules, so that its configuration can contain their levels and
settings. It never evaluates the rules, because it cannot simulate the scheduler.
"""

from typing import Any, Final

from pydantic import Field

from policies.rule import Level, Rule, RuleConfig, Severity, declared_rule
from policies.settings import ExactNames


class PreemptsConfig(RuleConfig):
    """Configuration of `plan-preempts-nothing-of`."""

    queues: ExactNames = Field(
        default=[],
        description="Queues whose gangs must not be preempted. An empty list protects all queues.",
    )
    gpu_hours: float = Field(
        default=0, ge=0, description="Maximum GPU-hours that a preempted gang may lose."
    )


class WaitsConfig(RuleConfig):
    """Configuration of `plan-waits-at-most`."""

    minutes: float = Field(
        default=24 * 60,
        ge=0,
        description="Maximum waiting time of a new gang in minutes. A gang that does not start in "
        "the simulation exceeds every limit.",
    )


FITS: Final = declared_rule(
    name="plan-fits",
    description="Every new gang starts before the horizon of the simulation.",
    reason="A gang that never gets enough capacity waits until someone notices.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Request fewer GPUs, add nodes, raise the queue's share, or stop other runs.",
    config=RuleConfig,
)
PREEMPTS: Final = declared_rule(
    name="plan-preempts-nothing-of",
    description="The plan preempts no gang of the configured queues.",
    reason="A preempted gang loses its work since the last checkpoint.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Lower the priority of the new gangs, or apply the plan when capacity is free.",
    config=PreemptsConfig,
)
WAITS: Final = declared_rule(
    name="plan-waits-at-most",
    description="No new gang waits longer than the limit.",
    reason="A job that waits for days delays everyone who needs its result.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Request fewer GPUs, raise the priority, or move the job to another queue.",
    config=WaitsConfig,
)
DECLARED_RULES: Final[list[Rule[Any]]] = [FITS, PREEMPTS, WAITS]
