"""Examples on the pages about serving are valid settings."""

import re

import pytest
import yaml

from devcluster.paths import CHECKOUT
from tests.infra.examples import good, problems

PAGES = ("inference-rollout", "inference-runtimes")
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(
        r"^```yaml\n(.*?)^```", (CHECKOUT / "docs" / f"{page}.md").read_text(), re.M | re.S
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_on_the_pages_are_valid_settings(block: str) -> None:
    (section,) = yaml.safe_load(block).values()
    values = good()
    values["images"]["workloads"]["recorder"] = dict(values["images"]["workloads"]["inference"])
    assert problems(values | {"inference": section}) == []
