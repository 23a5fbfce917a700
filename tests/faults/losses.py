"""The losses of a run next to those of an undisturbed one, and the cost of a fault."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.faults.timeline import Event

TIMED = {"event", "seconds", "export", "already"}


@dataclass(frozen=True)
class Losses:
    """What an undisturbed run has told: by step the loss, by epoch all it says, and its weights."""

    steps: dict[int, float]
    epochs: dict[int, dict[str, Any]]
    sha256: str

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> "Losses":
        told = list(events)
        (finished,) = (event for event in told if event["event"] == "finished")
        return cls(
            {event["step"]: event["loss"] for event in told if event["event"] == "step"},
            {event["epoch"]: _untimed(event) for event in told if event["event"] == "epoch"},
            str(finished["sha256"]),
        )

    @property
    def interval(self) -> int:
        """Steps from a checkpoint to the next one: of an epoch."""
        return max(self.steps) // len(self.epochs)

    def check(self, events: Iterable[Event]) -> None:
        """See that every loss of another run is the same bit for bit, and that none is missing."""
        seen: set[int] = set()
        for body in (event.body for event in events):
            if body["event"] == "step":
                assert body["loss"] == self.steps[body["step"]], body
                seen.add(body["step"])
            elif body["event"] == "epoch":
                assert _untimed(body) == self.epochs[body["epoch"]]
            elif body["event"] == "finished":
                assert body["sha256"] == self.sha256
        assert seen == set(self.steps), sorted(set(self.steps) - seen)


def repeated(events: list[Event], since: float = 0.0) -> int:
    """Steps that were done once more after `since`."""
    done: set[int] = set()
    again = 0
    for event in events:
        if event.body["event"] == "step":
            again += event.at > since and event.body["step"] in done
            done.add(event.body["step"])
    return again


def standstill(events: list[Event], since: float) -> float:
    """The longest time after `since` in which the run got no further, in seconds."""
    highest, times = 0, []
    for event in events:
        if event.body["event"] == "step" and event.body["step"] > highest:
            highest = event.body["step"]
            times.append(event.at)
    return max((b - a for a, b in pairwise(times) if b > since), default=0.0)


def _untimed(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in TIMED}
