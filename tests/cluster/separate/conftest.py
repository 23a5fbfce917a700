"""A cluster without nodes that several files share. Other files here start their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.admission import Cluster
from tests.cluster.api_server import api_server
from tests.cluster.platform import Platform, empty_cluster


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """An API server with an empty cluster: no nodes and no stack."""
    with empty_cluster(tmp_path_factory.mktemp("empty")) as platform:
        yield platform


@pytest.fixture
def without_admission(tmp_path: Path) -> Iterator[Platform]:
    """Another empty cluster, to which the tests of admission add no policies."""
    with empty_cluster(tmp_path / "empty") as platform:
        yield platform


@pytest.fixture(scope="session")
def admission(control_plane: Platform) -> Iterator[Cluster]:
    """The same API server with the policies in it."""
    with api_server(control_plane) as api:
        cluster = Cluster(control_plane, api)
        yield cluster
        cluster.uninstall()
