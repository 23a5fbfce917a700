"""A cluster with simulated nodes, shared by the tests in this directory."""

import pytest

from tests.cluster.platform import Platform


@pytest.fixture(scope="session")
def cluster(simulated: Platform) -> Platform:
    """The platform after `make up`, which an earlier module may already have run."""
    simulated.make("up")
    return simulated
