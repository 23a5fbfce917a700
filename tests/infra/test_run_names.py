"""Names of runs change only if a user edits the job."""

from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import pods, training_run
from infra.kinds import volcano
from infra.pods import GpuNodes
from infra.settings import validate
from infra.settings.training.checks import PROGRAMS
from infra.settings.training.job import TrainingJobSettings
from infra.training_run import TrainingJobArgs, run_name
from tests.infra.conftest import Plan, Provision
from tests.infra.examples import SECRET, stacks
from tests.infra.jobs import NODES, configuration, job, problems_of
from tests.infra.test_any_job import CAPABLE, HYPOTHESIS_SETTINGS, OPTIONS, jobs


def args(job_config: dict[str, Any]) -> TrainingJobArgs:
    return TrainingJobArgs(
        key="job",
        job=validate(configuration(job_config)).training.jobs["job"],
        namespace="ml",
        image="image@sha256:1",
        image_identity="sources:1",
        gpu_nodes=NODES,
        claims={"checkpoints": "checkpoints", "datasets": "datasets"},
    )


LABELS = st.dictionaries(st.sampled_from(["pool", "zone"]), st.sampled_from(["a", "b"]))
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "namespace": st.sampled_from(["ml", "other"]),
    "image": st.sampled_from(["image@sha256:1", "mirror.example.com/image@sha256:2"]),
    "claims": st.just({"checkpoints": "other", "datasets": "other"}),
    "service_account": st.just("other"),
    "gpu_nodes": st.builds(
        GpuNodes,
        resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]),
        node_selector=LABELS,
        tolerations=st.lists(st.fixed_dictionaries({"key": st.sampled_from(["spot", "gpu"])})),
        runtime_class=st.none() | st.just("nvidia"),
    ),
}
"""Settings that all jobs of a stack share."""


@HYPOTHESIS_SETTINGS
@given(job_config=jobs(), shared=st.fixed_dictionaries({}, optional=SHARED))
def test_shared_settings_do_not_change_run_names(
    job_config: dict[str, Any], shared: dict[str, Any]
) -> None:
    before = args(job_config)
    assert run_name(replace(before, **shared)) == run_name(before)


@pytest.mark.parametrize("module", [training_run, volcano, pods])
def test_object_templates_do_not_change_run_names(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are computed without the functions that build objects."""
    job_args = args(job("volcano"))
    name = run_name(job_args)

    def fail(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    for key, function in vars(module).items():
        if isinstance(function, FunctionType) and function is not run_name:
            monkeypatch.setattr(module, key, fail)
    assert run_name(job_args) == name


@HYPOTHESIS_SETTINGS
@given(job_config=jobs(), key=st.sampled_from(sorted(TrainingJobSettings.model_fields)))
def test_new_default_does_not_change_run_names(job_config: dict[str, Any], key: str) -> None:
    before = args(job_config)
    changed = before.job.model_copy()
    if key not in before.job.model_fields_set and key != "run":
        object.__setattr__(changed, key, "another default")
    assert run_name(replace(before, job=changed)) == run_name(before)


EDITS = {
    **OPTIONS,
    **{key.partition(":")[0]: option for key, option in CAPABLE.items()},
    "attempt": st.integers(2, 9),
    "tolerations": st.just([{"key": "spot"}]),
    "labels": st.just({"team": "vision"}),
    "ephemeral_storage": st.just("10Gi"),
}
UNNAMED_SETTINGS = {"state", "on_change", "schedule"}


@settings(HYPOTHESIS_SETTINGS, max_examples=15)
@given(job_config=jobs(), edits=st.fixed_dictionaries(EDITS))
def test_every_edit_by_a_user_changes_the_run_name(
    job_config: dict[str, Any], edits: dict[str, Any]
) -> None:
    before = args(job_config)
    for key, value in edits.items():
        edited = {**job_config, key: value}
        if job_config.get(key) != value and not problems_of(edited):
            assert (run_name(args(edited)) == run_name(before)) is (key in UNNAMED_SETTINGS), key


def test_edits_are_generated_for_all_settings() -> None:
    job_settings = {"kind", "queue", "nodes", "min_nodes", "after", "inputs"}
    dependent_settings = {"notebook", "rdma", "nccl", "success", "strict_spread", "checkpoints"}
    naming_settings = {"image", "run", "recreate"}
    programs = set(PROGRAMS)
    covered_settings = EDITS.keys() | job_settings | programs | dependent_settings | naming_settings
    assert TrainingJobSettings.model_fields.keys() <= covered_settings


def runs(plan: Plan) -> set[str]:
    """Return the names of the objects of all runs; each name begins with the name of its run."""
    return {
        name for name, request in plan.resources.items() if request.parent.endswith("::training")
    }


SHARED_SETTINGS: dict[str, dict[str, Any]] = {
    "cluster": {"labels": {"a": "b"}, "annotations": {"a": "b"}, "domain": "cluster.example"},
    "gpu": {
        "tolerations": [{"key": "spot"}, {"key": "nvidia.com/gpu"}],
        "node_selector": {"pool": "gpu"},
        "runtime_class": {"name": "other"},
    },
    "tenancy": {"namespace": "other", "limits": {"default_memory": "2Gi"}},
    "volcano": {"version": "1.14.1"},
}


def test_changed_shared_settings_start_no_runs(provision: Provision) -> None:
    values = stacks()[0]
    secrets = tuple(SECRET & values.keys())
    edited = {
        **values,
        **{key: {**values[key], **section} for key, section in SHARED_SETTINGS.items()},
    }
    for key, section in SHARED_SETTINGS.items():
        assert not section.items() <= values[key].items()
    before = runs(provision(values, secrets))
    assert len(before) >= 4
    assert runs(provision(edited, secrets)) == before
