"""Reports on a cluster's drift from the stack's state."""

import copy
from typing import Any

from gitops import prices
from gitops.preview import markdown
from gitops.preview.build import build
from gitops.preview.report import Report
from tests.gitops import plans


def drift(*found: list[dict[str, Any]]) -> Report:
    plan = plans.plan(*(event for pair in found for event in pair))
    return build(plan, stack="prod", prices=prices.load(), mode="drift")


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


def test_drift_report_omits_gpus_costs_and_quotas() -> None:
    old, new = scaled()
    found = drift(plans.refreshed("update", old, copy.deepcopy(new)))
    assert (found.gpus, found.costs, found.limits, found.held_by_earlier_runs) == ([], [], [], {})


def test_drift_comment_states_what_is_compared() -> None:
    comment = markdown.render(drift(plans.refreshed("update", *scaled())))
    assert comment.startswith("<!-- gpu-platform drift prod -->\n## Drift of `prod`: 1 change\n")
    assert "`-` is the state, `+` is the cluster" in comment
    assert "An update would" not in comment
