"""The workers of one version of a model, and the requests that wait for them."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from inference.config import InferenceConfig
from inference.engine.batching import Batch, Pace, Queue, Request
from inference.engine.channel import Message
from inference.engine.datatypes import NUMPY
from inference.engine.interface import (
    Answer,
    DeadlineError,
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
from inference.engine.patience import USUAL, Limits, Patience
from inference.engine.process import Worker
from inference.engine.texts import Text
from training.manifest import ExportError
from training.report import emit

TICK: Final = 0.1
"""Seconds between two looks at deadlines and at workers that hang."""

NEVER: Final = float("inf")


class Pool:
    """Serves one export. Belongs to one event loop, as everything here that is not a worker."""

    def __init__(
        self,
        config: InferenceConfig,
        job: Job,
        observer: Observer,
        describe: Callable[[Message], Served],
        limits: Limits = USUAL,
    ) -> None:
        self.served: Served | None = None
        self.broken = ""
        """Why a worker could not be replaced."""
        self._config, self._job, self._observer = config, job, observer
        self._describe = describe
        self._loop = asyncio.get_running_loop()
        self._queue = Queue(config.max_batch, config.max_queue, config.max_queue_bytes)
        self._pace = Pace()
        self._patience = Patience(limits)
        self._workers: list[Worker] = []
        self._loading: dict[Worker, asyncio.Future[Message]] = {}
        self._replacing: set[asyncio.Task[None]] = set()
        self._texts: dict[int, Text] = {}
        self._waiting_texts: deque[int] = deque()
        self._identities = itertools.count()
        self._dispatching = self._ticking = self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Samples and texts that no worker has yet."""
        return self._queue.samples + len(self._waiting_texts)

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to answer."""
        return not (self._queue or self._texts or any(worker.busy for worker in self._workers))

    @property
    def reason(self) -> str:
        """Why requests should not come; empty when they should."""
        if self.broken and not self._ready:
            return self.broken
        return self._patience.reason(self._loop.time())

    @property
    def pids(self) -> list[int]:
        """Of the workers that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def _ready(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ready]

    async def start(self) -> Served:
        """Start all workers; gives what they serve when each is warm. Raises ExportError."""
        try:
            # The first one compiles what is to be compiled, and sees how many devices there are.
            ready = await self._start(self._job)
            self.served = self._describe(ready)
            jobs = [
                replace(self._job, index=index)
                for index in range(int(ready["devices"]))
                for _ in range(self._config.workers)
            ]
            await asyncio.gather(*map(self._start, jobs[1:]))
        except BaseException:
            await self.close(0)
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
        served = self._check_open()
        if not served.generates:
            raise InputError(f"model {served.name} generates nothing")
        if len(self._waiting_texts) >= self._config.max_queue:
            raise OverloadedError(f"{len(self._waiting_texts)} texts wait already", 1.0)
        context = served.manifest.input_shape[0]
        text = Text(tokens, sampling, context, NEVER if deadline is None else deadline)
        identity = next(self._identities)
        self._texts[identity] = text
        self._waiting_texts.append(identity)
        self._tick_soon()
        self._dispatch_texts()
        try:
            async for token in text.tokens():
                yield token
        finally:
            self._forget(identity)

    async def close(self, within: float) -> None:
        """Finish what is there, for so many seconds at most, then end the workers."""
        until = self._loop.time() + within
        while not self.idle and self._loop.time() < until and (self._ready or self._replacing):
            await asyncio.sleep(0.01)
        self._closed = True
        for task in self._replacing:
            task.cancel()
        self._refuse_all(UnavailableError("the server is shutting down", 1.0))
        for worker in [*self._workers]:
            if worker.busy or not worker.ready:
                worker.kill("it was told to")
            worker.close()
        until = self._loop.time() + 2
        while self._workers:
            await asyncio.sleep(0.005)
            if self._loop.time() > until:
                self.kill()
                until = NEVER

    def kill(self) -> None:
        """End the workers without waiting for anything."""
        for worker in self._workers:
            worker.kill()

    def _submit(self, inputs: Tensors, deadline: float) -> Request:
        served = self._check_open()
        now = self._loop.time()
        arrays = {spec.name: inputs[spec.name] for spec in served.inputs}
        for spec, array in zip(served.inputs, arrays.values(), strict=True):
            check(spec, array.dtype == NUMPY[spec.datatype], array.shape)
        request = Request(arrays, self._loop.create_future(), now, deadline)
        wait = self._expected_wait()
        if self._queue and now + wait > deadline:
            raise OverloadedError(
                f"{self._queue.samples} samples wait already, so that the deadline would pass",
                wait,
            )
        self._queue.put(request, max(wait, 0.001))
        if not self._dispatching:
            # Once for all the requests that this turn of the event loop brings.
            self._dispatching = True
            self._loop.call_soon(self._dispatch)
            self._tick_soon()
        return request

    def _check_open(self) -> Served:
        if self.served is None or self._closed:
            raise UnavailableError("the server is shutting down", 1.0)
        if not self._ready and (self.broken or self._patience.reason(self._loop.time())):
            raise UnavailableError(self.reason, 5.0)
        return self.served

    def _expected_wait(self) -> float:
        return self._queue.samples * self._pace.seconds / max(1, len(self._ready))

    def _dispatch(self) -> None:
        self._dispatching = False
        while self._queue:
            worker = self._free()
            if worker is None:
                return
            now = self._loop.time()
            if worker.crowded and not self._queue.full_batch:
                wait = self._queue.oldest + self._config.max_delay_ms / 1000 - now
                if wait > 0:
                    self._dispatch_later(wait)
                    return
            batch = self._queue.take(now)
            if batch.pieces:
                worker.compute(batch)

    def _free(self) -> Worker | None:
        """A worker for what waits: an idle one, or one that computes if the batch is full."""
        best = min(self._ready, key=lambda worker: worker.load, default=None)
        if best is None or best.load >= SLOTS or (best.load and not self._queue.full_batch):
            return None
        return best

    def _dispatch_later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._dispatch_now)

    def _dispatch_now(self) -> None:
        self._timer = None
        self._dispatch()

    def _dispatch_texts(self) -> None:
        while self._waiting_texts:
            worker = min(self._ready, key=lambda worker: len(worker.texts), default=None)
            if worker is None or len(worker.texts) >= self._config.max_batch:
                return
            identity = self._waiting_texts.popleft()
            worker.continue_text(identity, self._texts[identity].message)

    def _forget(self, identity: int) -> None:
        """A text has ended, or nobody reads it any more."""
        text = self._texts.pop(identity, None)
        if text is None:
            return
        if identity in self._waiting_texts:
            self._waiting_texts.remove(identity)
        for worker in self._workers:
            if identity in worker.texts:
                worker.texts.discard(identity)
                worker.send({"do": "stop", "id": identity})
        self._dispatch_texts()

    def _received(self, worker: Worker, message: Message) -> None:
        now = self._loop.time()
        match message["is"]:
            case "done":
                self._answer(worker, message, now)
            case "tokens":
                worker.since = now
                self._add_tokens(worker, message)
            case told:
                worker.ready, worker.failed = told == "ready", told == "failed"
                loading = self._loading.pop(worker, None)
                if loading is not None and not loading.done():
                    loading.set_result(message)

    def _answer(self, worker: Worker, message: Message, now: float) -> None:
        began = worker.since
        worker.since = now
        batch, outputs = worker.answer(message)
        worker.crowded = bool(self._queue)
        if self._queue and not self._dispatching:
            # Before the answers are written: the worker computes in the meantime.
            self._dispatch()
        seconds: float = message["seconds"]
        self._pace.measured(batch.samples, now - began)
        self._observer.batch(batch.samples, seconds)
        errors = message["errors"]
        row = 0
        assert self.served is not None  # noqa: S101  workers are asked only when it is
        for index, piece in enumerate(batch.pieces):
            request = piece.request
            if str(index) in errors:
                request.refuse(_error(*errors[str(index)]))
                self._queue.drop(request)
                continue
            end = row + piece.end - piece.begin
            request.compute_seconds += seconds
            request.batch = max(request.batch, batch.samples)
            rows = {name: array[row:end] for name, array in outputs.items()}
            request.take(piece.begin, rows, self.served)
            row = end

    def _add_tokens(self, worker: Worker, message: Message) -> None:
        self._observer.tokens(len(message["tokens"]), message["seconds"])
        for identity, token in message["tokens"]:
            if identity in self._texts:
                self._texts[identity].add(token)
        failed = {int(key): InputError(text) for key, text in message["errors"].items()}
        for identity in (*message["ended"], *failed):
            worker.texts.discard(identity)
            if identity in self._texts:
                self._texts[identity].end(failed.get(identity))
        self._dispatch_texts()

    async def _start(self, job: Job) -> Message:
        """One more worker, when it is ready. Raises ExportError."""
        worker = Worker(job, self._received, self._ended)
        loading: asyncio.Future[Message] = self._loop.create_future()
        self._loading[worker] = loading
        self._workers.append(worker)
        try:
            await worker.start()
        except BaseException:
            self._workers.remove(worker)
            raise
        message = await loading
        if message["is"] != "ready":
            raise ExportError(message["message"])
        self._dispatch()
        self._dispatch_texts()
        return message

    def _ended(self, worker: Worker, why: str) -> None:
        self._workers.remove(worker)
        loading = self._loading.pop(worker, None)
        if loading is not None:
            if not loading.done():
                loading.set_result({"is": "failed", "message": f"a worker died loading: {why}"})
            return
        if self._closed or worker.failed:
            return
        self._observer.worker_ended(why)
        delay = self._patience.died(self._loop.time(), why)
        emit("worker_ended", reason=why, again_in=delay, pid=worker.pid)
        self._blame(worker, why)
        self._replace_later(worker.job, delay)

    def _blame(self, worker: Worker, why: str) -> None:
        """Only what it was computing is lost; what it had not begun with goes to others."""
        lost = UnavailableError(f"the worker that computed this died: {why}", 1.0)
        for position, batch in enumerate(worker.batches):
            if position == 0:
                _refuse(batch, lost)
            else:
                self._queue.put_back(batch)
        for identity in worker.texts:
            if identity in self._texts:
                self._texts[identity].end(lost)
        self._dispatch()

    def _replace_later(self, job: Job, delay: float) -> None:
        if delay and not self._ready:
            self._refuse_all(UnavailableError(self.reason, delay))
        task = self._loop.create_task(self._replace(job, delay))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, job: Job, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self._start(job)
            self.broken = ""
        except ExportError as error:
            if self._closed:
                return
            self.broken = str(error)
            again = max(
                self._config.poll_seconds, self._patience.died(self._loop.time(), str(error))
            )
            emit("worker_ended", reason=self.broken, again_in=again)
            self._replace_later(job, again)

    def _refuse_all(self, error: Exception) -> None:
        self._queue.refuse_all(error)
        if self._closed:
            for worker in self._workers:
                for batch in worker.batches:
                    _refuse(batch, error)
        for identity, text in self._texts.items():
            if self._closed or identity in self._waiting_texts:
                text.end(error)
        self._waiting_texts.clear()

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        """Look after deadlines and workers that hang, as long as there is anything to answer."""
        now = self._loop.time()
        self._queue.expire(now)
        for text in self._texts.values():
            if text.deadline < now:
                text.end(DeadlineError("the deadline passed before the text was complete"))
        for worker in self._workers:
            if worker.ready and worker.busy and now - worker.since > self._config.hang_seconds:
                worker.kill(f"it computed for more than {self._config.hang_seconds:g} s")
        self._ticking = False
        if not self.idle:
            self._tick_soon()


def check(spec: TensorSpec, right_type: bool, shape: tuple[int, ...]) -> None:
    """What protocols must have checked already. Raises InputError."""
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
    return UnavailableError(text, 1.0) if kind == "memory" else InputError(text)
