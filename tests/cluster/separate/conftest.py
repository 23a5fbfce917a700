"""A cluster without nodes that several files share. Other files here start their own."""

from collections.abc import Iterator

import pytest

from tests.cluster.admission import Cluster
from tests.cluster.api_server import api_server
from tests.cluster.platform import Platform, copy_checkout


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """An API server with an empty cluster: no nodes and no stack."""
    folder = tmp_path_factory.mktemp("empty")
    platform = Platform(copy_checkout(folder / "checkout"), folder / "state", "simulated")
    devcluster = ".venv/bin/python -m devcluster"
    try:
        platform.run(f"{devcluster} up --nodes simulated --simulated-nodes=0")
        yield platform
    finally:
        platform.run(f"{devcluster} down --purge --nodes simulated")


@pytest.fixture(scope="session")
def admission(control_plane: Platform) -> Iterator[Cluster]:
    """The same API server with the policies in it."""
    with api_server(control_plane) as api:
        cluster = Cluster(control_plane, api)
        yield cluster
        cluster.uninstall()
