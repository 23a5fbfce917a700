from typing import Any

import pytest

from infra.settings import SettingsError, validate
from tests.infra.examples import changed, good

JOB = "training.jobs.digits."


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *(
            (f"{JOB}env", {name: "x"}, f"sets {name}, which")
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "RUN_DIR", "LD_PRELOAD")
        ),
        (f"{JOB}attempt_deadline_seconds", 59, "less than grace_seconds (60)"),
        *(
            (f"{owner}annotations", {"a": "x" * 300_000}, f"{owner}annotations has 300001 bytes,")
            for owner in (JOB, "cluster.", "tenancy.identities.training.")
        ),
        ("cluster.context", "a\nb", "on a single line"),
        ("cluster.kubeconfig", "apiVersion: v1\nkind: Config", "on a single line"),
        ("cluster.kubeconfig", '{"apiVersion": "v1"}', "must be the path of the kubeconfig file"),
        ("inference.services.digits.max_unavailable", 9, "draining nodes may stop all of them"),
    ],
)
def test_settings_that_would_fail_later_are_rejected(path: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingsError) as exc_info:
        validate(changed(path, value))
    assert expected in str(exc_info.value)


def test_ordinary_variables_and_deadlines_are_accepted() -> None:
    values = good()
    values["training"]["jobs"]["digits"] |= {
        "env": {"OMPI_RANKFILE": "x", "MY_RANK": "1"},
        "attempt_deadline_seconds": 60,
        "annotations": {"a": "x" * 1000},
    }
    validate(values)
