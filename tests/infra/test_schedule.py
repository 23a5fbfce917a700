"""Schedules of jobs: settings, objects, policy checks and prices in previews."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gitops.demand import demands
from infra.manifests import Manifest
from infra.settings.training.schedule import ScheduleSettings
from kube.kinds.volcano import FLOW, TEMPLATE
from policies.resources import Resource
from policies.views import View
from tests.gitops import plans
from tests.infra.conftest import Provision
from tests.infra.examples import good, problems
from tests.infra.jobs import configuration, job, kind_of, mandatory_violations, objects, problems_of

NIGHTLY = {"cron": "0 3 * * *", "time_zone": "Europe/Berlin"}


def nightly(**changes: Any) -> dict[str, Any]:
    return job("volcano", schedule={**NIGHTLY, **changes})


def by_kind(job_config: dict[str, Any]) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in objects(job_config)}


@pytest.mark.parametrize(
    ("cron", "now", "start"),
    [
        ("0 3 * * *", "2026-11-25T12:00Z", "2026-11-26T03:00+01:00"),
        # Daylight saving time, and across a weekend.
        ("30 6 * * 1-5", "2026-07-03T10:00Z", "2026-07-06T06:30+02:00"),
        ("*/15 * * JAN,feb *", "2026-11-25T12:00Z", "2027-01-01T00:00+01:00"),
        # Kubernetes omits a start in the hour that is skipped, and repeats one in a repeated hour.
        ("30 2 * * *", "2026-03-28T12:00Z", "2026-03-30T02:30+02:00"),
        ("30 2 * * *", "2026-10-25T00:45Z", "2026-10-25T02:30+01:00"),
        # Day of month or day of week, as in Kubernetes.
        ("0 0 13 * 5", "2026-11-25T12:00Z", "2026-11-27T00:00+01:00"),
    ],
)
def test_next_start_is_computed_in_the_time_zone(cron: str, now: str, start: str) -> None:
    schedule = ScheduleSettings(cron=cron, time_zone="Europe/Berlin")
    found = schedule.next_start(datetime.fromisoformat(now))
    assert found.isoformat(timespec="minutes") == start


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cron": "0 3 * *"}, "must have five fields"),
        ({"cron": "0 0 3 * * *"}, "must have five fields"),
        ({"cron": "@daily"}, "must have five fields"),
        ({"cron": "0 25 * * *"}, "Bad hour"),
        ({"cron": "0 3 L * *"}, "must have five fields"),
        ({"cron": "0 3 * * 1#2"}, "must have five fields"),
        ({"cron": "0 3 * * 7"}, "write 0 for Sunday"),
        ({"cron": "0 3 * * 6/1"}, "write the range, such as 1-6/2"),
        ({"cron": "0 3 * * mon,TUE/2"}, "write the range, such as 1-6/2"),
        ({"cron": "0 3 */2 * 1"}, "set one of them to *"),
        # Kubernetes combines `1,*` and the weekday with "and", cronsim with "or".
        ({"cron": "0 3 1,* * 1"}, "set one of them to *"),
        ({"cron": "0 3 30 2 *"}, "Bad day-of-month"),
        ({"time_zone": "Europe/Atlantis"}, "use one such as Europe/Berlin"),
        ({"time_zone": "Europe"}, "use one such as Europe/Berlin"),
        ({"image": "other"}, "schedule.image is 'other', which is not declared"),
    ],
)
def test_invalid_schedule_is_rejected(changes: dict[str, Any], text: str) -> None:
    (problem,) = problems_of(nightly(**changes))
    assert text in problem


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run": "job-0a1b2c3d"}, "remove run"),
        ({"state": "stopped"}, "set schedule.suspend to true instead"),
        ({"recreate": True}, "remove recreate"),
        ({"kind": "indexed"}, "kind 'indexed' does not support"),
    ],
)
def test_schedule_cannot_be_combined_with_settings_for_a_single_run(
    changes: dict[str, Any], text: str
) -> None:
    found = problems_of({**nightly(), **changes})
    assert any(text in problem for problem in found), found


def test_a_cron_job_starts_one_run_at_a_time() -> None:
    limits = {"keep_succeeded": 5, "keep_failed": 1, "start_within_seconds": 600, "suspend": True}
    cron_job = kind_of(nightly(**limits), "CronJob")
    spec = {key: value for key, value in cron_job["spec"].items() if key != "jobTemplate"}
    assert cron_job["metadata"]["name"] == "job-schedule"
    assert spec == {
        "schedule": "0 3 * * *",
        "timeZone": "Europe/Berlin",
        "suspend": True,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 600,
        "successfulJobsHistoryLimit": 5,
        "failedJobsHistoryLimit": 1,
    }


def test_program_is_restarted_after_every_eviction_but_not_after_a_failed_run() -> None:
    cron_job = kind_of(nightly(), "CronJob")
    failed, evicted = cron_job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (failed["action"], failed["onExitCodes"]["values"]) == ("FailJob", [64])
    assert (evicted["action"], evicted["onPodConditions"][0]["type"]) == (
        "Ignore",
        "DisruptionTarget",
    )


def test_schedule_program_can_only_copy_the_runs_templates() -> None:
    steps = {"check": {"command": ["./check"], "after": ["train"]}}
    rules = kind_of({**nightly(), "steps": steps}, "Role")["rules"]
    assert rules == [
        {
            "apiGroups": ["flow.volcano.sh"],
            "resources": ["jobtemplates"],
            "resourceNames": ["0123abcd-train", "0123abcd-check"],
            "verbs": ["get"],
        },
        {"apiGroups": ["flow.volcano.sh"], "resources": ["jobtemplates"], "verbs": ["create"]},
        {"apiGroups": ["flow.volcano.sh"], "resources": ["jobflows"], "verbs": ["create", "get"]},
    ]


def test_schedule_creates_templates_but_no_run() -> None:
    kinds = [manifest["kind"] for manifest in objects(nightly())]
    assert TEMPLATE.kind in kinds
    assert not {FLOW.kind, "Job"} & set(kinds)
    (single_run,) = objects(job("volcano"))
    assert by_kind(nightly())[TEMPLATE.kind]["spec"] == single_run["spec"]


def test_isolated_schedule_program_can_reach_only_the_api_server() -> None:
    policy = by_kind(nightly(api_ports=[6443]))["NetworkPolicy"]
    assert policy["spec"]["egress"] == [{"ports": [{"port": 6443, "protocol": "TCP"}]}]
    assert policy["spec"]["podSelector"] == {
        "matchLabels": {"app.kubernetes.io/instance": "job-schedule"}
    }


def container(template: Manifest) -> Manifest:
    pod = template["spec"]["tasks"][0]["template"]["spec"]
    found: Manifest = pod["containers"][0]
    return found


def in_another_queue(template: Manifest) -> None:
    template["spec"]["queue"] = "undeclared"


def without_volcano(template: Manifest) -> None:
    template["spec"]["schedulerName"] = "default-scheduler"
    template["spec"]["tasks"][0]["template"]["spec"]["schedulerName"] = "default-scheduler"


def as_root(template: Manifest) -> None:
    container(template)["securityContext"]["allowPrivilegeEscalation"] = True


def without_limit(template: Manifest) -> None:
    del container(template)["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (in_another_queue, "training-queue-declared"),
        (without_volcano, "training-scheduler"),
        (as_root, "no-privilege-escalation"),
        (without_limit, "gpu-requests-equal-limits"),
    ],
)
def test_policies_apply_to_pods_in_the_template(
    edit: Callable[[Manifest], None], rule: str
) -> None:
    def edit_template(manifest: Manifest) -> None:
        if manifest["kind"] == TEMPLATE.kind:
            edit(manifest)

    assert mandatory_violations(nightly()) == []
    found = mandatory_violations(nightly(), edit_template)
    assert any(each.startswith(f"{rule}: JobTemplate") for each in found), found


def test_price_of_a_schedule_covers_one_run() -> None:
    documents = objects({**nightly(), "nodes": 3, "gpus_per_node": 2})
    views = [View(Resource(plans.kind(manifest), manifest)) for manifest in documents]
    gpus = [
        sum(demand.total(demand.requests, name) for name in demand.gpus)
        for demand in demands(views)
    ]
    assert sum(gpus) == 6


def scheduled(provision: Provision, **schedule: Any) -> set[str]:
    values = good()
    values["images"]["workloads"]["recorder"] = values["images"]["workloads"]["training"]
    values["inference"] = {}
    for job_config in values["training"]["jobs"].values():
        job_config["schedule"] = {**NIGHTLY, **schedule}
    return {name for name in provision(values).resources if "schedule" in name}


def test_changed_schedule_updates_the_cron_job_in_place(provision: Provision) -> None:
    before = scheduled(provision)
    assert any(name.endswith("-cronjob-digits-schedule") for name in before), before
    assert scheduled(provision, suspend=True) == before
    # The namespace is isolated.
    assert any("networkpolicy" in name for name in before), before


def test_job_with_a_schedule_cannot_be_served() -> None:
    values = configuration(nightly())
    values["inference"] = {"services": {"s": {"job": "job", "cpu": 1, "memory": "1Gi"}}}
    assert any("services.s.job is 'job'" in problem for problem in problems(values))


def test_next_start_has_the_time_zone_of_the_schedule() -> None:
    start = ScheduleSettings(**NIGHTLY).next_start(datetime(2026, 11, 25, tzinfo=UTC))
    assert f"{start:%Y-%m-%d %H:%M %Z}" == "2026-11-25 03:00 CET"
