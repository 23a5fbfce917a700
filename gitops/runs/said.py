"""What a training program says of itself: the JSON lines of its log, each behind its time."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Began(_Line):
    event: Literal["start", "resume"]
    epochs: int
    done_epochs: float = 0
    step: int = 0


class _Step(_Line):
    event: Literal["step"]
    step: int
    loss: float
    done_epochs: float | None = None
    epochs: int | None = None


class _Epoch(_Line):
    event: Literal["epoch"]
    epoch: int
    epochs: int
    loss: float
    accuracy: float | None = None


class _Finished(_Line):
    event: Literal["finished"]
    accuracy: float


_LINES: TypeAdapter[_Began | _Step | _Epoch | _Finished] = TypeAdapter(
    _Began | _Step | _Epoch | _Finished
)


@dataclass(frozen=True)
class Progress:
    """How far a run is; what its program does not tell is None."""

    done_epochs: float | None = None
    """With the part of the one that is under way."""
    epochs: int | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    left_seconds: float | None = None
    """Estimated from the steps and epochs that these lines tell of."""

    @property
    def epoch(self) -> int | None:
        """How many are done as a whole."""
        return None if self.done_epochs is None else int(self.done_epochs)

    @property
    def share(self) -> float | None:
        """Of the whole run, 0 to 1."""
        if self.done_epochs is None or not self.epochs:
            return None
        return min(self.done_epochs / self.epochs, 1.0)


def progress(lines: Iterable[str], now: datetime) -> Progress | None:
    """The newest state that these lines tell of; None where a program says nothing of the kind."""
    found: Progress | None = None
    marks: list[tuple[datetime, float]] = []
    for at, line in _told(lines):
        found = _after(line, found or Progress())
        if isinstance(line, _Began):
            marks = [(at, line.done_epochs)]
        elif isinstance(line, _Step | _Epoch) and found.done_epochs is not None:
            marks.append((at, found.done_epochs))
    if found is None or found.epochs is None:
        return found
    return replace(found, left_seconds=_left(marks, found.epochs, now))


def _after(line: BaseModel, before: Progress) -> Progress:
    match line:
        case _Began():
            return replace(before, done_epochs=line.done_epochs, epochs=line.epochs, step=line.step)
        case _Step():
            after = replace(before, step=line.step, loss=line.loss)
            if line.done_epochs is None or line.epochs is None:
                return after
            return replace(after, done_epochs=line.done_epochs, epochs=line.epochs)
        case _Epoch():
            return replace(
                before,
                done_epochs=line.epoch,
                epochs=line.epochs,
                loss=line.loss,
                accuracy=line.accuracy,
            )
        case _Finished():
            return replace(before, done_epochs=before.epochs, accuracy=line.accuracy)
    return before


def _left(marks: list[tuple[datetime, float]], epochs: int, now: datetime) -> float | None:
    if len(marks) < 2:
        return None
    (first, before), (last, after) = marks[0], marks[-1]
    if after <= before:
        return None
    each = (last - first).total_seconds() / (after - before)
    return max((epochs - after) * each - (now - last).total_seconds(), 0.0)


def _told(lines: Iterable[str]) -> Iterator[tuple[datetime, BaseModel]]:
    for text in lines:
        time, _, line = text.partition(" ")
        # A program may print anything.
        with contextlib.suppress(ValueError, ValidationError):
            yield datetime.fromisoformat(time).astimezone(UTC), _LINES.validate_json(line)


def last_words(message: str, lines: Iterable[str], most: int = 12) -> list[str]:
    """Why a program ended, as it says itself, else its last lines without their times."""
    with contextlib.suppress(ValueError):
        told = json.loads(message)
        if isinstance(told, dict) and told.get("event") == "error":
            return [str(told.get("message", ""))]
    if message.strip():
        return message.strip().splitlines()[-most:]
    return [text.partition(" ")[2] for text in list(lines)[-most:]]
