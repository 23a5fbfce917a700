"""The request queue and the batches formed from it. Independent of workers and sockets."""

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
    """A request. It is answered when all pieces that it was split into are computed."""

    __slots__ = (
        "arrived",
        "batch",
        "compute_seconds",
        "deadline",
        "future",
        "inputs",
        "outputs",
        "pending",
        "queue_seconds",
        "queued",
        "samples",
        "shapes",
        "size",
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
        self.shapes: Shapes = tuple([array.shape[1:] for array in arrays])
        """Only requests with equal shapes can share a batch."""
        self.size = sum([size_of(array) for array in arrays])
        """Bytes."""
        self.queued = 0
        """Samples that are not with a worker."""
        self.pending = 0
        """Pieces without outputs."""
        self.outputs: dict[int, Tensors] = {}
        """Outputs of computed pieces, by their first sample."""
        self.queue_seconds = self.compute_seconds = 0.0
        self.batch = 0

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless already answered."""
        if not self.future.done():
            self.future.set_exception(error)

    def add_outputs(self, begin: int, outputs: Tensors, served: Served) -> None:
        """Add the outputs of the piece that starts at sample `begin`; answer after the last."""
        self.pending -= 1
        if self.future.done():
            return
        if self.pending or self.outputs:
            self.outputs[begin] = outputs
            if self.pending:
                return
            parts = [self.outputs[key] for key in sorted(self.outputs)]
            outputs = {name: np.concatenate([part[name] for part in parts]) for name in outputs}
        self.future.set_result(
            Answer(outputs, served, self.queue_seconds, self.compute_seconds, self.batch)
        )


class Piece(NamedTuple):
    """Samples of one request that are computed in one batch: nearly always all of them."""

    request: Request
    begin: int
    end: int

    def rows(self, name: str) -> NDArray[Any]:
        """Return its samples of an input."""
        array = self.request.inputs[name]
        if self.end - self.begin == self.request.samples:
            return array
        return array[self.begin : self.end]


@dataclass(slots=True)
class Batch:
    """Pieces that a worker computes together."""

    pieces: list[Piece] = field(default_factory=list)
    samples: int = 0
    slot: int = 0

    @property
    def sizes(self) -> list[int]:
        """Number of samples of each piece."""
        return [piece.end - piece.begin for piece in self.pieces]

    def arrays(self) -> Mapping[str, Sequence[NDArray[Any]]]:
        """Return the samples of each piece by input name."""
        names = self.pieces[0].request.inputs
        return {name: [piece.rows(name) for piece in self.pieces] for name in names}

    def fail(self, error: Exception) -> None:
        """Answer all of its requests with an error."""
        for piece in self.pieces:
            piece.request.fail(error)


class Queue:
    """FIFO queue with limits on samples and bytes."""

    def __init__(self, max_batch: int, max_samples: int, max_bytes: int) -> None:
        self.samples = 0
        """Queued samples."""
        self._bytes = 0
        self._max_batch = max_batch
        self._max_samples, self._max_bytes = max_samples, max_bytes
        self._pieces: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return self.samples > 0

    @property
    def has_full_batch(self) -> bool:
        """Whether the next batch could not become larger by waiting."""
        return self.samples >= self._max_batch

    def has_capacity(self, request: Request) -> bool:
        """Return whether the request fits into the limits now."""
        samples, size = self.samples + request.samples, self._bytes + request.size
        return samples <= self._max_samples and size <= self._max_bytes

    def put(self, request: Request, retry_after: float) -> None:
        """Append a request.

        Raises OverloadedError if the queue is full, InputError if the request exceeds its limits.
        """
        samples = request.samples
        if samples > self._max_samples or request.size > self._max_bytes:
            raise InputError(
                f"the request has {samples} samples of {request.size} bytes: send at most "
                f"{self._max_samples} samples of {self._max_bytes} bytes at once"
            )
        if not self.has_capacity(request):
            raise OverloadedError(f"{self.samples} samples are queued already", retry_after)
        self.samples += samples
        self._bytes += request.size
        request.queued = samples
        for begin in range(0, samples, self._max_batch):
            request.pending += 1
            end = min(begin + self._max_batch, samples)
            self._pieces.append(Piece(request, begin, end))

    def take(self, now: float) -> Batch:
        """Remove and return the next batch: the oldest pieces that fit and have equal shapes.

        Requests whose deadline has passed are refused. The batch may be empty.
        """
        batch = Batch()
        while self._pieces:
            piece = self._pieces[0]
            request = piece.request
            size = piece.end - piece.begin
            if not request.future.done() and request.deadline < now:
                request.fail(deadline_error(request, now))
            if request.future.done():
                self.drop(request)
                self._pieces.popleft()
                continue
            if batch.pieces and (
                batch.samples + size > self._max_batch
                or request.shapes != batch.pieces[0].request.shapes
            ):
                break
            self._pieces.popleft()
            if request.queued == request.samples:
                request.queue_seconds = now - request.arrived
            self._count(request, -size)
            batch.pieces.append(piece)
            batch.samples += size
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return a batch that was not computed to the front of the queue."""
        for piece in reversed(batch.pieces):
            if not piece.request.future.done():
                self._pieces.appendleft(piece)
                self._count(piece.request, piece.end - piece.begin)

    def drop(self, request: Request) -> None:
        """Stop counting a request that is answered or cancelled."""
        if request.queued:
            self._count(request, -request.queued)

    def expire(self, now: float) -> None:
        """Refuse requests whose deadline has passed."""
        for piece in self._pieces:
            request = piece.request
            if request.deadline < now and not request.future.done():
                request.fail(deadline_error(request, now))
                self.drop(request)

    def fail_all(self, error: Exception) -> None:
        """Answer all queued requests with an error."""
        while self._pieces:
            request = self._pieces.popleft().request
            request.fail(error)
            self.drop(request)

    def _count(self, request: Request, samples: int) -> None:
        had = request.queued
        request.queued += samples
        self.samples += samples
        if had and not request.queued:
            self._bytes -= request.size
        elif request.queued and not had:
            self._bytes += request.size


def deadline_error(request: Request, now: float) -> DeadlineError:
    """Return the error for a request whose deadline passed in the queue."""
    return DeadlineError(f"the deadline passed after {now - request.arrived:.3f} s in the queue")


def size_of(array: NDArray[Any]) -> int:
    """Return the size of an array's values in bytes."""
    if array.dtype.kind == "O":
        return sum(map(len, array.ravel().tolist()))
    return array.nbytes
