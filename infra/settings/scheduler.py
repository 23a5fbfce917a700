"""How the scheduler decides: what counts as a fair share, who may push out whom, where pods go."""

from collections.abc import Iterator
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from infra.settings.types import PositiveInt, QualifiedName, Settings

Eviction = Literal["none", "surplus", "gangs"]
"""Whose pods may be taken away: nobody's, what elastic jobs have above their minimum, whole gangs'.

Of a gang one pod is enough: its peers end with it, and the job waits for its turn again.
"""

OVERCOMMIT: Final = 1.2
"""Volcano's own default."""


class SlaSettings(Settings):
    """What is done for jobs that have waited too long."""

    longest_wait_seconds: PositiveInt = Field(
        description="wait after which a job is let in even while the cluster is full; the "
        "annotation `sla-waiting-time` of a Volcano Job is its own"
    )
    reserve: bool = Field(
        default=True,
        description="from then on, keep what becomes free for it until all of its gang fits",
    )


class SchedulerSettings(Settings):
    """The scheduler's configuration; Volcano's own text is made from it."""

    share: Literal["proportion", "capacity"] = Field(
        default="proportion",
        description="what a queue may claim: proportion divides the cluster by the queues' "
        "`weight`, capacity gives each its `deserved` and knows parents",
    )
    placement: Literal["binpack", "spread"] = Field(
        default="binpack",
        description="binpack fills nodes one after the other, which keeps whole nodes free for "
        "gangs; spread prefers the emptiest (by CPU and memory)",
    )
    pack_by: dict[QualifiedName, PositiveInt] = Field(
        default={"nvidia.com/gpu": 10, "cpu": 1, "memory": 1},
        description="what binpack looks at, with its weight",
    )
    preempt: Eviction = Field(
        default="none",
        description="whether jobs push out those of lower priority in the same queue: surplus "
        "takes only what elastic jobs have above their minimum, gangs takes any pod, whose job "
        "then starts again",
    )
    reclaim: Eviction = Field(
        default="none",
        description="whether a queue takes back its share from queues that use more than theirs; "
        "values as of `preempt`",
    )
    enqueue: bool | None = Field(
        default=None,
        description="hold jobs back, without pods, while the cluster has no room for them; null "
        "does so where nothing is preempted or reclaimed, since a job that is held back can do "
        "neither",
    )
    overcommit: float | None = Field(
        default=None,
        ge=1,
        description="how much is let in, as a multiple of the cluster's size; null is "
        f"{OVERCOMMIT} where jobs are held back",
    )
    priority: bool = Field(
        default=True, description="jobs of higher priority go first within a queue"
    )
    drf: bool = Field(
        default=True, description="among jobs of equal priority the one that has least goes first"
    )
    sla: SlaSettings | None = Field(default=None, description="a limit of waiting; null has none")
    backfill: bool = Field(
        default=True, description="place pods that ask for nothing wherever they fit"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._contradictions()):
            raise ValueError("contradicts itself: " + "; ".join(problems))
        return self

    @property
    def evicts(self) -> bool:
        """Whether running pods may be taken away for others."""
        return self.preempt != "none" or self.reclaim != "none"

    @property
    def holds_back(self) -> bool:
        """Whether jobs wait without pods until there may be room."""
        return not self.evicts if self.enqueue is None else self.enqueue

    def _contradictions(self) -> Iterator[str]:
        if self.preempt != "none" and not self.priority:
            yield (
                f"preempt is {self.preempt}, but priority is false, and only jobs of lower "
                "priority are preempted: write priority: true or preempt: none"
            )
        if self.evicts and self.enqueue:
            yield (
                "enqueue is true, but a job that is held back neither preempts nor reclaims: "
                "leave enqueue out, or write preempt: none and reclaim: none"
            )
        if self.overcommit is not None and not self.holds_back:
            yield (
                f"overcommit is {self.overcommit:g}, but no job is held back (enqueue is false, or "
                "preempt or reclaim is on): leave it out"
            )
        if self.sla is not None and not self.sla.reserve and not self.holds_back:
            yield "sla does nothing where no job is held back and reserve is false: leave it out"
        if self.placement == "spread" and "pack_by" in self.model_fields_set:
            yield "pack_by is for placement: binpack, but placement is spread: leave pack_by out"
