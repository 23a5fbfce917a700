"""Life cycle of one server process: start, reload at SIGHUP, graceful shutdown at SIGTERM."""

import asyncio
import contextlib
import gc
import os
import signal
from typing import Final

import uvloop

from inference.allocator import return_large_blocks
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import ReloadError
from inference.http import pages
from inference.http.listener import AdminListener, Certificate, Listener, allow_connections
from inference.metrics import Metrics
from inference.service import Service
from workload.report import emit

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_GC_THRESHOLDS: Final = (10_000, 20, 100)
"""Collect reference cycles rarely: a request leaves none."""


def run(config: InferenceConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raise ConfigurationError if it cannot listen."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Server(config).serve())


class Server:
    """The engine and its HTTP listener."""

    def __init__(self, config: InferenceConfig) -> None:
        self._config = config
        self._stopping = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until the first signal, then finish the requests in flight.

        A second signal exits at once. Raise ConfigurationError if the server cannot listen.
        """
        config = self._config
        return_large_blocks()
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        metrics = Metrics()
        engine = ModelEngine(config, metrics)
        service = Service(config, engine, metrics)
        loop.add_signal_handler(signal.SIGHUP, self._reload, service)
        certificate = Certificate(config) if config.tls_certificate else None
        connections = allow_connections(config.max_connections)
        http = Listener(service, pages.PATHS, "INFERENCE_PORT", config.port, connections)
        metrics.limits = http.limits
        admin = AdminListener(service, pages.ADMIN_PATHS)
        await engine.start()
        try:
            await admin.start(certificate)
            http.limits.start(service.watch, *([certificate.refresh] if certificate else []))
            await http.start(certificate)
            _tune_garbage_collector()
            emit(
                "listening",
                model=config.model_name,
                host=config.host,
                port=config.port,
                admin_port=config.admin_port,
                tls=bool(config.tls_certificate),
            )
            await self._stopping.wait()
            engine.drain()
            await asyncio.sleep(config.notice_seconds)
            if not await http.stop(config.drain_seconds):
                emit("cut", model=config.model_name, in_flight=service.metrics.in_flight)
        finally:
            await engine.close()
            admin.stop()
        if service.tracing is not None:
            await asyncio.to_thread(service.tracing.close)

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            os._exit(128 + number)
        self._stopping.set()

    def _reload(self, service: Service) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(_try_reload(service))


def _tune_garbage_collector() -> None:
    """Exclude imported modules from collections, which would delay requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _try_reload(service: Service) -> None:
    # The engine logs the reason.
    with contextlib.suppress(ReloadError):
        await service.reload()
