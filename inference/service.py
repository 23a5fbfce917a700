"""State shared by all requests of one server."""

import asyncio
import os
import time
from typing import TYPE_CHECKING

from inference.access import Access
from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import Served, UnavailableError
from inference.engine.pool import UNAVAILABLE_RETRY_SECONDS, Pool
from inference.http.messages import HttpError
from inference.metrics import Metrics
from workload.configuration import ConfigurationError

if TYPE_CHECKING:
    from inference.tracing import Tracing


class Service:
    """The engine with its access control, metrics and tracing."""

    tracing: "Tracing | None" = None

    def __init__(self, config: InferenceConfig, engine: ModelEngine, metrics: Metrics) -> None:
        """Raise ConfigurationError if the API keys cannot be read, or if tracing cannot start."""
        self.config = config
        self.engine = engine
        self.access = Access(config.api_keys_file) if config.api_keys_file else None
        """The API keys; None if requests do not need one."""
        self.metrics = metrics
        self.loads: set[asyncio.Future[Served]] = set()
        """Unfinished load requests, including those whose clients have disconnected."""
        self.loop = asyncio.get_running_loop()
        """The main event loop, to which the engine belongs."""
        self.last_turn = time.monotonic()
        """Time at which the main event loop last ran."""
        metrics.engine = engine
        if config.tracing_endpoint:
            try:
                # Imported only if enabled, because the import takes memory and time.
                from inference.tracing import Tracing

                endpoint, ratio = config.tracing_endpoint, config.tracing_ratio
                self.tracing = Tracing(endpoint, ratio, config.model_name)
            except ValueError as error:
                # OpenTelemetry does not always name the invalid variable. The values may be secret.
                names = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_")))
                raise ConfigurationError(
                    f"one of the variables {names} is invalid ({error}): correct or unset it"
                ) from None

    def pool(self, version: str | None = None) -> Pool:
        """Return the pool of the loaded model.

        Raise UnavailableError if no model is loaded, and HttpError 404 if `version` is given but
        differs from the model's version.
        """
        pool = self.engine.pool
        if pool is None:
            raise UnavailableError(self.engine.reason, UNAVAILABLE_RETRY_SECONDS)
        if version and version != pool.served.version:
            text = f"version {version!r} is not served here, only {pool.served.version!r}"
            raise HttpError(404, text)
        return pool

    def watch(self) -> None:
        """Record that the main event loop is running, and reload changed API keys."""
        self.last_turn = time.monotonic()
        if self.access is not None:
            self.access.refresh()
