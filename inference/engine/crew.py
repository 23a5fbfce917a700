"""The workers of one version of a model: started, watched, replaced when they die, and ended."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from inference.engine.channel import Message
from inference.engine.job import Job
from inference.engine.observer import Observer
from inference.engine.patience import Limits, Patience
from inference.engine.process import Worker
from workload.manifest import ExportError
from workload.report import emit

TOLD: Final = "it was told to"
PATIENCE_AT_THE_END: Final = 2.0
"""Seconds until a worker that does not end by itself is killed."""


class Crew:
    """Keeps as many workers as there should be.

    `received` gets what a worker tells, `came` is called when one more is ready, and `lost` with a
    worker that died and why.
    """

    def __init__(
        self,
        job: Job,
        per_device: int,
        observer: Observer,
        limits: Limits,
        *,
        received: Callable[[Worker, Message], None],
        came: Callable[[], None],
        lost: Callable[[Worker, str], None],
    ) -> None:
        self.workers: list[Worker] = []
        """All, also those that still load."""
        self.ready: list[Worker] = []
        """Those that can compute."""
        self.broken = ""
        """Why a worker could not be replaced."""
        self._job, self._per_device, self._observer = job, per_device, observer
        self._received, self._came, self._lost = received, came, lost
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(limits)
        self._loading: dict[Worker, asyncio.Future[Message]] = {}
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def reason(self) -> str:
        """Why requests should not come; empty when they should."""
        if self.broken and not self.ready:
            return self.broken
        return self._patience.reason(time.monotonic())

    @property
    def hopeless(self) -> bool:
        """Whether there is no worker and will be none soon."""
        return not self.ready and bool(self.reason or not self._replacing)

    async def start(self) -> Message:
        """Start all; gives what the first one told when it was ready. Raises ExportError."""
        # The first one compiles what is to be compiled, and sees how many devices there are.
        told = await self._start(self._job)
        jobs = [
            replace(self._job, index=index)
            for index in range(int(told["devices"]))
            for _ in range(self._per_device)
        ]
        await asyncio.gather(*map(self._start, jobs[1:]))
        return told

    async def close(self) -> None:
        """End all, those that still compute or load as well."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        for worker in [*self.workers]:
            if worker.busy or not worker.ready:
                worker.kill(TOLD)
            worker.close()
        until = time.monotonic() + PATIENCE_AT_THE_END
        while self.workers:
            await asyncio.sleep(0.005)
            if time.monotonic() > until:
                self.kill()

    def kill(self) -> None:
        """End all without waiting for anything."""
        for worker in self.workers:
            worker.kill(TOLD)

    async def _start(self, job: Job) -> Message:
        worker = Worker(job, self._told, self._ended)
        loading: asyncio.Future[Message] = self._loop.create_future()
        self._loading[worker] = loading
        self.workers.append(worker)
        try:
            await worker.start()
        except BaseException:
            self.workers.remove(worker)
            raise
        message = await loading
        if message["is"] != "ready":
            raise ExportError(message["message"])
        self._came()
        return message

    def _told(self, worker: Worker, message: Message) -> None:
        if worker not in self._loading:
            self._received(worker, message)
            return
        worker.ready = message["is"] == "ready"
        worker.failed = not worker.ready
        if worker.ready:
            self.ready.append(worker)
        loading = self._loading.pop(worker)
        if not loading.done():
            loading.set_result(message)

    def _ended(self, worker: Worker, why: str) -> None:
        self.workers.remove(worker)
        if worker in self.ready:
            self.ready.remove(worker)
        loading = self._loading.pop(worker, None)
        if loading is not None:
            if not loading.done():
                message = f"a worker died while it loaded the model: {why}"
                loading.set_result({"is": "failed", "message": message})
            return
        if self._closed or worker.failed:
            return
        self._observer.worker_ended(why)
        delay = self._patience.died(time.monotonic(), why)
        emit("worker_ended", reason=why, again_in=delay)
        self._replace_later(worker.job, delay)
        self._lost(worker, why)

    def _replace_later(self, job: Job, delay: float) -> None:
        task = self._loop.create_task(self._replace(job, delay))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, job: Job, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self._start(job)
        except ExportError as error:
            if self._closed:
                return
            self.broken = str(error)
            delay = max(1.0, self._patience.died(time.monotonic(), self.broken))
            emit("worker_failed", reason=self.broken, again_in=delay)
            self._replace_later(job, delay)
        else:
            self.broken = ""
