"""Locations of files, depending on the user's environment."""

from pathlib import Path

import pytest

from devcluster.paths import Layout, cache_root, state_root
from devcluster.spec import Kind


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("GPU_PLATFORM_CACHE", "GPU_PLATFORM_STATE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_files_are_in_the_users_cache_directory_by_default(tmp_path: Path) -> None:
    assert cache_root() == tmp_path / "home" / ".cache" / "gpu-platform"
    assert state_root() == cache_root() / "state"


def test_xdg_cache_home_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "gpu-platform"


def test_directories_can_be_set_with_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_CACHE", "~/cache")
    monkeypatch.setenv("GPU_PLATFORM_STATE", f"{tmp_path}/elsewhere/../state")
    assert cache_root() == tmp_path / "home" / "cache"
    assert state_root() == tmp_path / "state"


def test_real_and_simulated_clusters_share_only_the_cache() -> None:
    real, simulated = Layout.of(Kind.REAL), Layout.of(Kind.SIMULATED)
    assert real.cache == simulated.cache
    assert not real.state.is_relative_to(simulated.state)
    assert not simulated.state.is_relative_to(real.state)


def test_data_that_cannot_be_rebuilt_is_in_the_state_directory() -> None:
    layout = Layout.of(Kind.REAL)
    for path in (layout.volumes, layout.pulumi_backend, layout.control_plane, layout.record):
        assert path.is_relative_to(layout.state)
    for path in (layout.registry, layout.images, layout.node_store("gpu-node-0")):
        assert not path.is_relative_to(layout.state)
