"""Metrics of used shared memory."""

import tempfile
from pathlib import Path

import pytest
import torch

from training.gang.preflight import SHARED_MEMORY
from training.telemetry import metrics


def scraped(name: str) -> float | None:
    registry = metrics.Metrics(torch.device("cpu")).registry
    return registry.get_sample_value(f"training_shm_{name}_bytes")


def test_used_shared_memory_is_measured() -> None:
    initial_size = scraped("size")
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as file:
        file.write(b"x" * 2**20)
        file.flush()
        size, used = scraped("size"), scraped("used")
    assert size == initial_size
    assert size is not None
    assert used is not None
    assert 0 < used <= size


def test_missing_shared_memory_has_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SHARED_MEMORY", tmp_path / "none")
    assert scraped("size") is None
