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
    done_epochs: int = 0
    step: int = 0


class _Step(_Line):
    event: Literal["step"]
    step: int
    loss: float


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

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    left_seconds: float | None = None
    """Estimated from the epochs that these lines tell of."""

    @property
    def share(self) -> float | None:
        """Of the whole run, 0 to 1."""
        if self.epoch is None or not self.epochs:
            return None
        return min(self.epoch / self.epochs, 1.0)


def progress(lines: Iterable[str], now: datetime) -> Progress | None:
    """The newest state that these lines tell of; None where a program says nothing of the kind."""
    found: Progress | None = None
    marks: list[tuple[datetime, int]] = []
    for at, line in _told(lines):
        found = _after(line, found or Progress())
        if isinstance(line, _Began):
            marks = [(at, line.done_epochs)]
        elif isinstance(line, _Epoch):
            marks.append((at, line.epoch))
    if found is None or found.epochs is None:
        return found
    return replace(found, left_seconds=_left(marks, found.epochs, now))


def _after(line: BaseModel, before: Progress) -> Progress:
    match line:
        case _Began():
            return replace(before, epoch=line.done_epochs, epochs=line.epochs, step=line.step)
        case _Step():
            return replace(before, step=line.step, loss=line.loss)
        case _Epoch():
            return replace(
                before,
                epoch=line.epoch,
                epochs=line.epochs,
                loss=line.loss,
                accuracy=line.accuracy,
            )
        case _Finished():
            return replace(before, epoch=before.epochs, accuracy=line.accuracy)
    return before


def _left(marks: list[tuple[datetime, int]], epochs: int, now: datetime) -> float | None:
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
