"""Queue and workers of one model version."""

import asyncio
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from inference.config import InferenceConfig
from inference.engine.backoff import Backoff
from inference.engine.batching import Batch, Queue, Request
from inference.engine.interface import (
    InputError,
    Observer,
    OverloadedError,
    Served,
    Tensors,
    TensorSpec,
    UnavailableError,
)
from inference.engine.process import SLOTS, Message, Worker, WorkerSpec
from workload.cores import available_cores
from workload.manifest import ExportError, Manifest
from workload.report import emit

DEADLINE_MARGIN: Final = 1.1
"""Factor by which the estimated time of a request is multiplied to check its deadline."""

MIN_RETRY_SECONDS: Final = 0.001

UNAVAILABLE_RETRY_SECONDS: Final = 5.0

PACE_WEIGHT: Final = 0.05
"""Weight of the latest batch in the moving average of the time per sample. The average covers the
last few dozen batches."""

SLOW_LOAD_SECONDS: Final = 60.0
"""Time (s) after which the server logs that a worker is still loading the model. It does not stop
the worker, because compiling a large model may take longer."""

STOP_SECONDS: Final = 2.0
"""Time (s) that a worker may take to exit before it is killed."""

TICK_SECONDS: Final = 0.1
"""Interval (s) between checks for expired requests and hung workers."""


class Pool:
    """The queue and the workers of one export. A pool belongs to one event loop."""

    served: Served
    """The loaded model; set by `start`."""
    reads_strings = False
    """True if an input has strings (BYTES), which take longer to read than numbers."""

    def __init__(
        self, config: InferenceConfig, manifest: Manifest, compile_cache: Path, observer: Observer
    ) -> None:
        self._config, self._manifest, self._observer = config, manifest, observer
        self._loop = asyncio.get_running_loop()
        self._queue = Queue(config.max_batch, config.max_queue, config.max_queue_bytes)
        threads = config.threads or default_threads(config.workers)
        self._spec = WorkerSpec(config, manifest, 0, threads, compile_cache)
        self._workers: list[Worker] = []
        """All workers, including those that are still loading the model."""
        self._backoff = Backoff()
        self._replacing: set[asyncio.Task[None]] = set()
        self.replacement_error = ""
        """Reason why the last worker replacement failed; empty if it did not fail."""
        self._last_exit = math.inf
        """Time at which a worker last died; infinity if none has died."""
        self._sample_seconds = 0.0
        """Moving average of a worker's time per sample; 0 before the first batch."""
        self._dispatch_scheduled = self._ticking = self._closed = False
        self._batch_timer: asyncio.TimerHandle | None = None

    @property
    def queued(self) -> int:
        """Number of queued samples."""
        return self._queue.samples

    @property
    def max_in_flight(self) -> int:
        """Maximum number of samples that are queued or have been sent to workers."""
        at_workers = SLOTS * self._config.max_batch * max(1, len(self._workers))
        return self._config.max_queue + at_workers

    def estimated_wait(self, samples: int) -> float:
        """Estimate the time (s) until this number of queued samples has been computed.

        The estimate is based on recent batches.
        """
        ready = 0
        for worker in self._workers:
            ready += worker.ready
            for batch in worker.batches:
                samples += batch.samples
        return samples * self._sample_seconds / max(1, ready)

    @property
    def idle(self) -> bool:
        """True if no request is queued or being computed."""
        return not (self.queued or any(worker.batches for worker in self._workers))

    @property
    def reason(self) -> str:
        """Reason why the pool is unready; empty if it is ready."""
        if not any(worker.ready for worker in self._workers):
            if self.replacement_error:
                return self.replacement_error
            if not self._replacing:
                return "no worker is running"
            # Requests that have been waiting since the last worker died have expired by now.
            if time.monotonic() - self._last_exit > self._config.request_seconds:
                return "no worker is running: a replacement is still loading the model"
        return self._backoff.reason(time.monotonic())

    async def start(self) -> Served:
        """Start and warm up all workers. Raise ExportError if the model cannot be served."""
        try:
            # The first worker compiles the model if necessary, and counts the devices.
            ready = await self._start(self._spec)
            specs = [
                replace(self._spec, device_index=index)
                for index in range(int(ready["devices"]))
                for _ in range(self._config.workers)
            ]
            await asyncio.gather(*map(self._start, specs[1:]))
        except BaseException:
            await self._stop()
            raise
        inputs, outputs = (
            tuple(TensorSpec(name, datatype, tuple(shape)) for name, datatype, shape in ready[key])
            for key in ("inputs", "outputs")
        )
        config = self._config
        self.served = Served(config.model_name, self._manifest, config.backend, inputs, outputs)
        self.reads_strings = any(spec.datatype == "BYTES" for spec in inputs)
        return self.served

    def drop(self, request: Request) -> None:
        """Remove a canceled request from the queue."""
        self._queue.drop(request)

    async def close(self, seconds: float) -> None:
        """Answer accepted requests and stop the workers.

        Kill the workers that have not exited after `seconds`.
        """
        until = time.monotonic() + seconds
        while not self.idle and time.monotonic() < until and not self._has_no_workers:
            await asyncio.sleep(0.01)
        error = UnavailableError("the server is shutting down")
        self._closed = True
        self._queue.fail_all(error)
        for worker in self._workers:
            for batch in worker.batches:
                batch.fail(error)
        await self._stop(min(STOP_SECONDS, until - time.monotonic()))

    def kill(self) -> None:
        """Kill the workers without waiting."""
        for worker in self._workers:
            worker.kill()

    async def _stop(self, seconds: float = STOP_SECONDS) -> None:
        """Stop all workers, including those that are still computing or loading.

        Kill those that have not exited after `seconds`.
        """
        self._closed = True
        for task in self._replacing:
            task.cancel()
        for worker in [*self._workers]:
            if worker.batches or not worker.ready:
                worker.kill()
            worker.close()
        until = time.monotonic() + seconds
        while self._workers:
            await asyncio.sleep(0.005)
            if time.monotonic() > until:
                self.kill()

    @property
    def _has_no_workers(self) -> bool:
        """True if no worker is ready, and no worker is expected to be ready soon."""
        expected = self._replacing and not self.reason
        return not (expected or any(worker.ready for worker in self._workers))

    def submit(
        self,
        inputs: Tensors,
        deadline: float,
        peer: str = "",
        outputs: frozenset[str] | None = None,
    ) -> Request:
        """Queue a client's request and return it. The answer is set on its `future`.

        `inputs` must have been checked against `served.inputs`. `deadline` is a timestamp of
        `time.monotonic`. The answer contains only the named `outputs`; None means all outputs.
        Raise InputError, OverloadedError or UnavailableError if the request is rejected. The future
        may fail with the same errors, or with DeadlineError.
        """
        if self._closed:
            raise UnavailableError("the server is shutting down")
        if self._has_no_workers:
            raise UnavailableError(self.reason, UNAVAILABLE_RETRY_SECONDS)
        specs = self.served.inputs
        arrays = inputs if len(specs) == 1 else {spec.name: inputs[spec.name] for spec in specs}
        now = time.monotonic()
        future = self._loop.create_future()
        request = Request(arrays, future, now, deadline, peer, outputs)
        queue = self._queue
        wait = 0.0
        # With an empty queue, the request is computed next, so no estimate is needed.
        if queue.samples:
            wait = self.estimated_wait(queue.samples_before(request))
            seconds = wait + request.samples * self._sample_seconds
            if now + DEADLINE_MARGIN * seconds > deadline:
                raise OverloadedError(
                    f"{queue.samples} samples are queued already: the deadline would pass before "
                    "the outputs are computed",
                    wait,
                )
        if not queue.has_capacity(request):
            # Workers may have free slots for the requests that were queued in this iteration of the
            # event loop.
            self._dispatch()
        queue.put(request, max(wait, MIN_RETRY_SECONDS))
        if not self._dispatch_scheduled:
            # Dispatch once for all requests that arrive in this iteration of the event loop.
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)
            self._schedule_tick()
        return request

    def _dispatch(self) -> None:
        """Send queued requests to workers with free slots."""
        self._dispatch_scheduled = False
        while self.queued:
            worker = self._available_worker()
            if worker is None:
                return
            now = time.monotonic()
            if self._queue.samples < worker.expected_samples:
                wait = worker.busy_since + self._config.max_delay_ms / 1000 - now
                if wait > 0:
                    if self._batch_timer is None:
                        self._batch_timer = self._loop.call_later(wait, self._batch_timeout)
                    return
            batch = self._queue.take(now)
            if batch.pieces:
                try:
                    worker.compute(batch)
                except (MemoryError, OSError) as error:
                    self._fail_out_of_memory(batch, error)

    def _batch_timeout(self) -> None:
        self._batch_timer = None
        self._dispatch()

    def _available_worker(self) -> Worker | None:
        """Return an idle worker, or one with a free slot if a full batch is queued."""
        ready = [worker for worker in self._workers if worker.ready]
        best = min(ready, key=lambda worker: len(worker.batches), default=None)
        if best is None or not best.batches:
            return best
        full = self.queued >= self._config.max_batch and len(best.batches) < SLOTS
        return best if full else None

    def _finish(self, worker: Worker, message: Message) -> None:
        """Answer the requests of a batch that a worker has computed."""
        started, worker.busy_since = worker.busy_since, time.monotonic()
        duration = worker.busy_since - started
        self._backoff.succeeded()
        batch = worker.batches[0]
        try:
            outputs = worker.finish(message)
        except (MemoryError, OSError) as error:
            self._fail_out_of_memory(batch, error)
            self._dispatch()
            return
        steady = self.queued or len(batch.pieces) > 1
        expected = min(batch.samples + self._queue.samples, self._config.max_batch)
        worker.expected_samples = expected if steady else 0
        failed = message.get("error")
        if failed and len(batch.pieces) > 1:
            # Compute each request again separately, so that only invalid ones fail.
            for piece in batch.pieces:
                piece.request.retried = True
            self._queue.put_back(batch)
        if not self._dispatch_scheduled:
            # Dispatch before writing the answers, so that the worker is not idle in the meantime.
            self._dispatch()
        seconds: float = message["seconds"]
        pace = duration / batch.samples
        weight = PACE_WEIGHT if self._sample_seconds else 1
        self._sample_seconds += (pace - self._sample_seconds) * weight
        self._observer.batch(batch.samples, seconds)
        if failed:
            if len(batch.pieces) == 1:
                kind, text = failed
                self._fail(batch, UnavailableError(text) if kind == "memory" else InputError(text))
            return
        for piece, rows in zip(batch.pieces, outputs, strict=True):
            request = piece.request
            request.compute_seconds += seconds
            request.batch = max(request.batch, batch.samples)
            try:
                request.add_outputs(piece.begin, rows, self.served)
            except Exception as error:
                # The remaining requests of the batch must still be answered.
                request.fail(error)
                self._queue.drop(request)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Reject the requests of a batch."""
        batch.fail(error)
        for piece in batch.pieces:
            self._queue.drop(piece.request)

    def _fail_out_of_memory(self, batch: Batch, error: Exception) -> None:
        """Reject the requests of a batch whose inputs or outputs do not fit in memory."""
        emit("batch_failed", reason=repr(error), samples=batch.samples)
        rejection = UnavailableError("not enough memory for a batch: send fewer samples at once")
        self._fail(batch, rejection)

    async def _start(self, spec: WorkerSpec) -> Message:
        """Start a worker and return its `ready` message. Raise ExportError on failure."""
        worker = Worker(spec, self._finish, self._handle_exit)
        self._workers.append(worker)
        try:
            await worker.start()
        except BaseException as error:
            self._workers.remove(worker)
            # The fork server may have died, or there may be too little memory or too many
            # processes, threads or open files. A later start may succeed, because it also
            # replaces a dead fork server.
            if isinstance(error, OSError | EOFError | RuntimeError):
                raise ExportError(f"a worker cannot be started: {error!r}") from error
            raise
        await asyncio.wait([worker.loaded], timeout=SLOW_LOAD_SECONDS)
        if not worker.loaded.done():
            emit("load_slow", model=self._config.model_name, seconds=SLOW_LOAD_SECONDS)
        message = await worker.loaded
        if message["type"] != "ready":
            raise ExportError(message["message"])
        self._dispatch()
        return message

    def _handle_exit(self, worker: Worker, reason: str) -> None:
        """Replace a worker that died."""
        self._workers.remove(worker)
        if self._closed or not worker.ready:
            return
        self._last_exit = time.monotonic()
        self._observer.worker_ended(reason)
        computing = worker.batches[0].pieces if worker.batches else []
        retried = bool(computing) and all(piece.request.retried for piece in computing)
        delay = self._backoff.died(time.monotonic(), reason, retried=retried)
        emit("worker_ended", reason=reason, retry_in=delay)
        task = asyncio.create_task(self._replace(worker.spec, delay))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)
        self._requeue(worker, reason)

    async def _replace(self, spec: WorkerSpec, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            try:
                await self._start(spec)
                self.replacement_error = ""
                return
            except ExportError as error:
                if self._closed:
                    return
                self.replacement_error = str(error)
                delay = max(1.0, self._backoff.died(time.monotonic(), self.replacement_error))
                emit("worker_failed", reason=self.replacement_error, retry_in=delay)

    def _requeue(self, worker: Worker, reason: str) -> None:
        """Requeue the batches of a dead worker.

        The requests of the batch that the worker was computing are retried once, individually. A
        request that kills a second worker fails. After too many deaths, or if the worker hung, all
        requests of that batch fail.
        """
        error = UnavailableError(f"the worker that was processing this request died: {reason}")
        for position, batch in reversed(list(enumerate(worker.batches))):
            if position == 0:
                final = bool(worker.exit_reason or self.reason)
                for piece in batch.pieces:
                    if final or piece.request.retried:
                        piece.request.fail(error)
                    piece.request.retried = True
            self._queue.put_back(batch)
        if self._has_no_workers:
            self._queue.fail_all(UnavailableError(self.reason, UNAVAILABLE_RETRY_SECONDS))
        self._dispatch()

    def _schedule_tick(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Reject expired requests and kill hung workers. Repeat until no request is pending."""
        now = time.monotonic()
        self._queue.expire(now)
        limit = self._config.hang_seconds
        for worker in self._workers:
            if worker.batches and now - worker.busy_since > limit:
                worker.kill(f"a batch took more than {limit:g} s")
        self._ticking = False
        if not self.idle:
            self._schedule_tick()


def default_threads(workers: int) -> int:
    """Return OMP_NUM_THREADS, or a worker's share of the cores available to this process."""
    configured = os.environ.get("OMP_NUM_THREADS", "")
    if configured.isdecimal() and int(configured):
        return int(configured)
    return max(1, available_cores() // workers)
