import re
from typing import Any

import pytest
import yaml

from infra.job_kinds_table import PAGE, capabilities_table, kinds_table, with_tables
from kube.kinds import KINDS
from tests.infra.kinds import PACK, objects, problems_of, refused

EXAMPLES: dict[str, dict[str, Any]] = {
    name: job
    for block in re.findall(r"^```yaml\n(jobs:.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name, job in yaml.safe_load(block)["jobs"].items()
}


def test_the_tables_of_the_page_are_current() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "run `python -m infra.job_kinds_table`"


def test_every_kind_has_its_row_and_its_column() -> None:
    assert [line.split("`")[1] for line in kinds_table().splitlines()[2:]] == list(KINDS)
    head = capabilities_table().splitlines()[0]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(KINDS)


def test_a_page_without_a_place_for_a_table_is_told() -> None:
    with pytest.raises(ValueError, match="0 places for the table 'kinds'"):
        with_tables("nothing")


def test_every_kind_has_an_example() -> None:
    assert {job.get("kind", "volcano") for job in EXAMPLES.values()} == set(KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid_and_passes_the_pack(name: str) -> None:
    assert problems_of(EXAMPLES[name]) == []
    assert refused(EXAMPLES[name]) == []
    assert objects(EXAMPLES[name])


def test_the_page_tells_which_rules_have_to_know_a_job() -> None:
    page = PAGE.read_text()
    told = {rule for rule in PACK if f'"{rule}"' in page or f"`{rule}`" in page}
    assert told == {"training-gang-whole", "training-pod-group-whole", "no-host-namespaces"}
