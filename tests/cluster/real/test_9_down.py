"""Removal of the cluster with real nodes, after all its other tests (tests/conftest.py)."""

from pathlib import Path

from tests.cluster.host_state import HostState
from tests.cluster.platform import Platform


def test_down_leaves_nothing_on_the_host_but_keeps_checkpoints(
    real: Platform, untouched: HostState, checkpoints: Path
) -> None:
    if not (real.state / "real" / "cluster.json").exists():
        real.make("up")
    exported = sorted(checkpoints.glob("*/export/manifest.json"))
    assert exported
    real.make("down")
    assert HostState.now().added_since(untouched) == {}
    assert sorted(checkpoints.glob("*/export/manifest.json")) == exported


def test_purge_removes_the_checkpoints(real: Platform, checkpoints: Path) -> None:
    real.make("down", "PURGE=1")
    assert not checkpoints.exists()
