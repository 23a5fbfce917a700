"""Programs of frameworks with large packages: stopped, killed, resumed and exported."""

from pathlib import Path

import pytest

from tests.engine.processes.test_frameworks import (  # noqa: F401 - a fixture
    ENVIRONMENTS,
    Started,
    check_resumption,
    started,
)


@pytest.mark.parametrize("example", ENVIRONMENTS)
def test_stopped_and_killed_run_ends_with_the_weights_of_an_undisturbed_run(
    example: str,
    tmp_path: Path,
    started: Started,  # noqa: F811 - the fixture
) -> None:
    check_resumption(example, tmp_path, started)
