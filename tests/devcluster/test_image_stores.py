"""The nodes' image stores give way where the disk is nearly full."""

from pathlib import Path

import pytest

from devcluster import image_stores
from devcluster.image_stores import make_room
from devcluster.paths import Layout


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A machine without a cluster, whose nodes have images from earlier ones."""
    monkeypatch.setattr(image_stores, "running_elsewhere", lambda _: [])
    layout = Layout(tmp_path / "cache", tmp_path / "state")
    for name in ("gpu-node-0", "gpu-node-1"):
        store = layout.node_store(name) / "containerd"
        store.mkdir(parents=True)
        (store / "layer").write_text("a layer")
    return layout


def test_with_room_they_are_kept(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_stores, "ENOUGH", 1)
    assert make_room(layout) == ""
    assert layout.node_stores.exists()


def test_without_room_they_are_removed_and_it_is_said(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "ENOUGH", 1 << 60)
    assert "cached images are removed" in make_room(layout)
    assert not layout.node_stores.exists()
    assert make_room(layout) == ""  # there is nothing more to remove


def test_another_cluster_keeps_what_it_uses(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "ENOUGH", 1 << 60)
    monkeypatch.setattr(image_stores, "running_elsewhere", lambda _: [Path("/elsewhere")])
    assert make_room(layout) == ""
    assert layout.node_stores.exists()
