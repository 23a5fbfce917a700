"""Supervision of the worker processes of one model version: start, replace with back-off, stop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from inference.engine.interface import Observer
from inference.engine.process import Message, Worker, WorkerSpec
from workload.manifest import ExportError
from workload.report import emit

STOPPED: Final = "the server stopped it"
STOP_SECONDS: Final = 2.0
"""Time for a worker to exit before it is killed."""


@dataclass(frozen=True)
class RestartPolicy:
    """Policy for the replacement of dead workers. Times are in seconds."""

    max_deaths: int = 3
    """Consecutive deaths, without a computed batch in between, that make the server unready."""
    reset_after: float = 60.0
    """Time without a death after which earlier ones no longer count."""
    first_delay: float = 1.0
    """Delay before a replacement once unready; doubles with each further death."""
    max_delay: float = 30.0


DEFAULT_POLICY: Final = RestartPolicy()


class Backoff:
    """Counts consecutive deaths of workers."""

    def __init__(self, policy: RestartPolicy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._deaths = 0
        self._excused = False
        self._last = self._until = 0.0
        self._last_reason = ""

    def died(self, now: float, reason: str, *, retried: bool = False) -> float:
        """Count a death and return the seconds to wait before the worker is replaced.

        A request that kills a worker is `retried` and kills another one: that counts once. If other
        requests of its batch kill workers as well, these count: no request is at fault.
        """
        self._reset_if_calm(now)
        if retried and not self._excused:
            self._excused = True
            return 0.0
        self._excused = self._excused and retried
        self._deaths += 1
        self._last, self._last_reason = now, reason
        over = self._deaths - self._policy.max_deaths
        delay = self._policy.first_delay * 2.0 ** min(over, 30) if over >= 0 else 0.0
        delay = min(self._policy.max_delay, delay)
        self._until = now + delay
        return delay

    def succeeded(self) -> None:
        """Forget earlier deaths: the workers compute, so single requests caused them."""
        self._deaths = 0

    def reason(self, now: float) -> str:
        """Return why the server is unready; empty if it is ready."""
        self._reset_if_calm(now)
        # The server is ready again with the replacement; further deaths have longer delays.
        if self._deaths < self._policy.max_deaths or now > self._until:
            return ""
        return f"workers died {self._deaths} times in a row: {self._last_reason}"

    def _reset_if_calm(self, now: float) -> None:
        if now - self._last > self._policy.reset_after:
            self._deaths = 0


class Supervisor:
    """Keeps the configured number of workers running.

    `on_result` receives the results of workers. `on_ready` is called when another worker is ready,
    `on_lost` with a worker that died and the reason.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        per_device: int,
        observer: Observer,
        policy: RestartPolicy,
        *,
        on_result: Callable[[Worker, Message], None],
        on_ready: Callable[[], None],
        on_lost: Callable[[Worker, str], None],
    ) -> None:
        self.workers: list[Worker] = []
        """All workers, including those that still load the model."""
        self.broken = ""
        """Reason why a worker could not be replaced; empty if all could."""
        self._spec, self._per_device, self._observer = spec, per_device, observer
        self._on_result, self._on_ready, self._on_lost = on_result, on_ready, on_lost
        self._backoff = Backoff(policy)
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def reason(self) -> str:
        """Reason why requests should not be sent; empty if they should."""
        if self.broken and not any(worker.ready for worker in self.workers):
            return self.broken
        return self._backoff.reason(time.monotonic())

    def computed(self) -> None:
        """Record that a worker has computed a batch."""
        self._backoff.succeeded()

    @property
    def replacing(self) -> bool:
        """True if a replacement is expected soon."""
        return bool(self._replacing) and not self.reason

    async def start(self) -> Message:
        """Start all workers and return the first one's `ready` message. Raises ExportError."""
        # The first one compiles the model if necessary, and counts the devices.
        ready = await self._start(self._spec)
        specs = [
            replace(self._spec, device_index=index)
            for index in range(int(ready["devices"]))
            for _ in range(self._per_device)
        ]
        await asyncio.gather(*map(self._start, specs[1:]))
        return ready

    async def close(self) -> None:
        """Stop all workers, including those that still compute or load."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        for worker in [*self.workers]:
            if worker.batches or not worker.ready:
                worker.kill(STOPPED)
            worker.close()
        until = time.monotonic() + STOP_SECONDS
        while self.workers:
            await asyncio.sleep(0.005)
            if time.monotonic() > until:
                self.kill()

    def kill(self) -> None:
        """Kill all workers without waiting."""
        for worker in self.workers:
            worker.kill(STOPPED)

    async def _start(self, spec: WorkerSpec) -> Message:
        worker = Worker(spec, self._on_result, self._exited)
        self.workers.append(worker)
        try:
            await worker.start()
        except BaseException:
            self.workers.remove(worker)
            raise
        message = await worker.loaded
        if message["type"] != "ready":
            raise ExportError(message["message"])
        self._on_ready()
        return message

    def _exited(self, worker: Worker, reason: str) -> None:
        self.workers.remove(worker)
        if self._closed or not worker.ready:
            return
        self._observer.worker_ended(reason)
        computing = worker.batches[0].pieces if worker.batches else []
        retried = bool(computing) and all(piece.request.retried for piece in computing)
        delay = self._backoff.died(time.monotonic(), reason, retried=retried)
        emit("worker_ended", reason=reason, again_in=delay)
        self._replace_later(worker.spec, delay)
        self._on_lost(worker, reason)

    def _replace_later(self, spec: WorkerSpec, delay: float) -> None:
        task = asyncio.create_task(self._replace(spec, delay))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, spec: WorkerSpec, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self._start(spec)
        except ExportError as error:
            if self._closed:
                return
            self.broken = str(error)
            delay = max(1.0, self._backoff.died(time.monotonic(), self.broken))
            emit("worker_failed", reason=self.broken, again_in=delay)
            self._replace_later(spec, delay)
        else:
            self.broken = ""
