"""Progress of a training run, parsed from the timestamped JSON lines of its log."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from workload.progress import (
    AnyEvent,
    Checkpointed,
    Epoch,
    Evaluated,
    Failed,
    Finished,
    Started,
    Step,
    parse,
)

_PROGRESS: Final = ("step", "epoch", "epochs", "done_epochs", "seconds")
_RESULTS: Final = ("loss", "accuracy")
_MAX: Final = 10**10
"""Largest number in a log that is considered plausible, including times in seconds."""
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Progress:
    """Progress and result of a run. Values that the program does not report are None."""

    done_epochs: float | None = None
    """Completed epochs, including the fraction of the current one."""
    epochs: float | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    remaining_seconds: float | None = None
    """Remaining time, estimated from the steps and epochs in the log."""
    seconds: float | None = None
    """Training time of a finished run."""
    saved: datetime | None = None
    """Time at which the last checkpoint's state was captured or, without a checkpoint, at which the
    attempt started."""
    saves_every_seconds: float | None = None
    """Mean time between the checkpoints in the log, where the start of the attempt counts as a
    checkpoint; None if there are fewer than two checkpoints."""

    @property
    def epoch(self) -> float | None:
        """Completed epochs, with a fraction only if the run's total is not an integer."""
        if self.done_epochs is None or self.epochs is None or self.epochs == int(self.epochs):
            return None if self.done_epochs is None else int(self.done_epochs)
        return round(self.done_epochs, 4)

    @property
    def completed_fraction(self) -> float | None:
        """Completed fraction of the run, from 0 to 1."""
        if self.done_epochs is None or not self.epochs:
            return None
        return min(self.done_epochs / self.epochs, 1.0)

    def after(self, event: AnyEvent) -> "Progress":
        """Return the progress after an event."""
        match event:
            case Started():
                return replace(
                    self, done_epochs=event.done_epochs, epochs=event.epochs, step=event.step
                )
            case Step() | Evaluated():
                after = replace(self, step=event.step)
                if isinstance(event, Step):
                    after = replace(after, loss=event.loss)
                elif event.accuracy is not None:
                    after = replace(after, accuracy=event.accuracy)
                if event.done_epochs is None or event.epochs is None:
                    return after
                return replace(after, done_epochs=event.done_epochs, epochs=event.epochs)
            case Epoch():
                return replace(
                    self,
                    done_epochs=event.epoch,
                    epochs=event.epochs,
                    loss=event.loss,
                    accuracy=event.accuracy,
                )
            case Finished():
                return replace(
                    self, done_epochs=self.epochs, accuracy=event.accuracy, seconds=event.seconds
                )
        return self


def progress(lines: Iterable[str], now: datetime) -> Progress | None:
    """Return the latest progress in these log lines, or None if they report no progress."""
    current: Progress | None = None
    marks: list[tuple[datetime, float]] = []
    saves: list[datetime] = []
    for at, event in _events(lines):
        current = (current or Progress()).after(event)
        if isinstance(event, Started):
            marks, saves = [(at, event.done_epochs)], [at]
        elif isinstance(event, Checkpointed):
            saves.append(at - timedelta(seconds=event.seconds))
        elif isinstance(event, Step | Epoch | Evaluated) and current.done_epochs is not None:
            marks.append((at, current.done_epochs))
    if current is None:
        return None
    current = replace(
        current, saved=max(saves, default=None), saves_every_seconds=_mean_interval(saves)
    )
    if current.epochs is None:
        return current
    return replace(current, remaining_seconds=_remaining(marks, current.epochs, now))


def result(messages: Iterable[str]) -> Finished | None:
    """Return the result in the termination messages of a run's containers, or None."""
    events = (_event(message) for message in messages)
    return next((event for event in events if isinstance(event, Finished)), None)


def failure_text(message: str, lines: Iterable[str], maximum: int = 12) -> list[str]:
    """Return the reported error or, if none was reported, the last lines of the message or log.

    The log is used only if the message is empty. Log lines are returned without their timestamps.
    Control characters are escaped.
    """
    event = parse(message)
    if isinstance(event, Failed):
        found = [event.message]
    elif message.strip():
        found = message.strip().splitlines()[-maximum:]
    else:
        found = [text.partition(" ")[2] for text in list(lines)[-maximum:]]
    return [printable(text) for text in found]


def printable(text: str) -> str:
    """Return program output with control characters escaped, because terminals interpret them."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _mean_interval(saves: Sequence[datetime]) -> float | None:
    if len(saves) < 2:
        return None
    return (max(saves) - min(saves)).total_seconds() / (len(saves) - 1)


def _remaining(marks: list[tuple[datetime, float]], epochs: float, now: datetime) -> float | None:
    if len(marks) < 2:
        return None
    (first, before), (last, after) = marks[0], marks[-1]
    if after <= before:
        return None
    seconds_per_epoch = (last - first).total_seconds() / (after - before)
    left = max((epochs - after) * seconds_per_epoch - (now - last).total_seconds(), 0.0)
    return left if left <= _MAX else None


def _event(line: str) -> AnyEvent | None:
    """Return the event of a line, or None if the line contains no valid event.

    Start, epoch and checkpoint events with implausible progress, such as NaN, count as invalid. All
    other implausible numbers are replaced with None. Programs may print anything, and an invalid
    line in the log of one run must not break the report on other runs.
    """
    event = parse(line)
    if event is None:
        return None
    implausible_progress, implausible_results = (
        [name for name in names if not minimum <= (getattr(event, name, None) or 0) <= _MAX]
        for names, minimum in ((_PROGRESS, 0), (_RESULTS, -_MAX))
    )
    if implausible_progress and isinstance(event, Started | Epoch | Checkpointed):
        return None
    return event.model_copy(update=dict.fromkeys([*implausible_progress, *implausible_results]))


def _events(lines: Iterable[str]) -> Iterator[tuple[datetime, AnyEvent]]:
    for text in lines:
        time, _, line = text.partition(" ")
        # Lines without a timestamp are ignored, because programs may print anything.
        with contextlib.suppress(ValueError):
            at = datetime.fromisoformat(time).astimezone(UTC)
            event = _event(line)
            if isinstance(event, Started | Epoch) and event.epochs is None:
                continue
            if isinstance(event, Started | Step | Epoch | Evaluated | Checkpointed | Finished):
                yield at, event
