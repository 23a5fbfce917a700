"""One version of a model: the requests that wait, and the workers that compute them in batches."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from inference.config import InferenceConfig
from inference.engine.channel import Message
from inference.engine.crew import Crew
from inference.engine.dispatch import Dispatch, refuse
from inference.engine.interface import Answer, Served, Tensors, UnavailableError
from inference.engine.job import SLOTS, Job
from inference.engine.observer import Observer
from inference.engine.patience import USUAL, Limits
from inference.engine.process import Worker

TICK: Final = 0.1
"""Seconds between two looks at deadlines and at workers that hang."""

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
        self._config, self._describe = config, describe
        self._loop = asyncio.get_running_loop()
        self._crew = Crew(
            job,
            config.workers,
            observer,
            limits,
            received=self._received,
            came=self._came,
            lost=self._worker_lost,
        )
        self._dispatch = Dispatch(config, self._crew.ready, observer, self._tick_soon)
        self._queue = self._dispatch.queue
        self._ticking = self._closed = False

    @property
    def waiting(self) -> int:
        """Samples that no worker has yet."""
        return self._queue.samples

    @property
    def most(self) -> int:
        """Samples that it may have at once, those that are computed among them."""
        computed = SLOTS * self._config.max_batch * max(1, len(self._crew.workers))
        return self._config.max_queue + computed

    @property
    def expected_wait(self) -> float:
        """Seconds until a request that comes now would be begun with, at the pace of late."""
        return self._dispatch.expected_wait

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to answer."""
        return not (self._queue or any(worker.busy for worker in self._crew.workers))

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
            self.served = self._dispatch.served = self._describe(await self._crew.start())
        except BaseException:
            await self._crew.close()
            raise
        return self.served

    async def infer(self, inputs: Tensors, deadline: float | None) -> Answer:
        """As `Engine.infer`."""
        self._check_open()
        request = self._dispatch.submit(inputs, NEVER if deadline is None else deadline)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._queue.drop(request)
            raise

    async def close(self, within: float) -> None:
        """Finish what is there, for so many seconds at most, then end the workers."""
        until = time.monotonic() + within
        while not self.idle and time.monotonic() < until and not self._crew.hopeless:
            await asyncio.sleep(0.01)
        self._closed = True
        ended = UnavailableError("the server is shutting down")
        self._queue.refuse_all(ended)
        for worker in self._crew.workers:
            for batch in worker.batches:
                refuse(batch, ended)
        await self._crew.close()

    def kill(self) -> None:
        """End the workers without waiting for anything."""
        self._crew.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down")
        if self._crew.hopeless:
            raise UnavailableError(self.reason, 5.0)

    def _received(self, worker: Worker, message: Message) -> None:
        began, worker.since = worker.since, time.monotonic()
        self._dispatch.answer(worker, message, worker.since - began)

    def _came(self) -> None:
        self._dispatch.dispatch()

    def _worker_lost(self, worker: Worker, why: str) -> None:
        """Only what it was computing is lost; what it had not begun with goes to others."""
        lost = UnavailableError(f"the worker that computed this died: {why}")
        self._dispatch.lose(worker, lost)
        if self._crew.hopeless:
            self._queue.refuse_all(UnavailableError(self.reason, 5.0))
        self._dispatch.dispatch()

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        """Look after deadlines and workers that hang, as long as there is anything to answer."""
        now = time.monotonic()
        self._queue.expire(now)
        longest = self._config.hang_seconds
        for worker in self._crew.ready:
            if worker.busy and now - worker.since > longest:
                worker.kill(f"it computed for more than {longest:g} s")
        self._ticking = False
        if not self.idle:
            self._tick_soon()
