"""Conditions for promoting a new model, based on its metrics and the served model's metrics.

This module does not import torch.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"\d+(?:\.\d+)?"
_CONDITION: Final = re.compile(
    rf"(?P<compare>>=|<=) (?:(?P<limit>-?{_NUMBER})"
    rf"|incumbent(?: (?P<sign>[+-]) (?P<by>{_NUMBER}))?)"
)
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Condition:
    """A comparison of a metric with a number or the incumbent's metric.

    The incumbent is the model that is being served.
    """

    text: str
    compare: str
    limit: float | None
    """Number to compare with; None to compare with the incumbent's metric."""
    offset: float

    def bound(self, incumbent: float | None) -> float | None:
        """Return the number to compare with, or None if the incumbent lacks the metric."""
        if self.limit is not None:
            return self.limit
        return None if incumbent is None else incumbent + self.offset

    def holds(self, value: float, bound: float) -> bool:
        """Return whether the condition holds; it never holds for NaN or infinity."""
        return math.isfinite(value) and _COMPARE[self.compare](value, bound)


def parse_condition(text: str) -> Condition:
    """Parse a condition; raise ValueError if it is not valid."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(
            'must compare with a number or the incumbent, such as ">= 0.95", '
            '">= incumbent - 0.002" or "<= incumbent"'
        )
    offset = float(match["by"] or 0) * (-1 if match["sign"] == "-" else 1)
    limit = None if match["limit"] is None else float(match["limit"])
    return Condition(text, match["compare"], limit, offset)


def parse_named(arguments: Sequence[str]) -> dict[str, Condition]:
    """Parse conditions such as "accuracy >= 0.95", and map metrics to their conditions.

    Raise ValueError if a condition is invalid, or if a metric has several conditions.
    """
    found: dict[str, Condition] = {}
    for argument in arguments:
        metric, _, condition = argument.partition(" ")
        if metric in found:
            raise ValueError(
                f"{metric} has two conditions, {found[metric].text!r} and {condition!r}: write one "
                "condition per metric"
            )
        try:
            found[metric] = parse_condition(condition)
        except ValueError as error:
            raise ValueError(
                f"{argument!r}: after the metric and a space, the condition {error}"
            ) from None
    return found


def violations(
    conditions: Mapping[str, Condition],
    candidate: Mapping[str, float],
    incumbent: Mapping[str, float],
) -> Iterator[str]:
    """Yield a sentence for each condition that does not hold or cannot be evaluated."""
    for metric, condition in conditions.items():
        value, bound = candidate.get(metric), condition.bound(incumbent.get(metric))
        if value is None:
            yield f"the candidate's manifest has no metric {metric!r}"
        elif bound is None:
            yield f"the incumbent's manifest has no metric {metric!r}"
        elif not condition.holds(value, bound):
            needed = f"{condition.compare} {bound:g} ({condition.text})"
            yield f"{metric} is {value:g}, but must be {needed}"
