"""The request queue and the batches formed from it, independent of workers and sockets."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
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


@dataclass(slots=True, eq=False)
class Request:
    """A request. It is answered when all pieces into which it was split have been computed."""

    inputs: Tensors
    future: "asyncio.Future[Answer]"
    arrived: float
    deadline: float
    peer: str = ""
    """Client that sent the request; clients are served in turn."""
    output_names: frozenset[str] | None = None
    """Names of the requested outputs; None for all."""
    samples: int = field(init=False)
    shapes: Shapes = field(init=False)
    """Shape of a sample of each input. Only requests with equal shapes can share a batch."""
    size: int = field(init=False)
    """Size of the inputs in bytes."""
    queued: int = 0
    """Number of queued samples."""
    pending: int = 0
    """Number of pieces that have not been computed yet."""
    retried: bool = False
    """True if the request must be computed alone, because a worker died while processing it, or
    because a batch that contained it failed."""
    outputs: dict[int, Tensors] = field(default_factory=dict)
    """Outputs of computed pieces, by the index of the piece's first sample."""
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    batch: int = 0

    def __post_init__(self) -> None:
        arrays = self.inputs.values()
        self.samples = len(next(iter(arrays)))
        self.shapes = tuple([array.shape[1:] for array in arrays])
        self.size = sum(map(size_of, arrays))

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless the request has already been answered."""
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self, now: float) -> None:
        """Answer with an error if the deadline has passed and the request is unanswered."""
        if self.deadline < now:
            seconds = now - self.arrived
            self.fail(DeadlineError(f"the deadline passed after {seconds:.3f} s in the queue"))

    def add_outputs(self, begin: int, outputs: Tensors, served: Served) -> None:
        """Add the outputs of the piece that starts at `begin`; answer if no piece is pending.

        Answer with InputError if the outputs of the pieces have different shapes.
        """
        self.pending -= 1
        if self.future.done():
            return
        if self.pending or self.outputs:
            self.outputs[begin] = outputs
            if self.pending:
                return
            parts = [self.outputs[key] for key in sorted(self.outputs)]
            for name in outputs:
                if len({part[name].shape[1:] for part in parts}) > 1:
                    largest = max(len(part[name]) for part in parts)
                    text = f"the output {name} has different shapes in the batches of this request"
                    self.fail(InputError(f"{text}: send at most {largest} samples at once"))
                    return
            outputs = {name: np.concatenate([part[name] for part in parts]) for name in outputs}
        self.future.set_result(
            Answer(outputs, served, self.queue_seconds, self.compute_seconds, self.batch)
        )


class Piece(NamedTuple):
    """Samples of one request that are computed in one batch; usually all samples of the request."""

    request: Request
    begin: int
    end: int


@dataclass(slots=True)
class Batch:
    """Pieces that a worker computes together."""

    pieces: list[Piece] = field(default_factory=list)
    samples: int = 0
    slot: int = 0

    @property
    def output_names(self) -> list[str] | None:
        """Names of the outputs that any request in the batch needs; None for all."""
        wanted = [piece.request.output_names for piece in self.pieces]
        return None if None in wanted else sorted(frozenset[str]().union(*filter(None, wanted)))

    def arrays(self) -> Mapping[str, Sequence[NDArray[Any]]]:
        """Map each input name to the rows of every piece."""
        return {
            name: [request.inputs[name][begin:end] for request, begin, end in self.pieces]
            for name in self.pieces[0].request.inputs
        }

    def split(self, outputs: Tensors) -> list[Tensors]:
        """For each piece, return copies of its rows in the outputs that its request still needs."""
        copies: list[Tensors] = []
        row = 0
        for request, begin, end in self.pieces:
            rows = slice(row, row := row + end - begin)
            names = () if request.future.done() else request.output_names or outputs
            copies.append({name: outputs[name][rows].copy() for name in names})
        return copies

    def fail(self, error: Exception) -> None:
        """Answer all requests in the batch with an error."""
        for piece in self.pieces:
            piece.request.fail(error)


@dataclass(slots=True, eq=False)
class Lane:
    """The queued requests of one client and their pieces, oldest first."""

    requests: OrderedDict[Request, deque[Piece]] = field(default_factory=OrderedDict)
    samples: int = 0
    size: int = 0


class Queue:
    """Queue that serves clients in turn, with limits on the total number of samples and bytes.

    If the queue is full, a new request evicts the newest requests of the largest client, which is
    the one with the most queued samples or bytes. However, if the new request would make its own
    client at least as large, the new request is rejected.
    """

    def __init__(self, max_batch: int, max_samples: int, max_bytes: int) -> None:
        self.samples = 0
        """Number of queued samples."""
        self._bytes = 0
        self._max_batch = max_batch
        self._max_samples, self._max_bytes = max_samples, max_bytes
        self._lanes: dict[str, Lane] = {}
        """Lanes by client. The first client has the next turn."""

    def has_capacity(self, request: Request) -> bool:
        """Return whether the request currently fits within the limits."""
        samples, size = self.samples + request.samples, self._bytes + request.size
        return samples <= self._max_samples and size <= self._max_bytes

    def samples_before(self, request: Request) -> int:
        """Return the number of queued samples that will be computed before a new request."""
        own = self._lanes.get(request.peer)
        if own is not None and len(self._lanes) == 1:
            return self.samples
        turn = request.samples + (own.samples if own else 0)
        before = sum(min(lane.samples, turn) for lane in self._lanes.values() if lane is not own)
        return before + turn - request.samples

    def put(self, request: Request, retry_after: float) -> None:
        """Append a request.

        Raise OverloadedError if no space can be freed, and InputError if the request can never fit.
        """
        samples = request.samples
        if samples > self._max_samples or request.size > self._max_bytes:
            raise InputError(
                f"the request has {samples} samples and {request.size} bytes: send at most "
                f"{self._max_samples} samples and {self._max_bytes} bytes at once"
            )
        while not self.has_capacity(request):
            if not self._evict(request, retry_after):
                raise OverloadedError(f"{self.samples} samples are queued already", retry_after)
        lane = self._lanes.get(request.peer)
        if lane is None:
            lane = self._lanes[request.peer] = Lane()
        self._count(request, samples, lane)
        pieces = lane.requests[request] = deque()
        for begin in range(0, samples, self._max_batch):
            request.pending += 1
            end = min(begin + self._max_batch, samples)
            pieces.append(Piece(request, begin, end))

    def take(self, now: float) -> Batch:
        """Remove and return the next batch, with pieces of equal shape from each client in turn.

        Requests whose deadline has passed are rejected. The batch may be empty.
        """
        batch = Batch()
        taken = -1
        while taken != batch.samples < self._max_batch:
            taken = batch.samples
            for peer in tuple(self._lanes):
                self._take_turn(peer, batch, now)
                if batch.samples == self._max_batch:
                    break
        return batch

    def _take_turn(self, peer: str, batch: Batch, now: float) -> None:
        """Move the client's oldest piece to the batch if it fits."""
        lane = self._lanes[peer]
        while lane.requests:
            request, pieces = next(iter(lane.requests.items()))
            request.expire(now)
            if not request.future.done():
                break
            self.drop(request)
        else:
            del self._lanes[peer]
            return
        piece = pieces[0]
        size = piece.end - piece.begin
        if batch.pieces and (
            batch.samples + size > self._max_batch
            or request.shapes != batch.pieces[0].request.shapes
            or request.retried
            or batch.pieces[0].request.retried
        ):
            return
        if request.queued == request.samples:
            request.queue_seconds = now - request.arrived
        self._count(request, -size, lane)
        batch.pieces.append(piece)
        batch.samples += size
        pieces.popleft()
        if not pieces:
            del lane.requests[request]
        del self._lanes[peer]
        if lane.requests:
            self._lanes[peer] = lane

    def put_back(self, batch: Batch) -> None:
        """Put the unanswered pieces of a batch back at the front of the queue."""
        for piece in reversed(batch.pieces):
            request = piece.request
            if not request.future.done():
                lane = self._lanes.setdefault(request.peer, Lane())
                lane.requests.setdefault(request, deque()).appendleft(piece)
                lane.requests.move_to_end(request, last=False)
                self._count(request, piece.end - piece.begin, lane)

    def drop(self, request: Request) -> None:
        """Remove a request that has been answered or canceled."""
        if request.queued:
            lane = self._lanes[request.peer]
            del lane.requests[request]
            self._count(request, -request.queued, lane)

    def expire(self, now: float) -> None:
        """Reject requests whose deadline has passed."""
        for request in [one for lane in self._lanes.values() for one in lane.requests]:
            request.expire(now)
            if request.future.done():
                self.drop(request)

    def fail_all(self, error: Exception) -> None:
        """Answer all queued requests with an error."""
        for request in [one for lane in self._lanes.values() for one in lane.requests]:
            request.fail(error)
            self.drop(request)

    def _evict(self, request: Request, retry_after: float) -> bool:
        """Reject the newest request of the client with the most queued samples or bytes.

        Return False and reject nothing if `request` would make its own client at least as large.
        """
        own = self._lanes.get(request.peer) or Lane()
        too_many = self.samples + request.samples > self._max_samples
        amount = attrgetter("samples" if too_many else "size")
        largest = max(self._lanes.values(), key=amount)
        if amount(largest) <= amount(own) + amount(request):
            return False
        newest = next(reversed(largest.requests))
        message = "the queue is full, and this client has the most queued samples or bytes"
        newest.fail(OverloadedError(message, retry_after))
        self.drop(newest)
        return True

    def _count(self, request: Request, samples: int, lane: Lane) -> None:
        had = request.queued
        request.queued += samples
        self.samples += samples
        lane.samples += samples
        if bool(had) != bool(request.queued):
            size = request.size if request.queued else -request.size
            self._bytes += size
            lane.size += size


def size_of(array: NDArray[Any]) -> int:
    """Return the size of an array's values in bytes."""
    if array.dtype.kind == "O":
        return sum(map(len, array.ravel().tolist()))
    return array.nbytes
