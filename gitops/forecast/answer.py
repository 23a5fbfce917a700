"""Result of a simulation: gangs that start, wait and are preempted, as data and as text."""

from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from rich.console import Console
from rich.table import Table

_HOUR = 3600


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class GangAnswer(_Model):
    """Verdict on a gang. Times are seconds since the snapshot."""

    namespace: str
    name: str
    queue: str
    gpus: int
    verdict: Literal["runs", "starts at once", "starts later", "waits", "suspended"]
    """`runs` since before the snapshot; `waits` longer than the horizon."""
    start_seconds: float | None = None
    end_seconds: float | None = None
    """Null if neither a deadline nor an estimate is known, or the end is beyond the horizon."""
    start_without_seconds: float | None = None
    end_without_seconds: float | None = None
    """Times without the change; null if the change adds the gang, or if they are unknown."""
    added: bool = False
    """True if the change adds the gang."""
    reason: str = ""
    """Reason for waiting at the start of the simulation, as reported by the scheduler."""

    @property
    def title(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


class Victim(_Model):
    """Eviction of all or some pods of a gang."""

    namespace: str
    name: str
    at_seconds: float
    pods: int
    gpu_hours: float | None
    """GPU-hours of these pods since the last checkpoint, or since the gang's start if the log has
    none; null if both are unknown."""
    without_change: bool = False
    """True if the gang is also evicted without the change."""


class QueueAnswer(_Model):
    """GPUs of a queue's running gangs in the snapshot, after the plan, and at the horizon."""

    queue: str
    before: int
    after: int
    at_horizon: int


class Answer(_Model):
    """Result of a simulation."""

    taken: datetime
    age_seconds: float
    ends: int
    """Number of gangs whose end was simulated."""
    horizon_seconds: float
    """Time of the last simulated end, since the snapshot."""
    gpus: int
    free: int
    """Free GPUs after the plan."""
    fragmented: int
    """Free GPUs on nodes where no pod of a waiting gang fits."""
    gangs: list[GangAnswer]
    victims: list[Victim]
    queues: list[QueueAnswer]
    compared: bool = False
    """True if the snapshot was also simulated without the change."""
    assumptions: list[str]

    @property
    def affected(self) -> list[GangAnswer]:
        """Gangs that start or wait."""
        return [gang for gang in self.gangs if gang.verdict not in ("runs", "suspended")]


def render(answer: Answer, width: int = 160) -> str:
    """Return the result as text."""
    text = StringIO()
    console = Console(file=text, width=width, color_system=None, force_terminal=False)
    console.print(
        f"Snapshot of {answer.taken.isoformat()}, {duration(answer.age_seconds)} old; "
        f"{answer.ends} ends simulated, covering {duration(answer.horizon_seconds)}."
    )
    rows = [
        (
            gang.title,
            gang.queue,
            str(gang.gpus),
            gang.verdict,
            duration(gang.start_seconds),
            *([duration(gang.start_without_seconds)] if answer.compared else []),
            duration(gang.end_seconds),
            gang.reason,
        )
        for gang in answer.affected
    ]
    without = ["UNCHANGED"] if answer.compared else []
    headers = ("GANG", "QUEUE", "GPUS", "VERDICT", "START", *without, "END", "REASON")
    console.print(_table(headers, rows) if rows else "No gang waits or starts.")
    if answer.victims:
        lost = [
            (
                f"{victim.namespace}/{victim.name}",
                str(victim.pods),
                duration(victim.at_seconds),
                "unknown" if victim.gpu_hours is None else f"{victim.gpu_hours:.1f}",
            )
            for victim in answer.victims
        ]
        console.print(_table(("PREEMPTED OR RECLAIMED", "PODS", "AFTER", "GPU H AT MOST"), lost))
    shares = [(q.queue, str(q.before), str(q.after), str(q.at_horizon)) for q in answer.queues]
    console.print(_table(("QUEUE", "GPUS BEFORE", "AFTER", "AT HORIZON"), shares))
    console.print(
        f"{answer.free} of {answer.gpus} GPUs are free after the plan; {answer.fragmented} of them "
        "are on nodes where no pod of a waiting gang fits."
    )
    for assumption in answer.assumptions:
        console.print(f"- {assumption}")
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*headers, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def duration(seconds: float | None) -> str:
    """Return a duration as `2h05m`, or `-` for None."""
    if seconds is None:
        return "-"
    if seconds < _HOUR:
        return f"{seconds / 60:.0f}m"
    return f"{int(seconds // _HOUR)}h{int(seconds % _HOUR // 60):02}m"
