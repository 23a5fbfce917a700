"""Result of simulations, as data and as text: which gangs start, wait or are preempted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.table import Table

from gitops.forecast.state import CamelModel

_HOUR = 3600
Verdict = Literal["runs", "starts at once", "starts later", "waits", "suspended"]


class Range(CamelModel):
    """Smallest and largest values across several simulations."""

    least: float
    most: float


class GangAnswer(CamelModel):
    """Verdict on a gang. Times are seconds since the snapshot.

    With several simulations, values without a range come from the most typical simulation.
    """

    namespace: str
    name: str
    queue: str
    gpus: int
    verdict: Verdict
    """Most frequent verdict. `runs`: already running in the snapshot. `waits`: not started when the
    simulation ends."""
    verdicts: dict[Verdict, int]
    """Number of simulations with each verdict, most frequent first."""
    start_seconds: float | None = None
    start_range: Range | None = None
    """Range of known start times over all simulations; null if the gang never starts."""
    end_seconds: float | None = None
    """Null if the gang does not start, or if it has neither a deadline nor an estimated end."""
    end_range: Range | None = None
    """Range of known end times over all simulations; null if the end is unknown in all of them."""
    start_without_seconds: float | None = None
    end_without_seconds: float | None = None
    """Start and end without the change; null if unknown or if the change adds the gang."""
    added: bool = False
    """True if the change adds the gang."""
    reason: str = ""
    """Reason for waiting at the start of the simulation, as reported by the scheduler."""

    @property
    def title(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def outcome(self) -> str:
        """Verdict, with counts if simulations differ: `waits (2 of 3), starts later (1 of 3)`."""
        if len(self.verdicts) < 2:
            return self.verdict
        total = sum(self.verdicts.values())
        return ", ".join(f"{verdict} ({n} of {total})" for verdict, n in self.verdicts.items())


class Victim(CamelModel):
    """Eviction of all or some pods of a gang.

    With several simulations, `at_seconds` is the earliest time; `pods` and `gpu_hours` are maxima.
    """

    namespace: str
    name: str
    at_seconds: float
    pods: int
    gpu_hours: float | None
    """GPU-hours of these pods since the last checkpoint, or since the gang's start if the log
    contains no checkpoint. Null if both times are unknown in at least one simulation."""
    least_gpu_hours: float | None = None
    """Minimum GPU-hours over the simulations with this eviction; null if all are unknown."""
    simulations: int = 1
    """Number of simulations with this eviction."""
    without_change: bool = False
    """True if the gang is also evicted without the change."""

    @property
    def title(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def lost_hours(self) -> str:
        """GPU-hours as text; a range if simulations differ."""
        if self.gpu_hours is None:
            return "unknown"
        low, high = f"{self.least_gpu_hours or 0:.1f}", f"{self.gpu_hours:.1f}"
        return high if self.least_gpu_hours is None or low == high else f"{low} to {high}"


class QueueAnswer(CamelModel):
    """GPUs that the running gangs of a queue use, at three points in time."""

    queue: str
    before: int
    """Number of GPUs in the snapshot."""
    after: int
    """Number of GPUs after the scheduler's first decisions."""
    at_horizon: int
    """Number of GPUs at the end of the simulation."""


class Answer(CamelModel):
    """Result of a simulation."""

    taken: datetime
    age_seconds: float
    ends: int
    """Number of gangs that finish within the simulation."""
    horizon_seconds: float
    """Time (s) from the snapshot to the last simulated end of a gang."""
    gpus: int
    free: int
    """Free GPUs after the scheduler's first decisions."""
    fragmented: int
    """Free GPUs on nodes where no pod of a waiting gang fits."""
    gangs: list[GangAnswer]
    victims: list[Victim]
    queues: list[QueueAnswer]
    compared: bool = False
    """True if the snapshot was also simulated without the change."""
    simulations: int = 1
    """Number of simulations.

    Queues, GPUs, ends and horizon come from the most typical simulation.
    """
    assumptions: list[str]

    @property
    def affected(self) -> list[GangAnswer]:
        """Gangs that start or wait in at least one simulation."""
        return [gang for gang in self.gangs if not {"runs", "suspended"}.issuperset(gang.verdicts)]

    @property
    def varies(self) -> bool:
        """True if simulations differ in verdicts, starts or evictions."""
        ranges = (gang.start_range for gang in self.gangs)
        return (
            any(len(gang.verdicts) > 1 for gang in self.gangs)
            or any(each is not None and each.least < each.most for each in ranges)
            or any(victim.simulations < self.simulations for victim in self.victims)
        )


def render(answer: Answer, width: int = 160) -> str:
    """Return the result as text."""
    text = StringIO()
    # By default, Rich would interpret brackets in reasons and names as markup.
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, markup=False, emoji=False
    )
    console.print(
        f"Snapshot of {answer.taken.isoformat()}, {duration(answer.age_seconds)} old; "
        f"simulated time: {duration(answer.horizon_seconds)}, in which {answer.ends} "
        f"gang{'s' * (answer.ends != 1)} finished."
    )
    rows = [
        (
            gang.title,
            gang.queue,
            str(gang.gpus),
            gang.outcome,
            durations(gang.start_range),
            *([duration(gang.start_without_seconds)] if answer.compared else []),
            durations(gang.end_range),
            gang.reason,
        )
        for gang in answer.affected
    ]
    without = ["UNCHANGED"] if answer.compared else []
    heads: Sequence[str] = ("GANG", "QUEUE", "GPUS", "VERDICT", "START", *without, "END", "REASON")
    console.print(_table(heads, rows) if rows else "No gang waits or starts.")
    if answer.victims:
        lost = [
            (
                victim.title,
                str(victim.pods),
                duration(victim.at_seconds),
                victim.lost_hours,
                *([f"{victim.simulations} of {answer.simulations}"] if answer.varies else []),
            )
            for victim in answer.victims
        ]
        counts = ["SIMULATIONS"] if answer.varies else []
        heads = ("PREEMPTED OR RECLAIMED", "PODS", "AFTER", "MAX GPU-HOURS LOST", *counts)
        console.print(_table(heads, lost))
    shares = [(q.queue, str(q.before), str(q.after), str(q.at_horizon)) for q in answer.queues]
    console.print(_table(("QUEUE", "GPUS BEFORE", "AFTER", "AT HORIZON"), shares))
    console.print(
        f"{answer.free} of {answer.gpus} GPUs remain free after the scheduler's first decisions; "
        f"{answer.fragmented} of them are on nodes where no pod of a waiting gang fits."
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


def durations(span: Range | None) -> str:
    """Return a range as `30m to 2h05m`, one duration if both ends are equal, or `-` for None."""
    if span is None:
        return "-"
    low, high = duration(span.least), duration(span.most)
    return low if low == high else f"{low} to {high}"


def combine(answers: Sequence[Answer]) -> Answer:
    """Return the most typical answer, with the verdicts, ranges and evictions of all answers.

    The most typical answer is the one whose verdicts agree most with those of the other answers.
    """
    by_title = [{gang.title: gang for gang in answer.gangs} for answer in answers]
    verdicts = {name: Counter(gangs[name].verdict for gangs in by_title) for name in by_title[0]}

    def agreement(gangs: dict[str, GangAnswer]) -> int:
        return sum(verdicts[name][gang.verdict] for name, gang in gangs.items())

    typical = max(range(len(answers)), key=lambda n: agreement(by_title[n]))
    order = [typical, *(n for n in range(len(answers)) if n != typical)]
    gangs = [_gang([by_title[n][name] for n in order]) for name in by_title[0]]
    found = answers[typical].model_copy(
        update={
            "gangs": gangs,
            "victims": _victims(answers),
            "simulations": len(answers),
            "assumptions": [*dict.fromkeys(text for a in answers for text in a.assumptions)],
        }
    )
    return found.model_copy(update={"assumptions": [*found.assumptions, *_differences(found)]})


def _gang(outcomes: Sequence[GangAnswer]) -> GangAnswer:
    """Combine the results for one gang. The first result is from the most typical answer."""
    counts: Counter[Verdict] = Counter(gang.verdict for gang in outcomes)
    verdicts = dict(counts.most_common())
    return outcomes[0].model_copy(
        update={
            "verdict": next(iter(verdicts)),
            "verdicts": verdicts,
            "start_range": _range(gang.start_seconds for gang in outcomes),
            "end_range": _range(gang.end_seconds for gang in outcomes),
            "reason": next((gang.reason for gang in outcomes if gang.reason), ""),
        }
    )


def _range(times: Iterable[float | None]) -> Range | None:
    known = [time for time in times if time is not None]
    return Range(least=min(known), most=max(known)) if known else None


def _victims(answers: Sequence[Answer]) -> list[Victim]:
    """Combine each gang's first evictions from all answers, then its second evictions, and so on.

    Evictions that occur in more simulations come first in the result.
    """
    by_gang: dict[tuple[str, int], list[Victim]] = defaultdict(list)
    for answer in answers:
        seen: Counter[str] = Counter()
        for victim in answer.victims:
            by_gang[victim.title, seen[victim.title]].append(victim)
            seen[victim.title] += 1
    return sorted(map(_victim, by_gang.values()), key=lambda victim: -victim.simulations)


def _victim(outcomes: Sequence[Victim]) -> Victim:
    hours = [victim.gpu_hours for victim in outcomes]
    known = [each for each in hours if each is not None]
    return outcomes[0].model_copy(
        update={
            "at_seconds": min(victim.at_seconds for victim in outcomes),
            "pods": max(victim.pods for victim in outcomes),
            "gpu_hours": None if None in hours else max(known),
            "least_gpu_hours": min(known, default=None),
            "simulations": len(outcomes),
            "without_change": all(victim.without_change for victim in outcomes),
        }
    )


def _differences(answer: Answer) -> list[str]:
    if not answer.varies:
        return []
    same = sum(len(gang.verdicts) == 1 for gang in answer.gangs)
    return [
        f"{same} of {len(answer.gangs)} gangs have the same verdict in all {answer.simulations} "
        "simulations; queues, free GPUs and the chart come from the most typical simulation"
    ]
