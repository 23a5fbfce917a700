"""The model that is served, or why there is none: loaded when its export appears."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from inference.config import InferenceConfig
from inference.metrics import Metrics
from inference.model import Model, load_model
from training.manifest import ExportError
from training.report import emit

T = TypeVar("T")


class Service:
    """State of one server. `reason` says why it is not ready, and is empty when it is."""

    def __init__(self, config: InferenceConfig, device: torch.device) -> None:
        self.config = config
        self.metrics = Metrics()
        self.model: Model | None = None
        self.reason = "the model is not loaded yet"
        self.draining = False
        self._device = device
        # One thread of its own computes: the event loop stays free to answer probes.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return not self.reason

    async def compute(self, action: Callable[[], T]) -> T:
        """Do something slow on the model's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, action)

    async def load(self) -> None:
        """Wait for the export and load it; an export that is not as it should be is not served."""
        folder = Path(self.config.model_path)
        while self.model is None:
            try:
                self.model = await self.compute(lambda: load_model(folder, self._device))
            except ExportError as error:
                self._wait(str(error))
                await asyncio.sleep(self.config.poll_seconds)
            except Exception as error:
                self._wait(f"{folder} cannot be loaded: {type(error).__name__}: {error}")
                await asyncio.sleep(self.config.poll_seconds)
        manifest = self.model.manifest
        self.metrics.loaded(self.config.model_name, manifest)
        if not self.draining:
            self._set_reason("")
        emit(
            "loaded", model=self.config.model_name, run=manifest.run, sha256=manifest.weights.sha256
        )

    def drain(self) -> None:
        """Be unready from now on, though what arrives is still answered."""
        self.draining = True
        self._set_reason("the server is shutting down")
        emit("draining", model=self.config.model_name)

    def _wait(self, reason: str) -> None:
        if reason != self.reason:
            emit("waiting", model=self.config.model_name, reason=reason)
        self._set_reason(reason)

    def _set_reason(self, reason: str) -> None:
        self.reason = reason
        self.metrics.ready.set(self.ready)
