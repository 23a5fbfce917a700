import copy
import json
from typing import Any

import pytest

from gitops import prices
from gitops.preview import markdown
from gitops.preview.build import build
from gitops.preview.report import Report
from tests.gitops import plans

TABLE = prices.load()


def report(*steps: dict[str, Any], result: str = "succeeded") -> Report:
    return build(plans.plan(*steps, result=result), stack="prod", prices=TABLE)


@pytest.mark.parametrize(
    ("steps", "result", "status"),
    [
        ([plans.same(plans.claim())], "succeeded", "unchanged"),
        ([plans.step("create", new=plans.claim())], "succeeded", "changes"),
        ([plans.policy("no-host-path", "x")], "failed", "blocked"),
        ([plans.policy("no-host-path", "x", level="advisory")], "succeeded", "unchanged"),
        ([plans.diagnostic("error", "x")], "failed", "failed"),
        ([plans.step("delete", plans.claim(), protect=True)], "failed", "blocked"),
    ],
)
def test_status_reflects_changes_violations_and_failures(
    steps: Any, result: str, status: str
) -> None:
    assert report(*steps, result=result).status == status


def test_counts_are_omitted_if_the_preview_ended_early() -> None:
    steps = [plans.same(plans.volcano_job()), plans.same(plans.quota())]
    early = plans.plan(*steps, plans.diagnostic("error", "x"), result="failed", complete=False)
    found = build(early, stack="prod", prices=TABLE)
    assert (found.status, found.complete) == ("failed", False)
    assert (found.gpus, found.costs, found.limits) == ([], [], [])
    assert report(*steps).gpus


def test_retained_resources_are_counted_separately() -> None:
    found = report(
        plans.step("delete", plans.volcano_job(), retain=True), plans.step("delete", plans.claim())
    )
    assert (found.counts["delete"], found.counts["kept"]) == (1, 1)
    assert [item.kept_in_cluster for item in found.resources] == [True, False]


def test_existing_objects_that_the_update_adopts_are_named() -> None:
    new, existing = plans.queue(gpus=16), plans.claim()
    found = report(
        *plans.created(new, {"metadata": {"uid": "1"}}),
        *plans.created(existing, {"metadata": {"uid": "2", "resourceVersion": "9"}}),
    )
    assert [item.exists_in_cluster for item in found.resources] == [True, False]
    (impact,) = found.impacts
    assert "are adopted: `PersistentVolumeClaim checkpoints in ml`. The update" in impact
    text = markdown.render(found)
    assert "- + `PersistentVolumeClaim checkpoints in ml` (exists in the cluster)\n" in text


@pytest.mark.parametrize(("name", "adopted"), [("other", True), ("checkpoints", False)])
def test_replacement_under_a_new_name_adopts_an_existing_object(name: str, adopted: bool) -> None:
    old, new = plans.claim(), plans.claim()
    new["metadata"]["name"] = name
    _, response = plans.created(new, {"metadata": {"resourceVersion": "9"}})
    metadata = response["resOutputsEvent"]["metadata"]
    metadata |= {"op": "create-replacement", "urn": plans.urn(old, "claim")}
    found = report(plans.step("replace", old, new, name="claim"), response)
    assert [item.exists_in_cluster for item in found.resources] == [adopted]


def test_limits_show_free_and_exceeded_capacity() -> None:
    hard = {"pods": "3", "persistentvolumeclaims": "1", "limits.memory": "64Gi"}
    hard |= {"requests.memory": "1Ti", "memory": "1Ti"}
    found = report(
        plans.same(plans.queue(gpus=16)),
        plans.same(plans.quota(**hard)),
        plans.same(plans.claim()),
        plans.step("create", new=plans.volcano_job(pods=2, gpus=8)),
        plans.same(plans.deployment(replicas=2)),
    )
    left = {(row.what, row.resource): row.left for row in found.limits}
    assert left["queue research", "nvidia.com/gpu"] == 0
    assert left["quota of ml", "requests.nvidia.com/gpu"] == -2
    assert left["quota of ml", "pods"] == -1
    assert left["quota of ml", "persistentvolumeclaims"] == 0
    assert left["quota of ml", "limits.memory"] == 0
    assert left["quota of ml", "memory"] == left["quota of ml", "requests.memory"]
    assert left["installed GPUs", "NVIDIA-A800-SXM4-80GB"] == 14


@pytest.mark.parametrize(
    ("resource", "count", "gpus"),
    [
        ("nvidia.com/mig-1g.10gb", 7, ["1.00"]),
        ("nvidia.com/mig-3g.40gb", 2, ["0.86"]),
        ("nvidia.com/mig-7g.80gb", 1, []),
    ],
)
def test_mig_devices_count_as_shares_of_the_installed_gpus(
    resource: str, count: int, gpus: list[str]
) -> None:
    job = plans.volcano_job(pods=1)
    resources = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"] = {resource: count}
    found = report(plans.same(job))
    assert [f"{row.asked:.2f}" for row in found.limits] == gpus


def test_parent_queue_includes_the_requests_of_its_child_queues() -> None:
    vision = plans.volcano_job("vision-00000000", pods=1, gpus=4)
    vision["spec"]["queue"] = "vision"
    found = report(
        plans.same(plans.queue("company", gpus=32, parent="root")),
        plans.same(plans.queue("science", gpus=16, parent="company")),
        plans.same(plans.queue("research", gpus=16, parent="science")),
        plans.same(plans.queue("vision", gpus=16, parent="science")),
        # Volcano rejects cycles, but a plan may contain one.
        plans.same(plans.queue("odd", gpus=16, parent="even")),
        plans.same(plans.queue("even", gpus=16, parent="odd")),
        plans.same(plans.volcano_job(pods=2, gpus=8)),
        plans.same(vision),
    )
    asked = {row.what: row.asked for row in found.limits if row.what.startswith("queue")}
    assert asked == {
        "queue company": 20,
        "queue science": 20,
        "queue research": 16,
        "queue vision": 4,
        "queue odd": 0,
        "queue even": 0,
    }


def test_quota_counts_only_objects_in_its_namespace() -> None:
    elsewhere = plans.volcano_job(pods=2, gpus=8)
    elsewhere["metadata"]["namespace"] = "other"
    found = report(plans.same(plans.quota()), plans.same(elsewhere))
    asked = {row.what: row.asked for row in found.limits}
    assert asked["quota of ml"] == 0


def test_consecutive_runs_of_a_job_are_shown_as_one_difference() -> None:
    found = report(
        plans.step("delete", plans.volcano_job("run-00000000", pods=2)),
        plans.step("create", new=plans.volcano_job("run-11111111", pods=3)),
    )
    (difference,) = found.differences
    assert difference.title == "Job run-00000000 in ml → run-11111111"
    assert "-    replicas: 2" in difference.lines
    assert "+    replicas: 3" in difference.lines


def test_chart_values_are_compared_and_removals_reported() -> None:
    release = {"chart": "volcano", "version": "1.14.0", "values": {"custom": {"replicas": 1}}}
    event = plans.step("update", plans.claim(), plans.claim())
    metadata = event["resourcePreEvent"]["metadata"]
    metadata["type"] = "kubernetes:helm.sh/v3:Release"
    metadata["urn"] = f"urn:pulumi:prod::gpu-platform::{metadata['type']}::volcano-release"
    metadata["old"]["inputs"] = release
    metadata["new"]["inputs"] = {**release, "version": "1.15.1"}
    (difference,) = report(event).differences
    assert difference.title == "Release volcano-release"
    assert "+version: 1.15.1" in difference.lines
    metadata |= {"op": "delete", "new": None}
    (impact,) = report(event).impacts
    assert impact.startswith("Chart release `volcano-release` is deleted.")


def test_unknown_values_are_reported_by_field() -> None:
    job = plans.volcano_job()
    container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    container["image"] = plans.UNKNOWN
    found = report(plans.step("create", new=job))
    (unknown,) = found.unknown
    assert unknown.fields == ["spec.tasks[0].template.spec.containers[0].image"]
    assert any("(known after the update)" in line for line in found.differences[0].lines)


def test_object_without_a_dry_run_is_listed_as_not_validated() -> None:
    job = plans.volcano_job()
    job["metadata"]["annotations"] = {"pulumi.com/skipAwait": plans.UNKNOWN}
    found = report(plans.step("create", new=job))
    assert found.unknown == []
    (note,) = found.warnings
    assert note.startswith(f"{found.resources[0].title} is not validated by the API server")


def test_unknown_number_of_pods_adds_a_warning() -> None:
    job = plans.volcano_job()
    job["spec"]["tasks"][0]["replicas"] = plans.UNKNOWN
    found = report(plans.step("create", new=job))
    assert any("its GPUs are not counted" in warning for warning in found.warnings)
    assert sum(row.after for row in found.gpus) == 0


def test_secrets_do_not_reach_the_report() -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": plans.metadata("registry"),
        "stringData": {"password": "hunter2"},
        "data": plans.SECRET,
    }
    found = report(plans.step("create", new=secret))
    assert "hunter2" not in found.model_dump_json()
    assert "[secret]" in found.model_dump_json()


def test_violations_show_a_remedy_and_exemptions_a_reason() -> None:
    rule = "The pack's own description"
    exemption = 'Job "x": exempted from no-host-path until 2030-01-01, because: moves\nExempted: y'
    found = report(
        plans.policy("no-host-path", f"{rule}\nJob x: found y; write z\nMount a claim instead."),
        plans.policy("exemption-used", exemption, level="advisory"),
    )
    (violation,) = found.violations
    assert violation.mandatory
    assert violation.remedy
    assert "found y; write z" in violation.message
    assert found.exemptions == [" ".join(exemption.split("\n"))]


def test_report_is_json_with_plain_numbers() -> None:
    text = report(plans.same(plans.volcano_job())).model_dump_json(by_alias=True)
    (row,) = json.loads(text)["gpus"]
    assert row["now"] == row["after"] == row["fewestAfter"] == 2
    assert Report.model_validate_json(text) == report(plans.same(plans.volcano_job()))


def drift(*found: list[dict[str, Any]]) -> Report:
    plan = plans.plan(*(event for pair in found for event in pair))
    return build(plan, stack="prod", prices=TABLE, mode="drift")


def scaled() -> tuple[plans.Manifest, plans.Manifest]:
    return plans.deployment(replicas=2), plans.deployment(replicas=5)


def test_cluster_that_matches_the_state_has_no_drift() -> None:
    found = drift(plans.refreshed("same", plans.claim(), plans.claim()))
    assert (found.status, found.counts["same"], found.resources) == ("unchanged", 1, [])


def test_edited_object_is_listed_with_its_diff() -> None:
    found = drift(plans.refreshed("update", *scaled()))
    assert found.status == "changes"
    assert [(item.operation, item.title) for item in found.resources] == [
        ("update", "Deployment digits in ml")
    ]
    (difference,) = found.differences
    assert "-  replicas: 2" in difference.lines
    assert "+  replicas: 5" in difference.lines


def test_deleted_object_is_reported_as_missing_even_if_retained() -> None:
    found = drift(plans.refreshed("delete", plans.volcano_job(), retain=True, protect=True))
    assert found.status == "changes"
    assert found.impacts == ["`Job run-00000000 in ml` is missing from the cluster."]
    assert (found.counts["delete"], found.counts["kept"]) == (1, 0)
    assert not found.resources[0].kept_in_cluster


def test_deleted_claim_that_pods_still_use_is_drift() -> None:
    events = plans.refreshed("same", plans.claim(), plans.claim())
    deleted = {"metadata": {"deletionTimestamp": "2026-11-30T06:02:19Z"}}
    events[-1]["resOutputsEvent"]["metadata"]["new"]["outputs"] = deleted
    found = drift(events)
    assert found.status == "changes"
    (impact,) = found.impacts
    assert impact.startswith("`PersistentVolumeClaim checkpoints in ml` was deleted, and disappear")
    assert "## Drift of `prod`: deletions in progress\n" in markdown.render(found)


def test_drift_report_omits_gpus_costs_and_quotas() -> None:
    old, new = scaled()
    found = drift(plans.refreshed("update", old, copy.deepcopy(new)))
    assert (found.gpus, found.costs, found.limits, found.held_by_earlier_runs) == ([], [], [], {})


def test_drift_comment_states_what_is_compared() -> None:
    comment = markdown.render(drift(plans.refreshed("update", *scaled())))
    assert comment.startswith("<!-- gpu-platform drift prod -->\n## Drift of `prod`: 1 change\n")
    assert "`-` is the state, `+` is the cluster" in comment
    assert "An update would" not in comment
