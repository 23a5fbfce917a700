import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.config import InferenceConfig
from inference.engine.engine import ModelEngine
from inference.engine.interface import Observer
from tests.inference.engine.exports import Serve, until, write_probe


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export for the handler `Probe`. Read-only: use `probe_copy` to change the export."""
    folder = tmp_path_factory.mktemp("probe") / "export"
    write_probe(folder)
    return folder


@pytest.fixture
def probe_copy(probe: Path, tmp_path: Path) -> Path:
    """A copy of the probe's export, which the test may change."""
    return shutil.copytree(probe, tmp_path / "export")


@pytest.fixture
def serve() -> Serve:
    """A function that serves an export, by default with the handler `Probe`."""

    @contextlib.asynccontextmanager
    async def served(
        folder: Path,
        observer: Observer | None = None,
        ready: bool = True,
        **settings: Any,
    ) -> AsyncIterator[ModelEngine]:
        defaults: dict[str, Any] = {"device": "cpu", "threads": 1, "poll_seconds": 0.05}
        defaults["handler"] = "tests.inference.engine.probes:Probe"
        config = InferenceConfig.model_validate(
            {"model_name": "probe", "model_path": str(folder), **defaults, **settings}
        )
        engine = ModelEngine(config, observer)
        await engine.start()
        try:
            if ready:
                await until(lambda: engine.served or "yet" not in engine.reason)
                assert engine.served, engine.reason
            yield engine
        finally:
            await engine.close()

    return served
