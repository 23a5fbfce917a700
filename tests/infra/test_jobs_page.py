"""The example jobs in docs/jobs.md and docs/pipelines.md are valid."""

import re
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from infra.settings.problems import full_key
from kube.kinds import KINDS
from tests.infra.jobs import PACK, mandatory_violations, objects, problems_of

PAGE = CHECKOUT / "docs" / "jobs.md"
PAGES = (PAGE, CHECKOUT / "docs" / "pipelines.md")
TRAINING = full_key("training")
EXAMPLES: dict[str, dict[str, Any]] = {
    name: job
    for page in PAGES
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for name, job in yaml.safe_load(block).get(TRAINING, {"jobs": {}})["jobs"].items()
}


def test_every_kind_has_an_example() -> None:
    assert {job.get("kind", "volcano") for job in EXAMPLES.values()} == set(KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_valid_and_passes_the_policy_pack(name: str) -> None:
    assert problems_of(EXAMPLES[name]) == []
    assert mandatory_violations(EXAMPLES[name]) == []
    assert objects(EXAMPLES[name])


def test_page_names_the_rules_that_require_exemptions() -> None:
    page = PAGE.read_text()
    named = {rule for rule in PACK if f'"{rule}"' in page or f"`{rule}`" in page}
    assert named >= {"training-gang-whole", "training-pod-group-whole", "no-host-namespaces"}
