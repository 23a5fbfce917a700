"""The cluster that the other files share, after its state directory was removed."""

import shutil

from devcluster import launcher
from devcluster.spec import Kind
from tests.cluster.platform import Platform


def test_a_cluster_whose_state_directory_was_removed_is_ended_by_the_next_down(
    simulated: Platform,
) -> None:
    if not simulated.state.exists():
        simulated.make("up")
    shutil.rmtree(simulated.state)
    assert "whose state directory is missing" in simulated.make("down")
    assert simulated.state not in launcher.running_elsewhere(Kind.SIMULATED)
