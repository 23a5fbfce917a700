import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import validate
from infra.volcano import scheduler_configuration
from tests.infra.examples import good, problems

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(block) for block in BLOCKS]


def configuration(example: dict[str, Any]) -> dict[str, Any]:
    """Return a complete stack with the example's queues, classes, scheduler and jobs."""
    values = good()
    for section, changes in example["volcano"].items():
        values["volcano"][section] = values["volcano"].get(section, {}) | changes
    (job,) = values["training"]["jobs"].values()
    jobs = {key: job | changes for key, changes in example.get("jobs", {}).items()}
    values["training"]["jobs"] |= jobs
    return values


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: ",".join(example["volcano"]))
def test_example_is_valid_and_yields_a_scheduler_configuration(example: dict[str, Any]) -> None:
    values = configuration(example)
    assert problems(values) == []
    volcano = validate(values).volcano
    text = scheduler_configuration(volcano.scheduler, hierarchical=volcano.hierarchical)
    assert {"actions", "tiers"} == yaml.safe_load(text).keys()


def test_invalid_combinations_on_the_page_are_rejected() -> None:
    for scheduler in ({"preempt": "gangs", "enqueue": True}, {"reclaim": "gangs", "enqueue": True}):
        assert len(problems(configuration({"volcano": {"scheduler": scheduler}}))) == 1
