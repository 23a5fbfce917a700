"""The embedded cluster for tests: a copy of the checkout, and a separate state directory.

A tier that this machine cannot run is skipped, or fails in CI.

The tiers cluster, operators and faults use these session fixtures (tests/conftest.py).
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from devcluster import host
from devcluster.nodes import links
from devcluster.paths import cache_root
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import go
from tests.cluster.host_state import HostState
from tests.cluster.platform import Platform


def _platform(tmp_path_factory: pytest.TempPathFactory, nodes: str) -> Platform:
    folder = tmp_path_factory.mktemp(nodes)
    return Platform.copied(folder, nodes)


def require_real_nodes() -> None:
    """Declare the test unavailable if this host cannot run real nodes now."""
    verdict = host.choose_kind("auto")
    if verdict.kind is not Kind.REAL:
        unavailable(verdict.reason)
    if clashes := links.clashing_routes(cluster_spec(Kind.REAL).network):
        unavailable(f"the embedded cluster's network is in use: {clashes}; `make down` ends it")


@pytest.fixture(scope="session")
def untouched() -> HostState:
    """The host before the first start of the real cluster."""
    return HostState.now()


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with simulated nodes, taken down at the end."""
    platform = _platform(tmp_path_factory, "simulated")
    yield platform
    platform.make("down", "PURGE=1")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, untouched: HostState) -> Iterator[Platform]:
    """A platform with two real nodes, taken down at the end."""
    assert untouched
    require_real_nodes()
    platform = _platform(tmp_path_factory, "real")
    yield platform
    platform.make("down", "PURGE=1")


@pytest.fixture(scope="session")
def checkpoints(real: Platform) -> Path:
    """The directory behind the claim for checkpoints."""
    return real.state / "real" / "volumes" / "checkpoints"


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"CI must run every tier, but this one cannot run: {reason}")
    pytest.skip(reason)


def program(package: str) -> Path:
    """Return the program of a package with its version, such as `example.com/a@v1`, built once."""
    name, _, version = package.rpartition("/")[2].partition("@")
    folder = cache_root() / "tools" / f"{name}-{version}"
    if not (folder / name).exists():
        if shutil.which("go") is None:
            unavailable(f"{name} is built from its Go module, and Go is not installed")
        environment = {**go.environment(), "GOBIN": str(folder), "GOFLAGS": "-trimpath"}
        done = subprocess.run(
            ["go", "install", package], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            unavailable(f"{name} cannot be built: {done.stderr}")
    return folder / name
