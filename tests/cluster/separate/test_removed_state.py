"""A cluster whose state directory was removed while it ran."""

from pathlib import Path

from devcluster import launcher
from devcluster.spec import Kind
from tests.cluster.platform import empty_cluster


def test_a_cluster_whose_state_directory_was_removed_is_ended_by_the_next_down(
    tmp_path: Path,
) -> None:
    with empty_cluster(tmp_path) as cluster:
        cluster.state.rename(tmp_path / "removed")  # as a whole, while its processes write
        cluster.make("down")
        assert cluster.state not in launcher.running_elsewhere(Kind.SIMULATED)
