"""An empty, node-less cluster shared by several test modules; others start their own cluster."""

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
def cluster_without_policies(tmp_path: Path) -> Iterator[Platform]:
    """A separate empty cluster, to which the admission tests add no policies."""
    with empty_cluster(tmp_path / "empty") as platform:
        yield platform


@pytest.fixture(scope="session")
def admission(control_plane: Platform) -> Iterator[Cluster]:
    """The shared API server with the admission policies."""
    with api_server(control_plane) as api:
        cluster = Cluster(control_plane, api)
        yield cluster
        cluster.uninstall()
