"""A cluster with simulated nodes that the files in this directory share."""

import pytest

from tests.cluster.platform import Platform


@pytest.fixture(scope="session")
def cluster(simulated: Platform) -> Platform:
    """The platform after `make up`, which the first file may already have run."""
    simulated.make("up")
    return simulated
