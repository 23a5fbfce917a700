"""Rules about what the scheduler will do, which `python -m gitops preview --simulate` evaluates.

The pack declares them, so that its configuration states their levels and settings. It has no
simulation and reports nothing of them.
"""

from typing import Any, Final

from pydantic import Field

from policies.rule import Level, Rule, RuleConfig, Severity, own_rule


class PreemptsConfig(RuleConfig):
    """Gangs that the plan must not preempt."""

    queues: list[str] = Field(
        default=[], description="Queues whose gangs must not be preempted; empty for all queues."
    )
    gpu_hours: float = Field(
        default=0, ge=0, description="GPU-hours that a preempted gang may lose at most."
    )


class WaitsConfig(RuleConfig):
    """Maximum waiting time of new gangs."""

    minutes: float = Field(
        default=24 * 60, ge=0, description="Minutes that each new gang may wait at most."
    )


FITS: Final = own_rule(
    name="plan-fits",
    description="Every new gang starts before the horizon of the simulation.",
    reason="A gang for which no capacity becomes free waits until someone notices.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Request fewer GPUs, add nodes, raise the queue's share, or end other runs.",
    config=RuleConfig,
)
PREEMPTS: Final = own_rule(
    name="plan-preempts-nothing-of",
    description="The plan preempts no gang of these queues.",
    reason="A preempted gang loses its work since the last checkpoint.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Lower the priority of the new gangs, or apply the plan when there is room.",
    config=PreemptsConfig,
)
WAITS: Final = own_rule(
    name="plan-waits-at-most",
    description="No new gang waits longer than the limit.",
    reason="A job that starts days later is useless for planning.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Request fewer GPUs, raise the priority, or move the job to another queue.",
    config=WaitsConfig,
)
OWN_RULES: Final[list[Rule[Any]]] = [FITS, PREEMPTS, WAITS]
