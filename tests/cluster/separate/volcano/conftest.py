"""A cluster for all scheduling tests: three simulated nodes with eight GPUs each, in two racks."""

from collections.abc import Iterator

import pytest

from infra.settings.volcano import SchedulerSettings
from tests.cluster.gangs import GANGS, RACK, VOLCANO
from tests.cluster.platform import Platform
from tests.cluster.scheduling import Scheduling, stack, supporting_objects


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduling]:
    """Three nodes, one in rack a and two in rack b, and the stack's queues."""
    folder = tmp_path_factory.mktemp("scheduling")
    platform = Platform.copied(folder, "simulated")
    made = Scheduling(platform, nodes=3)
    try:
        for number, rack in enumerate("abb"):
            made.kubectl("label", "node", f"simulated-{number}", f"{RACK}={rack}")
        made.apply(*supporting_objects(stack({}, **VOLCANO)))
        yield made
    finally:
        made.close()
        made.devcluster("down", "--purge")


@pytest.fixture
def volcano(cluster: Scheduling) -> Iterator[Scheduling]:
    """The cluster without jobs, and with a scheduler that preempts whole gangs."""
    cluster.configure(SchedulerSettings.model_validate(GANGS))
    yield cluster
    cluster.clear()
