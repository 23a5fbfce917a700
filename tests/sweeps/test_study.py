"""The record of a sweep: Optuna's proposals, and recovery from a damaged or lost journal."""

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweeps.study import JOURNAL, Study
from tests.infra.sweeps import SPACE, described, sweep
from training.config import TrainingConfig, written


def study(folder: Path, **changes: Any) -> Study:
    return Study(folder, sweep(described(**changes)))


def texts(parameters: dict[str, Any]) -> dict[str, str]:
    return {name: str(written(value)) for name, value in parameters.items()}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_proposal_depends_on_the_recorded_trials_alone(tmp_path: Path, sampler: str) -> None:
    first, second = study(tmp_path / "a", sampler=sampler), study(tmp_path / "b", sampler=sampler)
    for number in range(14):
        again = study(tmp_path / "b", sampler=sampler)
        assert first.ask() == again.ask()
        run = list(first.trials())[-1]
        for each in (first, again):
            each.report(run, {1: 0.1 * number})
            if number % 3 == 0:
                each.succeed(run, 0.05 * number)
    assert second.trials().keys() == first.trials().keys()


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_sweeps_whose_jobs_have_other_seeds_search_elsewhere(tmp_path: Path, sampler: str) -> None:
    found = []
    for seed in (1, 2):
        settings = described(sampler=sampler)
        searched = settings.training.sweeps["digits"]
        config = searched.config.model_copy(update={"seed": seed})
        job = searched.job.model_copy(update={"hyperparameters": config})
        settings.training.sweeps["digits"] = searched.model_copy(update={"job": job})
        made = Study(tmp_path / str(seed), sweep(settings))
        run = made.ask()
        assert run is not None
        found.append(made.trials()[run].params)
    assert found[0] != found[1]


def test_every_proposal_is_within_the_space(tmp_path: Path) -> None:
    made = study(tmp_path)
    for _ in range(20):
        made.ask()
    for trial in made.trials().values():
        assert 1e-4 <= trial.params["learning_rate"] <= 1e-1
        assert isinstance(trial.params["batch_size"], int)
        assert trial.params["optimizer"] in SPACE["optimizer"]["choices"]


def test_a_trial_is_chosen_once_and_a_small_space_is_exhausted(tmp_path: Path) -> None:
    made = study(tmp_path, space={"optimizer": SPACE["optimizer"]}, trials=3)
    while not made.exhausted:
        made.ask()
    assert len(made.trials()) == 2


def test_what_is_recorded_is_read_by_the_next_process(tmp_path: Path) -> None:
    made = study(tmp_path)
    first, second = made.ask(), made.ask()
    assert first is not None
    assert second is not None
    made.set_created(first)
    made.report(first, {1: 0.5, 2: 0.4})
    made.grant(first, 1)
    made.succeed(first, 0.3)
    made.fail(second)
    again = study(tmp_path)
    assert again.trials()[first].value == 0.3
    assert again.trials()[first].intermediate_values == {1: 0.5, 2: 0.4}
    assert (again.created(first), again.granted(first)) == (True, 1)
    assert again.trials()[second].state == TrialState.FAIL
    assert again.started == made.started


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    run = study(tmp_path).ask()
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"op_code":')
    again = study(tmp_path)
    assert list(again.trials()) == [run]
    again.ask()
    assert len(study(tmp_path).trials()) == 2


def test_the_study_is_rebuilt_from_the_settings_of_runs(tmp_path: Path) -> None:
    before = study(tmp_path / "before")
    for _ in range(4):
        before.ask()
    runs = {run: texts(trial.params) for run, trial in before.trials().items()}
    after = study(tmp_path / "after")
    after.rebuild({**runs, "digits-00000000": runs[next(iter(runs))], "digits-1": {}})
    assert {run: trial.params for run, trial in after.trials().items()} == {
        run: trial.params for run, trial in before.trials().items()
    }
    assert all(after.created(run) for run in runs)
    assert after.is_rebuilt
    assert not before.is_rebuilt


def test_integer_choices_of_floats_are_found(tmp_path: Path) -> None:
    settings = described(space={"weight_decay": {"choices": [0, 0.1]}})
    made = Study(tmp_path, sweep(settings))
    for choice in (0, 0.1):
        config = sweep(settings).settings.trial({"weight_decay": choice}).hyperparameters
        assert config is not None
        assert made.parameters({"weight_decay": str(config.weight_decay)}) == {
            "weight_decay": choice
        }


def test_a_default_that_an_export_does_not_list_is_found(tmp_path: Path) -> None:
    made = study(tmp_path)
    default = TrainingConfig().optimizer
    found = made.parameters({"learning_rate": "0.01", "batch_size": "16"})
    assert found == {"learning_rate": 0.01, "batch_size": 16, "optimizer": default}


@pytest.mark.parametrize(
    "setting", [{"learning_rate": "7"}, {"batch_size": "16.5"}, {"optimizer": "lion"}], ids=str
)
def test_a_run_outside_of_the_space_is_no_trial(tmp_path: Path, setting: dict[str, str]) -> None:
    known = {"learning_rate": "0.01", "batch_size": "16", "optimizer": "sgd"}
    assert study(tmp_path).parameters({**known, **setting}) is None


def test_another_template_is_another_study_that_names_the_unfinished_runs(tmp_path: Path) -> None:
    before = study(tmp_path)
    unfinished, ended = before.ask(), before.ask()
    assert ended is not None
    before.fail(ended)
    after = study(tmp_path, job={"memory": "65Gi"})
    assert after.trials() == {}
    assert after.earlier_runs == [unfinished]
    assert study(tmp_path, trials=99).trials().keys() == {unfinished, ended}
