"""The mathematics of gangs of four processes."""

import pytest

from tests.training.test_mathematics import (  # noqa: F401 - collected again with this gang
    Result,
    chosen,
    test_a_setting_has_its_effect,
    test_ranks_have_different_random_numbers,
    test_the_evaluation_is_that_of_all_held_out_samples,
    test_weights_and_losses_are_those_of_the_reference,
    trained,
)


@pytest.fixture(scope="module")
def gang(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Result]]:
    """Return the results of a gang of four processes, by rank."""
    return trained(4, chosen(request), tmp_path_factory.mktemp("gang"))
