"""Combined result of several simulations in which the scheduler may make different choices."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gitops.forecast.answer import Answer, GangAnswer, Range, Verdict, Victim


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
        "simulations; queues, free GPUs and the chart come from the most typical one"
    ]
