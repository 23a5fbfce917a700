"""The engine: one model, served by its workers, looked for, replaced and ended."""

import asyncio
import atexit
import os
from collections.abc import Sequence
from pathlib import Path

from inference.config import InferenceConfig
from inference.engine.channel import Message
from inference.engine.interface import (
    Answer,
    ReloadError,
    Served,
    Tensors,
    TensorSpec,
    UnavailableError,
)
from inference.engine.job import Job
from inference.engine.observer import Observer
from inference.engine.patience import USUAL, Limits
from inference.engine.pool import Pool
from inference.engine.scratch import forget, scratch_folder
from workload.manifest import ExportError, Manifest, read_manifest
from workload.report import emit


class ModelEngine:
    """An `inference.engine.interface.Engine` for the export in `config.model_path`.

    Make it inside of a running event loop, then `start` it; at the end `close` it.
    """

    def __init__(
        self, config: InferenceConfig, observer: Observer | None = None, limits: Limits = USUAL
    ) -> None:
        self.config = config
        self._observer = observer or Observer()
        self._limits = limits
        self._folder = Path(config.model_path)
        self._scratch = scratch_folder()
        self._pool: Pool | None = None
        self._reason = "the model is not loaded yet"
        self._draining = False
        self._reloading = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._pools: set[Pool] = set()
        # Before multiprocessing's own, which would wait for processes that nobody has ended.
        atexit.register(self._kill)

    @property
    def served(self) -> Served | None:
        """None before the first model is loaded."""
        return self._pool.served if self._pool else None

    @property
    def reason(self) -> str:
        """Why requests should not come; empty when they should."""
        if self._draining:
            return "the server is shutting down"
        return self._pool.reason if self._pool else self._reason

    @property
    def draining(self) -> bool:
        """Whether the end has begun."""
        return self._draining

    @property
    def waiting(self) -> int:
        """Samples that no worker has yet: the depth of the queue."""
        return self._pool.waiting if self._pool else 0

    @property
    def most(self) -> int:
        """As the interface says."""
        return self._pool.most if self._pool else self.config.max_queue

    @property
    def expected_wait(self) -> float:
        """As the interface says."""
        return self._pool.expected_wait if self._pool else 0.0

    @property
    def busy(self) -> bool:
        """Whether anything waits or is being computed."""
        return any(not pool.idle for pool in self._pools)

    @property
    def pids(self) -> list[int]:
        """Of the processes that compute."""
        return [pid for pool in self._pools for pid in pool.pids]

    async def start(self) -> None:
        """Look for the export and load it, in the background."""
        self._watching = asyncio.create_task(self._watch())

    async def infer(self, inputs: Tensors, deadline: float | None = None) -> Answer:
        """As the interface says."""
        return await self._current().infer(inputs, deadline)

    async def reload(self) -> Served:
        """As the interface says."""
        async with self._reloading:
            try:
                return await self._load()
            except ExportError as error:
                emit("reload_failed", model=self.config.model_name, reason=str(error))
                raise ReloadError(str(error)) from None

    def drain(self) -> None:
        """Be unready from now on, though what arrives is still answered."""
        if not self._draining:
            self._draining = True
            emit("draining", model=self.config.model_name)

    async def close(self) -> None:
        """Answer what is there, for `drain_seconds` at most, and end every worker."""
        self.drain()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await asyncio.gather(*(pool.close(self.config.drain_seconds) for pool in self._pools))
        if self._retiring:
            await asyncio.wait(self._retiring)
        atexit.unregister(self._kill)

    def _current(self) -> Pool:
        if self._pool is None:
            raise UnavailableError(self.reason, 5.0)
        return self._pool

    async def _watch(self) -> None:
        """Load the export when it is there; later, what replaced it when it is needed."""
        while True:
            if self._pool is None or self._pool.broken:
                async with self._reloading:
                    try:
                        await self._load()
                    except ExportError as error:
                        self._wait(str(error))
            await asyncio.sleep(self.config.poll_seconds)

    async def _load(self) -> Served:
        manifest = await asyncio.to_thread(read_manifest, self._folder)
        self._check_pinned(manifest)
        old = self._pool
        if old is not None and old.served.manifest == manifest:
            return old.served
        pool = self._new_pool(manifest)
        self._pools.add(pool)
        try:
            served = await pool.start()
        except BaseException:
            self._pools.discard(pool)
            raise
        self._pool = pool
        self._observer.loaded(served)
        emit(
            "loaded",
            model=served.name,
            run=manifest.run,
            sha256=manifest.weights.sha256,
            backend=served.backend,
        )
        if old is not None:
            self._retire(old)
        return served

    def _check_pinned(self, manifest: Manifest) -> None:
        pinned, found = self.config.model_sha256, manifest.weights.sha256
        if pinned and pinned != found:
            raise ExportError(
                f"the weights in {self._folder} have sha256 {found[:12]}…, but only "
                f"{pinned[:12]}… may be served here"
            )

    def _retire(self, pool: Pool) -> None:
        """End the old workers when they have answered what they have."""
        longest = self.config.request_seconds + self.config.drain_seconds
        task = asyncio.create_task(pool.close(longest))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        task.add_done_callback(lambda _: self._retired(pool))

    def _retired(self, pool: Pool) -> None:
        self._pools.discard(pool)
        sha256 = pool.served.manifest.weights.sha256
        if self.served is not None and self.served.manifest.weights.sha256 != sha256:
            forget(self._scratch, sha256)

    def _new_pool(self, manifest: Manifest) -> Pool:
        config = self.config

        def describe(ready: Message) -> Served:
            return Served(
                name=config.model_name,
                manifest=manifest,
                backend=config.backend,
                inputs=_specs(ready["inputs"]),
                outputs=_specs(ready["outputs"]),
            )

        job = Job(
            folder=str(self._folder),
            manifest=manifest.model_dump_json(exclude_none=True),
            handler=config.handler,
            backend=config.backend,
            own=config.own_model,
            device=config.device,
            index=0,
            threads=config.threads or usual_threads(config.workers),
            largest_batch=config.max_batch,
            scratch=str(self._scratch),
        )
        return Pool(config, job, self._observer, describe, self._limits)

    def _wait(self, reason: str) -> None:
        if reason != self._reason:
            emit("waiting", model=self.config.model_name, reason=reason)
        self._reason = reason

    def _kill(self) -> None:
        for pool in self._pools:
            pool.kill()


def usual_threads(workers: int) -> int:
    """OMP_NUM_THREADS, or this worker's share of the cores that are ours."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told):
        return int(told)
    return max(1, len(os.sched_getaffinity(0)) // workers)


def _specs(told: Sequence[tuple[str, str, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, datatype, tuple(shape))  # type: ignore[arg-type]
        for name, datatype, shape in told
    )
