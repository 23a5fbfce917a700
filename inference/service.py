"""State that all requests of one server share."""

import os
import time
from itertools import count
from typing import TYPE_CHECKING

from inference.access import Access
from inference.config import InferenceConfig
from inference.engine.interface import Engine, ReloadError, Served, UnavailableError
from inference.metrics import Metrics
from workload.report import emit

if TYPE_CHECKING:
    from inference.tracing import Tracing

NO_MODEL_RETRY = 5.0
"""Seconds after which a client may look again for a model that is not there yet."""


class NotServedError(Exception):
    """Another model or version than the one that is served. HTTP: 404."""


class Service:
    """The engine and what is counted, logged, traced and checked around it."""

    def __init__(self, config: InferenceConfig, engine: Engine, metrics: Metrics) -> None:
        """Raises ConfigurationError when the API keys cannot be read."""
        self.config = config
        self.engine = engine
        self.access = Access(config.api_keys_file)
        self.metrics = metrics
        metrics.engine = engine
        self.tracing = _tracing(config)
        self._logged_from = {"none": 1000, "failures": 500, "all": 0}[config.request_log]
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)

    def served(self, model: str | None = None, version: str | None = None) -> Served:
        """The model that answers. Raises NotServedError for others, UnavailableError for none."""
        if model != self.config.model_name:
            self.check_name(model)
        served = self.engine.served
        if served is None:
            raise UnavailableError(self.engine.reason, NO_MODEL_RETRY)
        if version and version != served.version:
            raise NotServedError(
                f"version {version[:80]!r} is not served here, only {served.version!r}"
            )
        return served

    def check_name(self, model: str | None) -> None:
        """Raises NotServedError when another model is meant."""
        name = self.config.model_name
        if model is not None and model != name:
            raise NotServedError(f"model {model[:80]!r} is not served here, only {name!r}")

    async def reload(self) -> Served:
        """Serve what the model's folder holds now. Raises ReloadError; the old one is kept then."""
        try:
            return await self.engine.reload()
        except ReloadError:
            self.metrics.reload_failures += 1
            raise

    def request_id(self, given: str | None) -> str:
        """What the client calls its request, or a name that no other request has."""
        if given and len(given) <= 128:
            return given
        return f"{self._prefix}-{next(self._numbers):x}"

    def finished(
        self,
        protocol: str,
        code: int,
        started: float,
        request: str,
        method: str,
        path: str,
    ) -> None:
        """Count and log a request that is over. `started` is a time of the monotonic clock."""
        seconds = time.monotonic() - started
        self.metrics.finished(protocol, code, seconds)
        if code >= self._logged_from:
            emit(
                "request",
                id=request,
                protocol=protocol,
                code=code,
                seconds=round(seconds, 6),
                method=method,
                path=path,
            )


def _tracing(config: InferenceConfig) -> "Tracing | None":
    """Imported only where it is on: it takes memory and time."""
    if not config.tracing_endpoint:
        return None
    from inference.tracing import Tracing

    return Tracing.over_http(config.tracing_endpoint, config.tracing_ratio, config.model_name)
