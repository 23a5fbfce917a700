"""Comparison of a run's losses with those of an undisturbed run."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.faults.timeline import Event

TIMED = {"event", "seconds", "export", "already"}


@dataclass(frozen=True)
class Losses:
    """Events of an undisturbed run: losses by step, events by epoch, digest of the weights."""

    steps: dict[int, float]
    epochs: dict[int, dict[str, Any]]
    sha256: str

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> "Losses":
        found = list(events)
        (finished,) = (event for event in found if event["event"] == "finished")
        return cls(
            {event["step"]: event["loss"] for event in found if event["event"] == "step"},
            {event["epoch"]: _untimed(event) for event in found if event["event"] == "epoch"},
            str(finished["sha256"]),
        )

    @property
    def interval(self) -> int:
        """Steps between two checkpoints, which is one epoch."""
        return max(self.steps) // len(self.epochs)

    def check(self, events: Iterable[Event]) -> None:
        """Assert that another run has the same losses bit for bit, without gaps."""
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
    """Return the number of steps repeated after `since`."""
    done: set[int] = set()
    again = 0
    for event in events:
        if event.body["event"] == "step":
            again += event.at > since and event.body["step"] in done
            done.add(event.body["step"])
    return again


def standstill(events: list[Event], since: float) -> float:
    """Return the longest time in seconds between two new steps after `since`."""
    highest, times = 0, []
    for event in events:
        if event.body["event"] == "step" and event.body["step"] > highest:
            highest = event.body["step"]
            times.append(event.at)
    return max((b - a for a, b in pairwise(times) if b > since), default=0.0)


def _untimed(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in TIMED}


CLIENTS = 4
NEVER_ACCEPTED = {"ConnectError", "ConnectTimeout"}
"""Errors of connections that no server had accepted, so that clients can retry."""


def no_losses(lost: dict[str, int]) -> bool:
    """Return True if every request succeeded."""
    return not lost


def answered_with_503(lost: dict[str, int]) -> bool:
    """Return True if at most one request per client failed, with status 503."""
    return set(lost) <= {"503"} and sum(lost.values()) <= CLIENTS


def lost_by_one_server(lost: dict[str, int]) -> bool:
    """Return True if at most one accepted request per client was lost."""
    return sum(count for what, count in lost.items() if what not in NEVER_ACCEPTED) <= CLIENTS
