"""The cluster with simulated nodes that the files of this folder share."""

import pytest

from tests.cluster.platform import Platform


@pytest.fixture(scope="session")
def cluster(simulated: Platform) -> Platform:
    """The platform after `make up`; it is up already where the first file has run."""
    simulated.make("up")
    return simulated
