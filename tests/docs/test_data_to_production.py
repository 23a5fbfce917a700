"""The settings in docs/data-to-production.md, which a cluster test also applies."""

import json
from typing import Any

import pytest
import yaml

from infra.settings.training.job import TrainingJobSettings
from infra.settings.training.sweep import SweepSettings
from tests.cluster.platform import ROOT
from tests.infra.examples import problems
from tests.operators.pull_requests import POLICIES, changes, remove_jobs

PREFIX = "gpu-platform:"


def configurations() -> list[tuple[str, dict[str, Any]]]:
    """Return the configuration after each pull request."""
    config = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())["config"]
    remove_jobs(config)
    found = []
    for title, change in changes().items():
        change.apply(config)
        found.append((title, json.loads(json.dumps(config))))
    return found


@pytest.mark.parametrize(
    ("title", "config"), configurations(), ids=[title for title, _ in configurations()]
)
def test_configuration_is_valid_after_each_pull_request(title: str, config: dict[str, Any]) -> None:
    assert title
    assert problems({key.removeprefix(PREFIX): value for key, value in config.items()}) == []


def test_job_with_the_best_settings_equals_a_trial_of_the_sweep() -> None:
    _, config = configurations()[-1]
    training = config[f"{PREFIX}training"]
    sweep = SweepSettings.model_validate(training["sweeps"]["digits"])
    job = TrainingJobSettings.model_validate(training["jobs"]["digits"])
    hyperparameters = training["jobs"]["digits"]["hyperparameters"]
    assert sweep.trial({name: hyperparameters[name] for name in sweep.space}) == job


def test_changed_policy_rules_keep_existing_exemptions() -> None:
    now = json.loads((ROOT / POLICIES).read_text())
    (rules,) = (change.rules for change in changes().values() if change.rules)
    for rule, settings in rules.items():
        exempt = [*now[rule]["systemWorkloads"], "ml-dev/Deployment/digits-rollback"]
        assert settings["systemWorkloads"] == exempt
