"""One version of a model: the requests that wait, and the workers that compute them in batches."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from inference.config import InferenceConfig
from inference.engine.batching import Batch, Pace, Queue, Request
from inference.engine.channel import Message
from inference.engine.continuations import Continuations
from inference.engine.crew import Crew
from inference.engine.datatypes import NUMPY
from inference.engine.interface import (
    Answer,
    InputError,
    OverloadedError,
    Sampling,
    Served,
    Tensors,
    TensorSpec,
    UnavailableError,
)
from inference.engine.job import SLOTS, Job
from inference.engine.observer import Observer
from inference.engine.patience import USUAL, Limits
from inference.engine.process import Worker
from inference.engine.texts import Text

TICK: Final = 0.1
"""Seconds between two looks at deadlines and at workers that hang."""

MARGIN: Final = 1.1
"""Of what a request is expected to take, when its deadline is looked at."""

NEVER: Final = float("inf")


class Pool:
    """Serves one export. Belongs to one event loop, as everything here that is not a worker."""

    served: Served
    """Set by `start`."""

    def __init__(
        self,
        config: InferenceConfig,
        job: Job,
        observer: Observer,
        describe: Callable[[Message], Served],
        limits: Limits = USUAL,
    ) -> None:
        self._config, self._observer, self._describe = config, observer, describe
        self._loop = asyncio.get_running_loop()
        self._queue = Queue(config.max_batch, config.max_queue, config.max_queue_bytes)
        self._pace = Pace()
        self._crew = Crew(
            job,
            config.workers,
            observer,
            limits,
            received=self._received,
            came=self._came,
            lost=self._worker_lost,
        )
        self._texts = Continuations(lambda: self._crew.ready, config.max_batch, config.max_queue)
        self._dispatching = self._ticking = self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Samples and texts that no worker has yet."""
        return self._queue.samples + self._texts.waiting

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to answer."""
        return not (self._queue or self._texts or any(worker.busy for worker in self._crew.workers))

    @property
    def broken(self) -> bool:
        """Whether a worker could not be replaced."""
        return bool(self._crew.broken)

    @property
    def reason(self) -> str:
        """Why requests should not come; empty when they should."""
        return self._crew.reason

    @property
    def pids(self) -> list[int]:
        """Of the workers that are there."""
        return [worker.pid for worker in self._crew.workers if worker.pid is not None]

    async def start(self) -> Served:
        """Start all workers; gives what they serve when each is warm. Raises ExportError."""
        try:
            self.served = self._describe(await self._crew.start())
        except BaseException:
            await self._crew.close()
            raise
        return self.served

    async def infer(self, inputs: Tensors, deadline: float | None) -> Answer:
        """As `Engine.infer`."""
        request = self._submit(inputs, NEVER if deadline is None else deadline)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._queue.drop(request)
            raise

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, deadline: float | None
    ) -> AsyncIterator[int]:
        """As `Engine.generate`."""
        self._check_open()
        if not self.served.generates:
            raise InputError(f"model {self.served.name} generates nothing")
        context = self.served.manifest.input_shape[0]
        text = Text(tokens, sampling, context, NEVER if deadline is None else deadline)
        self._tick_soon()
        async with contextlib.aclosing(self._texts.tokens(text)) as computed:
            async for token in computed:
                yield token

    async def close(self, within: float) -> None:
        """Finish what is there, for so many seconds at most, then end the workers."""
        until = time.monotonic() + within
        while not self.idle and time.monotonic() < until and not self._crew.hopeless:
            await asyncio.sleep(0.01)
        self._closed = True
        ended = UnavailableError("the server is shutting down")
        self._refuse_waiting(ended, computed=True)
        for worker in self._crew.workers:
            for batch in worker.batches:
                _refuse(batch, ended)
        await self._crew.close()

    def kill(self) -> None:
        """End the workers without waiting for anything."""
        self._crew.kill()

    def _submit(self, inputs: Tensors, deadline: float) -> Request:
        self._check_open()
        arrays = {}
        for spec in self.served.inputs:
            array = arrays[spec.name] = inputs[spec.name]
            check(spec, array.dtype == NUMPY[spec.datatype], array.shape)
        now = time.monotonic()
        request = Request(arrays, self._loop.create_future(), now, deadline)
        wait = self._expected_wait()
        last = now + MARGIN * (wait + request.samples * self._pace.seconds)
        # Where nothing waits, it is computed at once: the pace may be that of a bad moment.
        if self._queue and last > deadline:
            raise OverloadedError(
                f"{self._queue.samples} samples wait already: the deadline would pass", wait
            )
        if not self._queue.has_room(request):
            # What came in this same turn may go to workers already.
            self._dispatch()
        self._queue.put(request, max(wait, 0.001))
        if not self._dispatching:
            # Once for all the requests that this turn of the event loop brings.
            self._dispatching = True
            self._loop.call_soon(self._dispatch)
            self._tick_soon()
        return request

    def _expected_wait(self) -> float:
        """Seconds until a request that comes now would be begun with, at the pace of late."""
        workers = self._crew.ready
        taken = sum([batch.samples for worker in workers for batch in worker.batches])
        return (self._queue.samples + taken) * self._pace.seconds / max(1, len(workers))

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down")
        if self._crew.hopeless:
            raise UnavailableError(self.reason, 5.0)

    def _dispatch(self) -> None:
        self._dispatching = False
        while self._queue:
            worker = self._free()
            if worker is None:
                return
            now = time.monotonic()
            if self._queue.samples < worker.expects:
                wait = worker.since + self._config.max_delay_ms / 1000 - now
                if wait > 0:
                    self._dispatch_later(wait)
                    return
            batch = self._queue.take(now)
            if batch.pieces:
                worker.compute(batch)

    def _free(self) -> Worker | None:
        """A worker for what waits: an idle one, or one that computes if the batch is full."""
        best = min(self._crew.ready, key=lambda worker: len(worker.batches), default=None)
        if best is None or not best.batches:
            return best
        return best if self._queue.full_batch and len(best.batches) < SLOTS else None

    def _dispatch_later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._dispatch_now)

    def _dispatch_now(self) -> None:
        self._timer = None
        self._dispatch()

    def _received(self, worker: Worker, message: Message) -> None:
        began, worker.since = worker.since, time.monotonic()
        if message["is"] == "done":
            self._answer(worker, message, worker.since - began)
        else:
            self._observer.tokens(len(message["tokens"]), message["seconds"])
            self._texts.add(worker, message)

    def _answer(self, worker: Worker, message: Message, took: float) -> None:
        batch, outputs = worker.answer(message)
        several = self._queue or len(batch.pieces) > 1
        expected = min(batch.samples + self._queue.samples, self._config.max_batch)
        worker.expects = expected if several else 0
        if not self._dispatching:
            # Before the answers are written: the worker computes in the meantime.
            self._dispatch()
        seconds: float = message["seconds"]
        self._pace.measured(batch.samples, took)
        self._observer.batch(batch.samples, seconds)
        errors = message["errors"]
        row = 0
        for index, piece in enumerate(batch.pieces):
            request = piece.request
            if errors and str(index) in errors:
                request.refuse(_error(*errors[str(index)]))
                self._queue.drop(request)
                continue
            end = row + piece.end - piece.begin
            request.compute_seconds += seconds
            request.batch = max(request.batch, batch.samples)
            rows = {name: array[row:end] for name, array in outputs.items()}
            request.take(piece.begin, rows, self.served)
            row = end

    def _came(self) -> None:
        self._dispatch()
        self._texts.dispatch()

    def _worker_lost(self, worker: Worker, why: str) -> None:
        """Only what it was computing is lost; what it had not begun with goes to others."""
        lost = UnavailableError(f"the worker that computed this died: {why}")
        for position, batch in enumerate(worker.batches):
            if position == 0:
                _refuse(batch, lost)
            else:
                self._queue.put_back(batch)
        self._texts.lose(worker, lost)
        if self._crew.hopeless:
            self._refuse_waiting(UnavailableError(self.reason, 5.0), computed=False)
        self._dispatch()

    def _refuse_waiting(self, error: Exception, computed: bool) -> None:
        self._queue.refuse_all(error)
        self._texts.refuse_all(error, computed)

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        """Look after deadlines and workers that hang, as long as there is anything to answer."""
        now = time.monotonic()
        self._queue.expire(now)
        self._texts.expire(now)
        longest = self._config.hang_seconds
        for worker in self._crew.ready:
            if worker.busy and now - worker.since > longest:
                worker.kill(f"it computed for more than {longest:g} s")
        self._ticking = False
        if not self.idle:
            self._tick_soon()


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


def _refuse(batch: Batch, error: Exception) -> None:
    for piece in batch.pieces:
        piece.request.refuse(error)


def _error(kind: str, text: str) -> Exception:
    return UnavailableError(text) if kind == "memory" else InputError(text)
