import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import validate
from infra.settings.problems import full_key
from infra.volcano import scheduler_configuration
from tests.infra.examples import good, problems

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
VOLCANO = full_key("volcano")
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(block) for block in BLOCKS]


def configuration(example: dict[str, Any]) -> dict[str, Any]:
    """Return a complete stack with the example's queues, classes, scheduler and jobs."""
    values = {full_key(section): parts for section, parts in good().items()}
    for section, parts in example.items():
        for part, changes in parts.items():
            values[section][part] = values[section].get(part, {}) | changes
    return {section.removeprefix(full_key()): parts for section, parts in values.items()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: ",".join(example[VOLCANO]))
def test_example_is_valid_and_yields_a_scheduler_configuration(example: dict[str, Any]) -> None:
    values = configuration(example)
    assert problems(values) == []
    volcano = validate(values).volcano
    text = scheduler_configuration(volcano.scheduler, hierarchical=volcano.hierarchical)
    assert {"actions", "tiers"} == yaml.safe_load(text).keys()


def test_invalid_combinations_on_the_page_are_rejected() -> None:
    for scheduler in ({"preempt": "gangs", "enqueue": True}, {"reclaim": "gangs", "enqueue": True}):
        assert len(problems(configuration({VOLCANO: {"scheduler": scheduler}}))) == 1
