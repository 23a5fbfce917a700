"""From requests to batches to workers, and back: what waits, who computes it, and who is told."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from inference.config import InferenceConfig
from inference.engine.batching import Batch, Pace, Queue, Request
from inference.engine.channel import Message
from inference.engine.datatypes import NUMPY
from inference.engine.interface import (
    InputError,
    OverloadedError,
    Served,
    Tensors,
    TensorSpec,
    UnavailableError,
)
from inference.engine.job import SLOTS
from inference.engine.observer import Observer
from inference.engine.process import Worker

MARGIN: Final = 1.1
"""Of what a request is expected to take, when its deadline is looked at."""

SOONEST: Final = 0.001
"""Seconds after which another attempt makes sense, at least."""


class Dispatch:
    """Batches for `workers`, those that can compute: a list that its owner keeps.

    `begun` is called when there is something to look after.
    """

    served: Served
    """Set before the first request."""

    def __init__(
        self,
        config: InferenceConfig,
        workers: list[Worker],
        observer: Observer,
        begun: Callable[[], None],
    ) -> None:
        self.queue = Queue(config.max_batch, config.max_queue, config.max_queue_bytes)
        self._config, self._workers, self._observer = config, workers, observer
        self._begun = begun
        self._loop = asyncio.get_running_loop()
        self._pace = Pace()
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expected_wait(self) -> float:
        """Seconds until a request that comes now would be begun with, at the pace of late."""
        samples = self.queue.samples
        for worker in self._workers:
            for batch in worker.batches:
                samples += batch.samples
        return samples * self._pace.seconds / max(1, len(self._workers))

    def submit(self, inputs: Tensors, deadline: float) -> Request:
        """A request that waits from now on. Raises InputError and OverloadedError."""
        arrays = {}
        for spec in self.served.inputs:
            array = arrays[spec.name] = inputs[spec.name]
            check(spec, array.dtype == NUMPY[spec.datatype], array.shape)
        now = time.monotonic()
        request = Request(arrays, self._loop.create_future(), now, deadline)
        queue = self.queue
        wait = 0.0
        # Where nothing waits, it is computed at once: the pace may be that of a bad moment.
        if queue.samples:
            wait = self.expected_wait
            if now + MARGIN * (wait + request.samples * self._pace.seconds) > deadline:
                raise OverloadedError(
                    f"{queue.samples} samples wait already: the deadline would pass", wait
                )
        if not queue.has_room(request):
            # What came in this same turn may go to workers already.
            self.dispatch()
        queue.put(request, max(wait, SOONEST))
        if not self._soon:
            # Once for all the requests that this turn of the event loop brings.
            self._soon = True
            self._loop.call_soon(self.dispatch)
            self._begun()
        return request

    def dispatch(self) -> None:
        """Give what waits to workers that have room."""
        self._soon = False
        while self.queue:
            worker = self._free()
            if worker is None:
                return
            now = time.monotonic()
            if self.queue.samples < worker.expects:
                wait = worker.since + self._config.max_delay_ms / 1000 - now
                if wait > 0:
                    self._later(wait)
                    return
            batch = self.queue.take(now)
            if batch.pieces:
                worker.compute(batch)

    def answer(self, worker: Worker, message: Message, took: float) -> None:
        """A worker tells of a batch that it has computed."""
        batch, outputs = worker.answer(message)
        several = self.queue or len(batch.pieces) > 1
        expected = min(batch.samples + self.queue.samples, self._config.max_batch)
        worker.expects = expected if several else 0
        if not self._soon:
            # Before the answers are written: the worker computes in the meantime.
            self.dispatch()
        seconds: float = message["seconds"]
        self._pace.measured(batch.samples, took)
        self._observer.batch(batch.samples, seconds)
        errors = message["errors"]
        row = 0
        for index, piece in enumerate(batch.pieces):
            request = piece.request
            if errors and str(index) in errors:
                request.refuse(_error(*errors[str(index)]))
                self.queue.drop(request)
                continue
            end = row + piece.end - piece.begin
            request.compute_seconds += seconds
            request.batch = max(request.batch, batch.samples)
            rows = {name: array[row:end] for name, array in outputs.items()}
            request.take(piece.begin, rows, self.served)
            row = end

    def lose(self, worker: Worker, error: Exception) -> None:
        """The worker died: what it had not begun with goes to others."""
        for position, batch in enumerate(worker.batches):
            if position == 0:
                refuse(batch, error)
            else:
                self.queue.put_back(batch)

    def _free(self) -> Worker | None:
        """A worker for what waits: an idle one, or one that computes if the batch is full."""
        best = min(self._workers, key=lambda worker: len(worker.batches), default=None)
        if best is None or not best.batches:
            return best
        return best if self.queue.full_batch and len(best.batches) < SLOTS else None

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._now)

    def _now(self) -> None:
        self._timer = None
        self.dispatch()


def check(spec: TensorSpec, right_type: bool, shape: tuple[int, ...]) -> None:
    """What protocols must have checked already. Raises InputError."""
    # As most tensors are: the sizes are fixed, and not looked at one by one.
    if right_type and shape[1:] == spec.shape[1:] and shape[0]:
        return
    fits = len(shape) == len(spec.shape) and all(
        wanted in (-1, size) for wanted, size in zip(spec.shape, shape, strict=True)
    )
    if not (right_type and fits and shape[0]):
        raise InputError(
            f"{spec.name} has the wrong type or the shape {list(shape)}: it must be "
            f"{spec.datatype} {list(spec.shape)}"
        )


def refuse(batch: Batch, error: Exception) -> None:
    """Answer all of its requests with an error."""
    for piece in batch.pieces:
        piece.request.refuse(error)


def _error(kind: str, text: str) -> Exception:
    return UnavailableError(text) if kind == "memory" else InputError(text)
