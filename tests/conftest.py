"""Marks every test with its tier, told by the folder that it lives in."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIERS = {"engine": "engine", "cluster": "cluster"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        item.add_marker(TIERS.get(folder, "unit"))
