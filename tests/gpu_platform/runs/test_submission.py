"""Equality of runs submitted by members and those that the stack would create."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops import prices, stack_file
from gitops.errors import GitopsError
from gpu_platform.runs.submission import (
    Description,
    Submission,
    costs,
    read_jobs,
    stack_configuration,
    submissions,
    violations,
)
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY
from policies import kubernetes_yaml
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.conftest import Plan, Provision, provision  # noqa: F401  a fixture
from tests.infra.examples import SECRET, stacks


def with_members(values: dict[str, Any]) -> dict[str, Any]:
    tenancy = values["tenancy"]
    groups = tenancy.get("groups", {}) | {"members": ["vision"]}
    return values | {"tenancy": tenancy | {"groups": groups}}


@pytest.fixture
def plan(provision: Provision) -> Plan:  # noqa: F811
    # The engine sorts the keys (tests/engine/test_runs.py).
    values = json.loads(json.dumps(with_members(stacks()[0]), sort_keys=True))
    return provision(values, tuple(SECRET & values.keys()))


@pytest.fixture
def description(plan: Plan) -> Description:
    (text,) = (
        plan.inputs(name)["data"][DESCRIPTION_KEY]
        for name in plan.names("kubernetes:core/v1:ConfigMap")
        if plan.inputs(name)["metadata"]["name"] == DESCRIPTION
    )
    return Description.parse(text)


@pytest.fixture
def submitted(description: Description, tmp_path: Path) -> list[Submission]:
    """Submissions of all jobs of the stack that have no schedule, read from a file."""
    jobs = stacks()[0]["training"]["jobs"]
    file = tmp_path / "jobs.yaml"
    file.write_text(
        yaml.safe_dump({key: job for key, job in jobs.items() if "schedule" not in job})
    )
    return submissions(read_jobs(file), description)


def of_stack(plan: Plan, submission: Submission) -> list[dict[str, Any]]:
    """Return the objects that the stack creates for a run."""
    return [plan.inputs(name) for name in plan.resources if name.startswith(f"{submission.name}-")]


def canonical(manifests: Any) -> list[str]:
    """Return manifests as sorted JSON; the engine's protocol has no integers."""
    return sorted(
        re.sub(r"(\d)\.0\b", r"\1", json.dumps(each, sort_keys=True)) for each in manifests
    )


def test_submitted_runs_have_the_same_names_and_objects_as_in_a_stack(
    plan: Plan, submitted: list[Submission]
) -> None:
    assert len(submitted) >= 4
    for submission in submitted:
        assert canonical(submission.manifests) == canonical(of_stack(plan, submission))


def test_policies_report_the_same_violations_for_submitted_runs_as_in_a_stack(
    plan: Plan, submitted: list[Submission], description: Description
) -> None:
    queues = {"existingQueues": [*(description.platform.queues or ())]}
    configuration = configure({"training-queue-declared": queues}, RULES)
    violated = set()
    for submission in submitted:
        items = {"apiVersion": "v1", "kind": "List", "items": of_stack(plan, submission)}
        documents = list(read("stack", json.dumps(items).encode()))
        expected = evaluate(documents, configuration, whole_stack=False)
        found = violations(submission, description.platform, {})
        assert {(f.rule, f.message) for f in found} == {(f.rule, f.message) for f in expected}
        violated |= {f.rule for f in found}
    assert violated


def test_printed_manifests_are_parsed_by_kubectl_without_changes(
    submitted: list[Submission],
) -> None:
    for submission in submitted:
        text = yaml.dump_all(submission.manifests, Dumper=kubernetes_yaml.Dumper)
        read_again = yaml.load_all(text, kubernetes_yaml.Loader)
        assert canonical(read_again) == canonical(submission.manifests)


@pytest.mark.parametrize(
    "text",
    ["1e3", "08", "0o17", "1.e5", "y", "Off", "12e4567", "a: b", "", "2026-01-02", "2026-1-2"],
)
def test_exported_strings_remain_strings(text: str, tmp_path: Path) -> None:
    job = {"queue": "q", "cpu": 1, "memory": "1Gi", "command": ["run", text], "env": {"TEXT": text}}
    file = tmp_path / "jobs.yaml"
    file.write_text(json.dumps({"tiny": job}))
    exported = stack_file.parse(stack_configuration(read_jobs(file)))
    (read_again,) = exported["config"]["gpu-platform:training"]["jobs"].values()
    assert (read_again["command"], read_again["env"]) == (job["command"], job["env"])
    printed = yaml.dump({text: [text]}, Dumper=kubernetes_yaml.Dumper)
    assert yaml.load(printed, kubernetes_yaml.Loader) == {text: [text]}  # noqa: S506


def test_cost_of_a_run_is_computed(submitted: list[Submission]) -> None:
    (row,) = costs(submitted[0], prices.load(prices.DEFAULT), "prod")
    assert row.gpus > 0


def test_scheduled_job_must_be_defined_in_the_platform_stack(
    description: Description, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"nightly": stacks()[0]["training"]["jobs"]["nightly"]}))
    with pytest.raises(GitopsError, match="schedule requires the platform's stack"):
        submissions(read_jobs(file), description)


def test_exported_configuration_contains_the_same_jobs(tmp_path: Path) -> None:
    jobs = stacks()[0]["training"]["jobs"]
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump(jobs))
    config = yaml.safe_load(stack_configuration(read_jobs(file)))["config"]
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(config["gpu-platform:training"]["jobs"]))
    assert read_jobs(again) == read_jobs(file)


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        ({"queue": "nowhere"}, "queue is 'nowhere'"),
        ({"image": "nothing"}, "image is 'nothing'"),
        ({"checkpoints": "nothing"}, "checkpoints is 'nothing'"),
        ({"priority_class": "low"}, "priority_class is 'low', .* priority classes: .* or training"),
    ],
)
def test_job_that_the_platform_does_not_support_is_rejected(
    edit: dict[str, str], wanted: str, description: Description, tmp_path: Path
) -> None:
    job = stacks()[0]["training"]["jobs"]["digits"] | edit
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump({"digits": job}))
    with pytest.raises(GitopsError, match=wanted):
        submissions(read_jobs(file), description)


def test_all_unsupported_settings_of_all_jobs_are_reported(
    description: Description, tmp_path: Path
) -> None:
    unsupported = {"queue": "nowhere", "image": "nothing", "priority_class": "low"}
    queue = stacks()[0]["training"]["jobs"]["digits"]["queue"]
    job = {"queue": queue, "cpu": 1, "memory": "4Gi", "command": ["train"]}
    jobs = {"digits": job | unsupported, "other": job | {"checkpoints": "nothing"}}
    file = tmp_path / "jobs.yaml"
    file.write_text(json.dumps(jobs))
    with pytest.raises(GitopsError) as found:
        submissions(read_jobs(file), description)
    lines = str(found.value).splitlines()
    assert [line.partition(", which")[0] for line in lines] == [
        "the platform does not support 'digits':",
        "  - image is 'nothing'",
        "  - priority_class is 'low'",
        "  - queue is 'nowhere'",
        "the platform does not support 'other':",
        "  - checkpoints is 'nothing'",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("digits: {nods: 2}", "did you mean 'nodes'"),
        ("digits: {cpu: 1", "jobs.yaml"),
        ("[]", "contains no jobs"),
        ("{}", "contains no jobs"),
        ("", "contains no jobs"),
        ("gpu-platform:training: {jobs: {digits: {}}}", "only the jobs below `jobs`"),
        ("config: {gpu-platform:training: {jobs: {digits: {}}}}", "only the jobs below `jobs`"),
    ],
)
def test_mistakes_in_the_job_file_are_reported(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    with pytest.raises(GitopsError, match=wanted):
        read_jobs(file)


def test_error_names_the_missing_job_file(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    with pytest.raises(GitopsError, match=r"none\.yaml") as found:
        read_jobs(file)
    assert str(found.value).count(str(file)) == 1
    assert "Errno" not in str(found.value)


def test_platform_description_of_another_version_is_rejected() -> None:
    with pytest.raises(GitopsError, match="a different version of gpu_platform"):
        Description.parse('{"stack": "prod"}')


def test_platform_description_that_is_not_json_is_rejected() -> None:
    with pytest.raises(
        GitopsError, match=r"not JSON: copy the value of platform\.json in the gpu-platform"
    ):
        Description.parse("apiVersion: v1")
