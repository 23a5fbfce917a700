from typing import Any

import pulumi
import pytest

from infra.settings.training import TrainingJobSettings
from infra.unmeasured_jobs import warn_of_unmeasured
from tests.infra.conftest import Provision
from tests.infra.examples import good

PROGRAM = {"model": "digits-net", "dataset": "digits"}


def job(**settings: Any) -> TrainingJobSettings:
    values = good()["training"]["jobs"]["digits"]
    del values["hyperparameters"]
    return TrainingJobSettings.model_validate({**values, **settings})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", found.append)
    return found


def test_jobs_that_would_not_answer_prometheus_are_named(said: list[str]) -> None:
    measured = job(hyperparameters={**PROGRAM, "metrics_port": 9400})
    silent = job(hyperparameters=PROGRAM)
    warn_of_unmeasured({"first": silent, "measured": measured, "second": silent})
    (text,) = said
    assert "training.jobs: first, second." in text
    assert "write metrics_port" in text


def test_jobs_that_know_no_port_are_passed_over(said: list[str]) -> None:
    tensorflow = job(kind="tensorflow", hyperparameters=PROGRAM)
    warn_of_unmeasured({"own": job(command=["true"]), "tensorflow": tensorflow})
    assert said == []


@pytest.mark.parametrize(("prometheus", "warnings"), [("none", 0), ("plain", 1)])
def test_only_a_stack_with_prometheus_is_told(
    provision: Provision, said: list[str], prometheus: str, warnings: int
) -> None:
    provision({**good(), "monitoring": {"prometheus": prometheus}})
    assert len([text for text in said if "metrics_port" in text]) == warnings
