"""Assignment of tests to tiers, their order and distribution, and the report of durations."""

import gc
import logging
import os
from collections.abc import Generator
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests import fork_server
from tests.durations import TIERS, VARIABLE, Durations, tier_of
from tests.platforms import checkpoints, real, simulated, untouched  # noqa: F401 - fixtures

HERE = Path(__file__).parent
TIMEOUT_SECONDS = {"unit": 600, "engine": 900, "cluster": 3600, "operators": 3600, "faults": 3600}
"""Seconds after which a test counts as hanging. Cluster tests may include builds from scratch."""
TAKE_DOWN_FILE = HERE / "cluster" / "real" / "test_9_down.py"
"""File that takes down the cluster with real nodes, which tests of other tiers share."""

SLOW_DIRECTORIES = (HERE / "training", HERE / "inference")
"""Directories whose files take longest."""

# The tests in these directories and files share a cluster or trained models, or inspect the
# processes, ports and mounts of the machine. The group of the innermost entry applies, and the
# longest groups start first. Without a group, each file is distributed separately.
SERIAL_PATHS = {
    "devcluster": "devcluster",
    "training/export": "exports",
    "cluster/simulated": "simulated nodes",
    "cluster/separate": "separate clusters",
    "cluster": "real nodes",
    "faults": "real nodes",
    # These tests start separate clusters, and run before the tests that share one.
    "operators/separate": "real nodes",
    "operators": "real nodes",
    "engine/gitops": "gitops",
    "engine/models": "published models",
    "cluster/separate/volcano": "gang scheduling cluster",
    # A second cluster, so that another process can run these tests. With one cluster, the other
    # processes would be idle while a single process still runs them.
    "cluster/separate/volcano/test_sweeps.py": "sweeps and places",
    "cluster/separate/volcano/test_places.py": "sweeps and places",
    "cluster/simulated/tenants": "tenants on simulated nodes",
    "engine/processes": "processes",
    # As in the rest of this tier, each of these files is a separate group. They are listed first,
    # because they take longest.
    "engine/policies/test_engine.py": "",
    "engine/test_reuse.py": "",
    "engine": "",
}

# Small models are slower with several threads, and much slower on a busy machine. PyTorch reads
# this variable when it is imported, including in the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# With one thread, PyTorch's compiler starts no processes that would import PyTorch again.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
# Precompiling PyTorch's headers takes longer than compiling the few kernels of a test.
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

# With Go's default (100), pulumi and kubectl spend a quarter of their start on garbage collection.
os.environ["GOGC"] = "400"

# Pydantic would read the entry points of all installed packages in each process.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

# Otherwise, `logging.basicConfig` would add a handler for the stderr of a single test.
assert logging.lastResort is not None
logging.getLogger().addHandler(logging.lastResort)

# No test asserts a duration, because it would fail on a busy machine.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and collected tests, which live until the end, from garbage collection.

    Scanning these objects would take a third of the CPU time of pytest's collection, and a tenth of
    the CPU time of the tests. Running the garbage collector less often saves another twentieth of
    the tests' CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get(VARIABLE):
        config.pluginmanager.register(Durations(Path(file)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    fork_server.fork_test_processes()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore other tiers in the unit tier unless an argument names one: imports are slow."""
    if config.getoption("markexpr") != "unit" or not _of_other_tier(collection_path):
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(map(_of_other_tier, named)) else True


def _of_other_tier(path: Path) -> bool:
    return any(path.is_relative_to(HERE / tier) for tier in TIERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = _tier(item.path)
        if not item.get_closest_marker("slow"):
            item.add_marker(tier)
        item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS[tier]))
    items.sort(key=lambda item: _order(item.path))


@cache
def _tier(path: Path) -> str:
    return tier_of(path.relative_to(HERE))


@cache
def _order(path: Path) -> tuple[bool, bool, int]:
    """Return the sort key for the tests of a file.

    Long files and groups come first, so that no process waits for the others at the end. Files of
    the unit tier are mixed, because neighbors are similar: they mostly compute or mostly wait.
    """
    place = path.relative_to(HERE)
    if _of_other_tier(path):
        return path == TAKE_DOWN_FILE, True, [*SERIAL_PATHS].index(_directory(place))
    return False, not any(map(path.is_relative_to, SLOW_DIRECTORIES)), crc32(str(place).encode())


def _directory(file: Path) -> str:
    """Return the innermost entry of `SERIAL_PATHS` that contains a file, if any."""
    return max(filter(file.is_relative_to, SERIAL_PATHS), key=len, default="")


class DirectoryOrFile(LoadFileScheduling):
    """Scheduler that assigns complete files, which share fixtures, or directories to a process.

    Groups by mark (`--dist loadgroup`) would do the same, but pytest-xdist 3.8.0 ignores them with
    pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(super()._split_scope(nodeid))


@cache
def _group(file: str) -> str:
    """Return the name of the group that a process runs with a file."""
    return SERIAL_PATHS.get(_directory(Path(file).relative_to("tests"))) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> DirectoryOrFile:
    return DirectoryOrFile(config, log)
