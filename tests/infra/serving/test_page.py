"""docs/inference-rollout.md: the settings accept what it shows."""

import re

import pytest
import yaml

from devcluster.paths import CHECKOUT
from tests.infra.examples import good, problems

PAGE = (CHECKOUT / "docs" / "inference-rollout.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))
def test_the_settings_accept_what_the_page_shows(block: str) -> None:
    (section,) = yaml.safe_load(block).values()
    assert problems(good() | {"inference": section}) == []
