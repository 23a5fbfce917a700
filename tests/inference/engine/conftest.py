import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.observer import Observer
from inference.engine.patience import USUAL, Limits
from tests.inference.engine.exports import Serve, until, write_probe


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export for the handler `Probe`. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("probe") / "export"
    write_probe(folder)
    return folder


@pytest.fixture
def own(probe: Path, tmp_path: Path) -> Path:
    """The probe's export, to change it."""
    return shutil.copytree(probe, tmp_path / "export")


@pytest.fixture
def serve() -> Serve:
    """Serves an export, with the probe's handler if nothing else is said, and ends it."""

    @contextlib.asynccontextmanager
    async def served(
        folder: Path,
        observer: Observer | None = None,
        limits: Limits = USUAL,
        ready: bool = True,
        **settings: Any,
    ) -> AsyncIterator[ModelEngine]:
        given: dict[str, Any] = {"device": "cpu", "threads": 1, "poll_seconds": 0.05}
        given["handler"] = "tests.inference.engine.probes:Probe"
        config = InferenceConfig.model_validate(
            {"model_name": "probe", "model_path": str(folder), **given, **settings}
        )
        engine = ModelEngine(config, observer, limits)
        await engine.start()
        try:
            if ready:
                await until(lambda: engine.served or "yet" not in engine.reason)
                assert engine.served, engine.reason
            yield engine
        finally:
            await engine.close()

    return served
