"""State shared by all requests of one server."""

import asyncio
import os
import time
from itertools import count
from typing import TYPE_CHECKING, Final

from inference.access import Access
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import ReloadError, Served, UnavailableError
from inference.engine.pool import UNAVAILABLE_RETRY_SECONDS, Pool
from inference.http.messages import NotServedError, Request
from inference.metrics import Metrics
from workload.report import emit

if TYPE_CHECKING:
    from inference.tracing import Tracing

_LOGGED_FROM: Final = {"none": 1000, "failures": 500, "all": 0}
"""Lowest status code that is logged, by `request_log`."""


class Service:
    """The engine with its access control, metrics, tracing and request log."""

    def __init__(self, config: InferenceConfig, engine: ModelEngine, metrics: Metrics) -> None:
        """Raise ConfigurationError if the API keys cannot be read."""
        self.config = config
        self.engine = engine
        self.access = Access(config.api_keys_file)
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        """The main event loop, to which the engine belongs."""
        self.last_turn = time.monotonic()
        """Time at which the main event loop last ran."""
        metrics.engine = engine
        self.tracing = _tracing(config)
        self._logged_from = _LOGGED_FROM[config.request_log]
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)

    def pool(self, model: str | None = None, version: str | None = None) -> Pool:
        """Return the loaded model.

        Raise NotServedError if the request names another one, UnavailableError if none is loaded.
        """
        self.check_name(model)
        pool = self.engine.pool
        if pool is None:
            raise UnavailableError(self.engine.reason, UNAVAILABLE_RETRY_SECONDS)
        if version and version != pool.served.version:
            raise NotServedError(
                f"version {version[:80]!r} is not served here, only {pool.served.version!r}"
            )
        return pool

    def check_name(self, model: str | None) -> None:
        """Raise NotServedError if a request names another model."""
        name = self.config.model_name
        if model is not None and model != name:
            raise NotServedError(f"model {model[:80]!r} is not served here, only {name!r}")

    async def reload(self) -> Served:
        """Load the current export. Raise ReloadError; the old model is then kept."""
        try:
            return await self.engine.reload()
        except ReloadError:
            self.metrics.reload_failures += 1
            raise

    def request_id(self, sent: str | None) -> str:
        """Return the client's request ID, or a new unique one."""
        if sent and len(sent) <= 128:
            return sent
        return f"{self._prefix}-{next(self._numbers):x}"

    def watch(self) -> None:
        """Record that the main event loop runs, and read changed API keys."""
        self.last_turn = time.monotonic()
        self.access.refresh()

    def finished(self, protocol: str, request: Request) -> None:
        """Count and log a finished request."""
        seconds = time.monotonic() - request.started
        self.metrics.finished(protocol, request.code, seconds, request.key)
        if request.code >= self._logged_from:
            emit(
                "request",
                id=request.request_id,
                protocol=protocol,
                code=request.code,
                seconds=round(seconds, 6),
                method=request.method,
                path=request.path,
                **({"key": request.key} if request.key else {}),
            )


def _tracing(config: InferenceConfig) -> "Tracing | None":
    if not config.tracing_endpoint:
        return None
    # Imported only if enabled: it takes memory and time.
    from inference.tracing import Tracing

    return Tracing.over_http(config.tracing_endpoint, config.tracing_ratio, config.model_name)
