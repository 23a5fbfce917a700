"""Marks every test with the tier of its directory, orders and distributes tests, reports times."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.durations import VARIABLE, Durations, tier_of
from tests.platforms import checkpoints, real, simulated, untouched  # noqa: F401 - fixtures

HERE = Path(__file__).parent
LONGEST = {"unit": 600, "engine": 900, "cluster": 3600, "operators": 3600, "faults": 3600}
"""Seconds after which a test hangs: a test on a cluster may include builds from nothing."""
LAST = HERE / "cluster" / "real" / "test_9_down.py"
"""Takes down the cluster of real nodes, which faults share."""

# Their tests share a cluster, or look at what a machine has one of: processes, ports and mounts.
ONE_AFTER_ANOTHER = {
    "devcluster": "devcluster",
    "engine": "engine",
    "cluster/simulated": "simulated nodes",
    "cluster": "real nodes",
    "faults": "real nodes",
    "operators": "real nodes",
}

# No test asserts a time: a busy machine would fail it.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get(VARIABLE):
        config.pluginmanager.register(Durations(Path(file)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tier_of(item.path.relative_to(HERE))
        item.add_marker(tier)
        if item.get_closest_marker("short"):
            item.add_marker("cluster")
        item.add_marker(pytest.mark.timeout(LONGEST[tier]))
    items.sort(key=lambda item: item.path == LAST)


class FolderOrFile(LoadFileScheduling):
    """Gives a process whole files, which share fixtures, or whole folders.

    Groups by mark (`--dist loadgroup`) would say the same, but pytest-xdist 3.8.0 passes over
    them with pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        place = Path(file).relative_to("tests")
        found = (group for where, group in ONE_AFTER_ANOTHER.items() if place.is_relative_to(where))
        return next(found, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FolderOrFile:
    return FolderOrFile(config, log)
