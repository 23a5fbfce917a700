"""The mathematics of training in gangs of four processes."""

import shutil

import pytest

from tests.training.test_mathematics import (  # noqa: F401 - collected again with this gang
    EXACT,
    FSDP,
    SGD,
    Cases,
    Result,
    check_training,
    selected_cases,
    test_evaluation_matches_all_held_out_samples,
    test_ranks_have_different_random_numbers,
    test_weights_and_losses_match_the_reference,
    test_weights_match_only_a_reference_with_the_same_setting,
    trained,
)


@pytest.fixture(scope="module")
def gang(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Result]]:
    """Return the results of a gang of four processes, by rank."""
    return trained(4, selected_cases(request), tmp_path_factory.mktemp("gang"))


COMPILED: Cases = {
    "compiled": (SGD | {"compile": True}, EXACT),
    "compiled fsdp": (SGD | FSDP | {"compile": True}, EXACT),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_match_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    results = trained(2, COMPILED, tmp_path_factory.mktemp("compiled"))
    for case, (settings, tolerance) in COMPILED.items():
        check_training(results, case, settings, tolerance)
