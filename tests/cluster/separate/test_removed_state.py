"""A cluster whose state directory was removed while the cluster was running."""

from pathlib import Path

from devcluster import launcher
from devcluster.spec import Kind
from tests.cluster.platform import empty_cluster


def test_next_down_stops_a_cluster_whose_state_directory_was_removed(tmp_path: Path) -> None:
    with empty_cluster(tmp_path) as cluster:
        # Renaming is atomic; the cluster's processes are still writing to the directory.
        cluster.state.rename(tmp_path / "removed")
        cluster.make("down")
        assert cluster.state not in launcher.running_elsewhere(Kind.SIMULATED)
