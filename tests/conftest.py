"""Marks every test with its tier, told by the folder that it lives in, and shares tests out."""

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.platforms import checkpoints, real, simulated, untouched  # noqa: F401 - fixtures

HERE = Path(__file__).parent
TIERS = {"engine": "engine", "cluster": "cluster", "faults": "faults"}
LONGEST = {"unit": 600, "engine": 900, "cluster": 3600, "faults": 3600}
"""Seconds after which a test hangs: what is built from nothing may be in one of the cluster's."""

# Their tests look at what a machine has one of: its processes, locks, ports and mounts.
ONE_AFTER_ANOTHER = {"devcluster": "devcluster", "engine": "engine", "cluster": "cluster"}
ONE_AFTER_ANOTHER["faults"] = "cluster"  # on the same cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        tier = TIERS.get(folder, "unit")
        item.add_marker(tier)
        if item.get_closest_marker("short"):
            item.add_marker("cluster")
        item.add_marker(pytest.mark.timeout(LONGEST[tier]))


class FolderOrFile(LoadFileScheduling):
    """Gives a process whole files, which share fixtures, or whole folders.

    Groups by mark (`--dist loadgroup`) would say the same, but pytest-xdist 3.8.0 passes over
    them with pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        folder = Path(file).parts[1]
        return ONE_AFTER_ANOTHER.get(folder, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FolderOrFile:
    return FolderOrFile(config, log)
