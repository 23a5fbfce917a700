"""The nodes' image stores give way where the disk is nearly full, or holds many old layers."""

from dataclasses import replace
from pathlib import Path

import pytest

from devcluster import image_stores
from devcluster.image_stores import GENERATIONS, make_room
from devcluster.images.base_image import PYTORCH
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
    assert not layers(layout)


def layers(layout: Layout) -> list[Path]:
    return list(layout.node_stores.rglob("layer"))


def test_layers_of_a_few_base_images_are_kept_and_those_of_more_removed_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "ENOUGH", 1)

    def start(version: int) -> str:
        other = replace(PYTORCH, reference=f"pytorch-cpu-{version}:1")
        monkeypatch.setattr(image_stores, "PYTORCH", other)
        return make_room(layout)

    assert [start(version) for version in range(GENERATIONS)] == [""] * GENERATIONS
    assert start(0) == ""
    assert layers(layout)
    assert "base images" in start(GENERATIONS)
    assert not layers(layout)
    assert start(GENERATIONS) == start(0) == ""


def test_another_cluster_keeps_what_it_uses(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_stores, "ENOUGH", 1 << 60)
    monkeypatch.setattr(image_stores, "running_elsewhere", lambda _: [Path("/elsewhere")])
    assert make_room(layout) == ""
    assert layout.node_stores.exists()
