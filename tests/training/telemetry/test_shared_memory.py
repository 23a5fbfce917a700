"""Use of the shared memory, as Prometheus scrapes it."""

import tempfile
from pathlib import Path

from training.gang.preflight import SHARED_MEMORY
from training.telemetry.metrics import SharedMemory


def told(folder: Path) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in SharedMemory(folder).collect()}


def test_used_shared_memory_is_measured() -> None:
    before = told(SHARED_MEMORY)
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as file:
        file.write(b"x" * 2**20)
        file.flush()
        after = told(SHARED_MEMORY)
    assert after["training_shm_size_bytes"] == before["training_shm_size_bytes"]
    assert 0 <= after["training_shm_used_bytes"] <= after["training_shm_size_bytes"]
    assert after["training_shm_used_bytes"] > 0


def test_missing_shared_memory_has_no_metrics(tmp_path: Path) -> None:
    assert told(tmp_path / "none") == {}
