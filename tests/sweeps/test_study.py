"""Sweep records: Optuna's proposals, and recovery from a damaged or lost journal."""

import errno
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweeps.study import JOURNAL, Study
from tests.infra.sweeps import SPACE, stack_settings, sweep
from training.config import TrainingConfig, written


def study(folder: Path, **changes: Any) -> Study:
    return Study(folder, sweep(stack_settings(**changes)))


def as_text(parameters: dict[str, Any]) -> dict[str, str]:
    return {name: str(written(value)) for name, value in parameters.items()}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_proposals_depend_only_on_the_recorded_trials(tmp_path: Path, sampler: str) -> None:
    first, second = study(tmp_path / "a", sampler=sampler), study(tmp_path / "b", sampler=sampler)
    for number in range(14):
        reopened = study(tmp_path / "b", sampler=sampler)
        assert first.ask() == reopened.ask()
        run = list(first.trials())[-1]
        for each in (first, reopened):
            each.report(run, {1: 0.1 * number})
            if number % 3 == 0:
                each.succeed(run, 0.05 * number)
    assert second.trials().keys() == first.trials().keys()


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_different_job_seeds_lead_to_different_proposals(tmp_path: Path, sampler: str) -> None:
    proposals = []
    for seed in (1, 2):
        settings = stack_settings(sampler=sampler)
        original = settings.training.sweeps["digits"]
        config = original.config.model_copy(update={"seed": seed})
        job = original.job.model_copy(update={"hyperparameters": config})
        settings.training.sweeps["digits"] = original.model_copy(update={"job": job})
        recorded = Study(tmp_path / str(seed), sweep(settings))
        run = recorded.ask()
        assert run is not None
        proposals.append(recorded.trials()[run].params)
    assert proposals[0] != proposals[1]


def test_every_proposal_is_within_the_search_space(tmp_path: Path) -> None:
    recorded = study(tmp_path)
    for _ in range(20):
        recorded.ask()
    for trial in recorded.trials().values():
        assert 1e-4 <= trial.params["learning_rate"] <= 1e-1
        assert isinstance(trial.params["batch_size"], int)
        assert trial.params["optimizer"] in SPACE["optimizer"]["choices"]


def test_small_search_space_is_exhausted_without_repeated_trials(tmp_path: Path) -> None:
    recorded = study(tmp_path, space={"optimizer": SPACE["optimizer"]}, trials=3)
    while not recorded.exhausted:
        recorded.ask()
    assert len(recorded.trials()) == 2


def test_recorded_results_are_available_after_a_restart(tmp_path: Path) -> None:
    recorded = study(tmp_path)
    first, second = recorded.ask(), recorded.ask()
    assert first is not None
    assert second is not None
    recorded.set_created(first)
    recorded.report(first, {1: 0.5, 2: 0.4})
    recorded.grant(first, 1)
    recorded.succeed(first, 0.3)
    recorded.fail(second)
    reopened = study(tmp_path)
    assert reopened.trials()[first].value == 0.3
    assert reopened.trials()[first].intermediate_values == {1: 0.5, 2: 0.4}
    assert (reopened.is_created(first), reopened.granted(first)) == (True, 1)
    assert reopened.trials()[second].state == TrialState.FAIL
    assert reopened.started == recorded.started


def test_truncated_last_line_of_the_journal_is_dropped(tmp_path: Path) -> None:
    run = study(tmp_path).ask()
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":')
    reopened = study(tmp_path)
    assert list(reopened.trials()) == [run]
    reopened.ask()
    assert len(study(tmp_path).trials()) == 2


def test_incomplete_line_of_a_failed_write_does_not_damage_the_next_line(tmp_path: Path) -> None:
    opened = study(tmp_path)
    opened.ask()
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":')
    opened.ask()
    assert len(study(tmp_path).trials()) == 2


def test_nothing_is_appended_to_a_journal_that_cannot_be_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = study(tmp_path)
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":')

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        # Python 3.14 and later return False after any error.
        patch.setattr(Path, "exists", lambda _: False)
        patch.setattr(Path, "stat", fail)
        with pytest.raises(OSError, match="Stale file handle"):
            opened.ask()
    opened.ask()
    assert len(study(tmp_path).trials()) == 1


def test_study_is_rebuilt_from_the_settings_of_existing_runs(tmp_path: Path) -> None:
    original = study(tmp_path / "before")
    for _ in range(4):
        original.ask()
    runs = {run: as_text(trial.params) for run, trial in original.trials().items()}
    rebuilt = study(tmp_path / "after")
    rebuilt.rebuild({**runs, "digits-00000000": runs[next(iter(runs))], "digits-1": {}}, {})
    assert {run: trial.params for run, trial in rebuilt.trials().items()} == {
        run: trial.params for run, trial in original.trials().items()
    }
    assert all(rebuilt.is_created(run) for run in runs)
    assert rebuilt.is_rebuilt
    assert not original.is_rebuilt


def test_integer_choices_of_a_float_setting_are_recognized(tmp_path: Path) -> None:
    settings = stack_settings(space={"weight_decay": {"choices": [0, 0.1]}})
    recorded = Study(tmp_path, sweep(settings))
    for choice in (0, 0.1):
        config = sweep(settings).settings.trial({"weight_decay": choice}).hyperparameters
        assert config is not None
        assert recorded.parameters({"weight_decay": str(config.weight_decay)}) == {
            "weight_decay": choice
        }


def test_default_value_is_assumed_for_a_setting_missing_from_the_export(tmp_path: Path) -> None:
    recorded = study(tmp_path)
    default = TrainingConfig().optimizer
    parameters = recorded.parameters({"learning_rate": "0.01", "batch_size": "16"})
    assert parameters == {"learning_rate": 0.01, "batch_size": 16, "optimizer": default}


@pytest.mark.parametrize(
    "setting", [{"learning_rate": "7"}, {"batch_size": "16.5"}, {"optimizer": "lion"}], ids=str
)
def test_run_outside_the_search_space_is_not_a_trial(
    tmp_path: Path, setting: dict[str, str]
) -> None:
    valid = {"learning_rate": "0.01", "batch_size": "16", "optimizer": "sgd"}
    assert study(tmp_path).parameters({**valid, **setting}) is None


def test_changed_job_template_starts_a_new_study_and_lists_unfinished_runs(tmp_path: Path) -> None:
    original = study(tmp_path)
    unfinished, failed = original.ask(), original.ask()
    assert failed is not None
    original.fail(failed)
    restarted = study(tmp_path, job={"memory": "65Gi"})
    assert restarted.trials() == {}
    assert restarted.earlier_runs == [unfinished]
    assert study(tmp_path, trials=99).trials().keys() == {unfinished, failed}
