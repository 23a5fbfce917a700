"""Lifecycle of the served model, from waiting for the export to the shutdown of its workers."""

import asyncio
import atexit
import contextlib
import math
import os
import stat
import tempfile
from pathlib import Path

from inference.config import InferenceConfig
from inference.engine.interface import Observer, Served
from inference.engine.pool import Pool
from workload.configuration import ConfigurationError
from workload.manifest import ExportError, read_manifest
from workload.report import emit


class ModelEngine:
    """Engine that serves the export in `config.model_path`, in one event loop.

    Create it inside the running event loop, `start` it, and `close` it at the end.
    """

    def __init__(self, config: InferenceConfig, observer: Observer | None = None) -> None:
        self.config = config
        self.pool: Pool | None = None
        """Queue and workers of the loaded version; None before the first model is loaded."""
        self.draining = False
        """True once the shutdown has begun: the server is unready, but still answers requests."""
        self.reload_failures = 0
        """Number of failed calls to `reload`."""
        self._observer = observer or Observer()
        self._directory = Path(config.model_path)
        self._compile_cache = compile_cache()
        self._reason = "the model is not loaded yet"
        self._reloading = asyncio.Lock()
        self._next_reload: asyncio.Task[Served] | None = None
        """The reload that waits for the current one."""
        self._watching: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._pools: set[Pool] = set()
        # This handler runs before multiprocessing's handler, which would wait for running workers.
        atexit.register(self._kill)

    @property
    def served(self) -> Served | None:
        """The loaded model; None before the first model is loaded."""
        return self.pool.served if self.pool else None

    @property
    def reason(self) -> str:
        """Reason why the server is unready; empty if it is ready."""
        if self.draining:
            return "the server is shutting down"
        return self.pool.reason if self.pool else self._reason

    @property
    def queued(self) -> int:
        """Number of queued samples."""
        return self.pool.queued if self.pool else 0

    async def start(self) -> None:
        """Start watching for the export in the background, and load it when it appears."""
        self._watching = asyncio.create_task(self._watch())

    async def reload(self) -> Served:
        """Load the current export while the old model is still served, then switch.

        Return the old model if nothing has changed. If the new model cannot be served, keep the old
        model and raise ExportError. Calls made during a reload share the next reload.
        """
        if self._next_reload is None:
            self._next_reload = asyncio.create_task(self._reload())
        return await asyncio.shield(self._next_reload)

    async def _reload(self) -> Served:
        async with self._reloading:
            # The export may change from now on, so later calls need another reload.
            self._next_reload = None
            try:
                return await self._load()
            except ExportError as error:
                self.reload_failures += 1
                emit("reload_failed", model=self.config.model_name, reason=str(error))
                raise

    def drain(self) -> None:
        """Become unready, but continue to answer requests."""
        if not self.draining:
            self.draining = True
            emit("draining", model=self.config.model_name)

    async def close(self, seconds: float | None = None) -> None:
        """Answer pending requests for at most `seconds`, then stop every worker.

        The default is `drain_seconds`.
        """
        seconds = self.config.drain_seconds if seconds is None else seconds
        self.drain()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await asyncio.gather(*(pool.close(seconds) for pool in self._pools))
        if self._retiring:
            await asyncio.wait(self._retiring)
        atexit.unregister(self._kill)

    async def _watch(self) -> None:
        """Load the export when it appears.

        If dead workers cannot be replaced, also load an export that has changed.
        """
        while True:
            if self.pool is None or self.pool.replacement_error:
                async with self._reloading:
                    try:
                        await self._load()
                    except ExportError as error:
                        if str(error) != self._reason:
                            self._reason = str(error)
                            emit("waiting", model=self.config.model_name, reason=self._reason)
            await asyncio.sleep(self.config.poll_seconds)

    async def _load(self) -> Served:
        try:
            manifest = await asyncio.to_thread(read_manifest, self._directory)
        except RuntimeError as error:
            # There are too many threads. A later attempt may succeed.
            raise ExportError(f"the manifest cannot be read: {error!r}") from error
        pinned, found = self.config.model_sha256, manifest.weights.sha256
        if pinned and pinned != found:
            raise ExportError(
                f"the weights in {self._directory} have sha256 {found[:12]}…, but only "
                f"{pinned[:12]}… may be served here"
            )
        old = self.pool
        if old is not None and old.served.manifest == manifest:
            return old.served
        pool = Pool(self.config, manifest, self._compile_cache, self._observer)
        self._pools.add(pool)
        try:
            served = await pool.start()
        except BaseException:
            self._pools.discard(pool)
            raise
        self.pool = pool
        emit(
            "loaded",
            model=served.name,
            run=manifest.run,
            sha256=manifest.weights.sha256,
            backend=served.backend,
        )
        if old is not None:
            task = asyncio.create_task(self._retire(old))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return served

    async def _retire(self, pool: Pool) -> None:
        """Stop the old workers once they have answered their requests."""
        # Wait without a timeout, because a client's deadline may be later than `request_seconds`
        # plus `drain_seconds`. `hang_seconds` still limits each batch.
        await pool.close(math.inf)
        self._pools.discard(pool)
        sha256 = pool.served.manifest.weights.sha256
        if self.served is not None and self.served.manifest.weights.sha256 != sha256:
            remove_compiled(self._compile_cache, sha256)

    def _kill(self) -> None:
        for pool in self._pools:
            pool.kill()


def compile_cache() -> Path:
    """Return a temporary directory for compiled models. Only this user can access the directory.

    This is necessary because compiled models are executed as code. Normally, the directory is the
    same at every start, so that a restarted container does not compile again. Raise
    ConfigurationError if there is no writable temporary directory.
    """
    try:
        directory = Path(tempfile.gettempdir()) / f"inference-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if ours and not stat.S_IMODE(found.st_mode) & 0o077:
            return directory
        return Path(tempfile.mkdtemp(prefix="inference-"))
    except OSError as error:
        raise ConfigurationError(
            f"there is no usable temporary directory ({error}): mount a volume at /tmp, or set "
            "TMPDIR to a writable directory"
        ) from None


def remove_compiled(directory: Path, sha256: str) -> None:
    """Remove the compiled models with these weights from `directory`."""
    for path in directory.glob(f"{sha256}*"):
        path.unlink(missing_ok=True)
