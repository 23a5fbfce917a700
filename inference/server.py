"""Lifecycle of one server process: start, reload on SIGHUP, graceful shutdown on SIGTERM."""

import asyncio
import contextlib
import gc
import os
import signal
import time
from typing import Final

import uvloop

from inference.allocator import return_large_blocks
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.http import endpoints
from inference.http.listener import AdminListener, Certificate, Listener, allow_connections
from inference.metrics import Metrics
from inference.service import Service
from workload.manifest import ExportError
from workload.report import emit

MIN_EXPORT_SECONDS: Final = 0.5
"""Minimum time (s) for exporting the last spans, even if `drain_seconds` has been used up."""

_GC_THRESHOLDS: Final = (10_000, 20, 100)
"""Thresholds that make garbage collections rare: requests leave no reference cycles to collect."""


def run(config: InferenceConfig) -> None:
    """Serve until SIGTERM or SIGINT arrives, then finish the requests in flight.

    On a second signal, exit at once. Raise ConfigurationError if the server cannot listen, or if
    its API keys, its certificate, its tracing variables or its temporary directory cannot be used.
    """
    # Do not close the runner, because closing waits for all threads. The thread that reads the
    # manifest may be blocked by a volume.
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(config))


async def _serve(config: InferenceConfig) -> None:
    return_large_blocks()
    stopping = _stop_at_signals()
    metrics = Metrics()
    engine = ModelEngine(config, metrics)
    left = float(config.drain_seconds)
    service = Service(config, engine, metrics)
    _reload_at_signals(engine)
    certificate = Certificate(config) if config.tls_certificate else None
    connections = allow_connections(config.max_connections)
    http = Listener(service, endpoints.PATHS, "INFERENCE_PORT", config.port, connections)
    metrics.limits = http.limits
    admin = AdminListener(service, endpoints.ADMIN_PATHS)
    await engine.start()
    try:
        await admin.start(certificate)
        callbacks = [certificate.refresh] if certificate else []
        await http.start(certificate, service.watch, *callbacks)
        # Exclude imported modules from garbage collection, whose pauses would delay requests.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        emit(
            "listening",
            model=config.model_name,
            host=config.host,
            port=config.port,
            admin_port=config.admin_port,
            tls=bool(config.tls_certificate),
        )
        await stopping.wait()
        engine.drain()
        await asyncio.sleep(config.notice_seconds)
        deadline = time.monotonic() + left
        if not await http.drain(left):
            emit("drain_timeout", model=config.model_name, in_flight=metrics.in_flight)
        left = deadline - time.monotonic()
    finally:
        deadline = time.monotonic() + left
        # This answers the remaining requests with 503, so close their connections later.
        await engine.close(left)
        http.stop()
        admin.stop()
    if service.tracing is not None:
        service.tracing.close(max(MIN_EXPORT_SECONDS, deadline - time.monotonic()))


def _stop_at_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return stopping


def _reload_at_signals(engine: ModelEngine) -> None:
    reloading: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        # The engine logs the reason.
        with contextlib.suppress(ExportError):
            await engine.reload()

    def handle() -> None:
        reloading.add(task := asyncio.create_task(reload()))
        task.add_done_callback(reloading.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handle)
