"""References between settings whose target exists, but cannot be used."""

from typing import Any

import pytest

from tests.infra.examples import changed, good, problems

JOB = "training.jobs.digits"
SERVICE = "inference.services.digits"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {
                "kind": "notebook",
                "hyperparameters": None,
                "nodes": 1,
                "notebook": {"home": "home", "token_secret": "token"},
            },
            "which is a notebook, so it exports no model",
        ),
        (
            {"schedule": {"cron": "0 3 * * *", "time_zone": "Etc/UTC", "image": "training"}},
            "which has a schedule, so it has no single run",
        ),
    ],
    ids=["notebook", "schedule"],
)
def test_a_service_of_a_job_without_one_export_is_told_why(
    values: dict[str, Any], reason: str
) -> None:
    job = good()["training"]["jobs"]["digits"] | values
    found = problems(changed(JOB, job))
    [sentence] = [each for each in found if each.startswith(f"gpu-platform:{SERVICE}.job ")]
    assert f"is 'digits', {reason}" in sentence
    assert "run" in sentence
