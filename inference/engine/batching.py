"""Requests that wait, and the batches that are made of them. Knows neither workers nor sockets."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.engine.interface import (
    Answer,
    DeadlineError,
    InputError,
    OverloadedError,
    Served,
    Tensors,
)

Shapes = tuple[tuple[int, ...], ...]


class Request:
    """One request. Its outputs come in as many parts as it was split into."""

    __slots__ = (
        "arrived",
        "batch",
        "compute_seconds",
        "deadline",
        "future",
        "inputs",
        "key",
        "missing",
        "parts",
        "queue_seconds",
        "samples",
        "size",
        "waiting",
    )

    def __init__(
        self, inputs: Tensors, future: "asyncio.Future[Answer]", arrived: float, deadline: float
    ) -> None:
        self.inputs = inputs
        self.future = future
        self.arrived = arrived
        self.deadline = deadline
        arrays = inputs.values()
        self.samples = len(next(iter(arrays)))
        self.key: Shapes = tuple([array.shape[1:] for array in arrays])
        """Only equal ones can become one batch."""
        self.size = sum([size_of(array) for array in arrays])
        """Bytes."""
        self.waiting = 0
        """Samples that no worker has."""
        self.missing = 0
        """Parts without an answer."""
        self.parts: dict[int, Tensors] = {}
        self.queue_seconds = self.compute_seconds = 0.0
        self.batch = 0

    def refuse(self, error: Exception) -> None:
        """Answer with an error, unless it is answered."""
        if not self.future.done():
            self.future.set_exception(error)

    def take(self, begin: int, outputs: Tensors, served: Served) -> None:
        """Outputs of the samples from `begin` on; with the last part the request is answered."""
        self.missing -= 1
        if self.future.done():
            return
        if self.missing or self.parts:
            self.parts[begin] = outputs
            if self.missing:
                return
            parts = [self.parts[key] for key in sorted(self.parts)]
            outputs = {name: np.concatenate([part[name] for part in parts]) for name in outputs}
        self.future.set_result(
            Answer(outputs, served, self.queue_seconds, self.compute_seconds, self.batch)
        )


class Piece(NamedTuple):
    """Samples of one request that are computed together: nearly always all of them."""

    request: Request
    begin: int
    end: int

    def rows(self, name: str) -> NDArray[Any]:
        """Of one input."""
        array = self.request.inputs[name]
        if self.end - self.begin == self.request.samples:
            return array
        return array[self.begin : self.end]


@dataclass(slots=True)
class Batch:
    """What a worker computes at once."""

    pieces: list[Piece] = field(default_factory=list)
    samples: int = 0
    slot: int = 0

    @property
    def sizes(self) -> list[int]:
        """Samples of each piece."""
        return [piece.end - piece.begin for piece in self.pieces]

    def arrays(self) -> Mapping[str, Sequence[NDArray[Any]]]:
        """By the inputs' names, the samples of each piece."""
        names = self.pieces[0].request.inputs
        return {name: [piece.rows(name) for piece in self.pieces] for name in names}


class Queue:
    """First come, first served; bounded in samples and in bytes."""

    def __init__(self, largest_batch: int, most_samples: int, most_bytes: int) -> None:
        self.samples = 0
        """That wait."""
        self._bytes = 0
        self._largest = largest_batch
        self._most_samples, self._most_bytes = most_samples, most_bytes
        self._pieces: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return self.samples > 0

    @property
    def full_batch(self) -> bool:
        """Whether a batch could not become larger by waiting."""
        return self.samples >= self._largest

    def has_room(self, request: Request) -> bool:
        """Whether it may wait here."""
        samples, size = self.samples + request.samples, self._bytes + request.size
        return samples <= self._most_samples and size <= self._most_bytes

    def put(self, request: Request, retry_after: float) -> None:
        """Raises OverloadedError when there is no room, InputError when there never will be."""
        samples = request.samples
        if samples > self._most_samples or request.size > self._most_bytes:
            raise InputError(
                f"the request has {samples} samples of {request.size} bytes: send at most "
                f"{self._most_samples} samples of {self._most_bytes} bytes at once"
            )
        if not self.has_room(request):
            raise OverloadedError(f"{self.samples} samples wait already", retry_after)
        self.samples += samples
        self._bytes += request.size
        request.waiting = samples
        for begin in range(0, samples, self._largest):
            request.missing += 1
            end = min(begin + self._largest, samples)
            self._pieces.append(Piece(request, begin, end))

    def take(self, now: float) -> Batch:
        """The next batch: the oldest, as many as fit and have the same shapes.

        Those whose deadline has passed are refused. The batch may be empty.
        """
        batch = Batch()
        while self._pieces:
            piece = self._pieces[0]
            request = piece.request
            size = piece.end - piece.begin
            if not request.future.done() and request.deadline < now:
                request.refuse(too_late(request, now))
            if request.future.done():
                self.drop(request)
                self._pieces.popleft()
                continue
            if batch.pieces and (
                batch.samples + size > self._largest or request.key != batch.pieces[0].request.key
            ):
                break
            self._pieces.popleft()
            if request.waiting == request.samples:
                request.queue_seconds = now - request.arrived
            self._count(request, -size)
            batch.pieces.append(piece)
            batch.samples += size
        return batch

    def put_back(self, batch: Batch) -> None:
        """What was taken but not computed goes first."""
        for piece in reversed(batch.pieces):
            if not piece.request.future.done():
                self._pieces.appendleft(piece)
                self._count(piece.request, piece.end - piece.begin)

    def drop(self, request: Request) -> None:
        """Forget a request that is answered or not waited for any more."""
        if request.waiting:
            self._count(request, -request.waiting)

    def expire(self, now: float) -> None:
        """Refuse those whose deadline has passed."""
        for piece in self._pieces:
            request = piece.request
            if request.deadline < now and not request.future.done():
                request.refuse(too_late(request, now))
                self.drop(request)

    def refuse_all(self, error: Exception) -> None:
        """Nobody will compute what waits."""
        while self._pieces:
            request = self._pieces.popleft().request
            request.refuse(error)
            self.drop(request)

    def _count(self, request: Request, samples: int) -> None:
        had = request.waiting
        request.waiting += samples
        self.samples += samples
        if had and not request.waiting:
            self._bytes -= request.size
        elif request.waiting and not had:
            self._bytes += request.size


class Pace:
    """How long one sample takes one worker, from what was measured lately."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 before anything was measured."""

    def measured(self, samples: int, seconds: float) -> None:
        """A batch took so long. The last few dozens of them count."""
        each = seconds / samples
        self.seconds += (each - self.seconds) * (0.05 if self.seconds else 1)


def too_late(request: Request, now: float) -> DeadlineError:
    """The refusal of a request whose deadline passed while it waited."""
    return DeadlineError(f"the deadline passed after {now - request.arrived:.3f} s in the queue")


def size_of(array: NDArray[Any]) -> int:
    """Bytes."""
    if array.dtype.kind == "O":
        return sum(map(len, array.ravel().tolist()))
    return array.nbytes
