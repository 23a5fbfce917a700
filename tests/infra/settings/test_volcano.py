import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings.volcano import QueueSettings
from infra.volcano import queue
from tests.infra.examples import changed, good, problems

GPU = "nvidia.com/gpu"
OVERRIDE = {"custom": {"scheduler_config_override": "actions: allocate\ntiers: []\n"}}


def volcano_problems(**settings: Any) -> list[str]:
    """Return the problems in a stack with these Volcano settings."""
    values = good()
    values["volcano"] |= settings
    values["volcano"]["queues"] = {"research": {}, **settings.get("queues", {})}
    return problems(values)


def test_preemption_requires_priorities() -> None:
    (problem,) = volcano_problems(scheduler={"preempt": "gangs", "priority": False})
    assert "gpu-platform:volcano.scheduler contradicts itself: preempt is gangs, but" in problem


@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_a_queued_job_can_neither_preempt_nor_reclaim(action: str) -> None:
    (problem,) = volcano_problems(scheduler={action: "gangs", "enqueue": True})
    assert "enqueue is true, but a queued job neither preempts" in problem


def test_overcommit_requires_queued_jobs() -> None:
    (problem,) = volcano_problems(scheduler={"reclaim": "gangs", "overcommit": 1.5})
    assert "overcommit is 1.5, but no job is queued" in problem
    assert volcano_problems(scheduler={"overcommit": 1.5}) == []


def test_wait_limit_without_effect_is_rejected() -> None:
    sla = {"longest_wait_seconds": 60, "reserve": False}
    (problem,) = volcano_problems(scheduler={"reclaim": "gangs", "sla": sla})
    assert "sla has no effect" in problem
    assert volcano_problems(scheduler={"sla": sla}) == []


def test_pack_by_requires_binpack() -> None:
    (problem,) = volcano_problems(scheduler={"placement": "spread", "pack_by": {GPU: 1}})
    assert "placement is spread" in problem


def test_scheduler_cannot_be_configured_in_two_places() -> None:
    (problem,) = volcano_problems(scheduler={"placement": "spread"}, values=OVERRIDE)
    assert problem.startswith("gpu-platform:volcano.values.custom.scheduler_config_override is")
    assert volcano_problems(values=OVERRIDE) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("actions: [", "(not YAML)"),
        pytest.param("[" * 1000, "(not YAML)", id="brackets"),
        ("actions: allocate", "set a string of YAML with `actions` and `tiers`"),
        ({"actions": "allocate", "tiers": []}, "set a string of YAML with"),
    ],
)
def test_unreadable_scheduler_configuration_is_rejected(text: object, expected: str) -> None:
    (problem,) = volcano_problems(values={"custom": {"scheduler_config_override": text}})
    prefix = "gpu-platform:volcano.values has an invalid custom.scheduler_config_override"
    assert problem.startswith(prefix)
    assert expected in problem


@pytest.mark.parametrize(
    ("path", "key"),
    [("volcano", "basic"), ("volcano", "custom"), ("monitoring.kube_prometheus_stack", "global")],
)
@pytest.mark.parametrize("value", ["none", None])
def test_chart_values_that_the_stack_reads_must_be_mappings(
    path: str, key: str, value: Any
) -> None:
    (problem,) = problems(changed(f"{path}.values", {key: value}))
    assert problem.startswith(f"gpu-platform:{path}.values has an invalid {key}: it must be a")


def test_existing_scheduler_cannot_be_configured() -> None:
    (problem,) = volcano_problems(install=False, scheduler={"preempt": "gangs"})
    assert "gpu-platform:volcano.install is false" in problem


def test_proportion_plugin_rejects_deserved_and_parents() -> None:
    found = volcano_problems(queues={"team": {"deserved": {GPU: 8}}, "lab": {"parent": "team"}})
    assert [problem.split()[0] for problem in found] == [
        "gpu-platform:volcano.queues.team.deserved",
        "gpu-platform:volcano.queues.lab.parent",
    ]


def test_capacity_plugin_rejects_weights() -> None:
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues={"team": {"weight": 2}})
    assert problem.startswith("gpu-platform:volcano.queues.team.weight is 2, which has no effect")


def test_parent_queues_require_a_supporting_volcano_release() -> None:
    queues = {"team": {}, "lab": {"parent": "team"}}
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, version="1.10.0", queues=queues)
    assert (
        "gpu-platform:volcano.version is '1.10.0', which does not support parent queues" in problem
    )
    assert volcano_problems(scheduler={"share": "capacity"}, version="1.11.0", queues=queues) == []


def test_deserved_must_list_cpu_and_memory_if_queues_reclaim() -> None:
    scheduler = {"share": "capacity", "reclaim": "gangs"}
    queues: dict[str, Any] = {"team": {"deserved": {GPU: 8, "cpu": 64}}}
    (problem,) = volcano_problems(scheduler=scheduler, version="1.10.0", queues=queues)
    assert "gpu-platform:volcano.queues.team.deserved does not list memory" in problem
    assert volcano_problems(scheduler=scheduler, queues=queues) == []


@pytest.mark.parametrize("share_field", ["guarantee", "deserved"])
def test_child_queues_cannot_exceed_the_share_of_their_parent(share_field: str) -> None:
    queues = {
        "team": {share_field: {GPU: 8}},
        "lab": {"parent": "team", share_field: {GPU: 6}},
        "desk": {"parent": "team", share_field: {GPU: 4}},
    }
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert problem.startswith(f"gpu-platform:volcano.queues.team.{share_field} for {GPU} is 8, but")
    assert re.search(r"\(lab, desk\) .* 10 in total", problem)


def test_error_names_the_amount_that_the_parent_sets() -> None:
    children = {"lab": {"parent": "team", "guarantee": {"cpu": 2}, "deserved": {"cpu": 4}}}
    for team, key in (
        ({"guarantee": {"cpu": 2}}, "guarantee"),
        ({"deserved": {"cpu": 2}}, "deserved"),
    ):
        (problem,) = volcano_problems(
            scheduler={"share": "capacity"}, queues={"team": team, **children}
        )
        assert problem.startswith(f"gpu-platform:volcano.queues.team.{key} for cpu is 2, but")
        assert "(lab) deserve 4 in total" in problem


@pytest.mark.parametrize(
    ("team", "limit"),
    [({"deserved": {GPU: 8}}, "0 (not listed)"), ({"deserved": {GPU: 8, "cpu": 16}}, None)],
)
def test_guarantees_of_child_queues_count_as_deserved(
    team: dict[str, Any], limit: str | None
) -> None:
    """The stack adds the guarantee to `deserved`, which Volcano's webhooks compare."""
    queues = {
        "team": team,
        "lab": {"parent": "team", "deserved": {GPU: 8}, "guarantee": {"cpu": 16}},
    }
    assert queue("lab", QueueSettings.model_validate(queues["lab"]))["spec"]["deserved"] == {
        "cpu": "16",
        GPU: "8",
    }
    found = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert len(found) == (limit is not None)
    for problem in found:
        assert f"queues.team.deserved for cpu is {limit}, but its child queues (lab)" in problem
        assert "including their guarantees" in problem


def test_child_queue_capability_cannot_exceed_its_parent() -> None:
    queues = {"team": {"capability": {GPU: 8}}, "lab": {"parent": "team", "capability": {GPU: 16}}}
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert (
        "queues.lab.capability for nvidia.com/gpu is 16, more than the 8 of its parent" in problem
    )


def test_resource_missing_in_a_parent_queue_counts_as_zero() -> None:
    """Volcano's webhooks reject such queues, although its scheduler would not limit them."""
    queues: dict[str, Any] = {"team": {}, "lab": {"parent": "team", "capability": {GPU: 8}}}
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert "queues.lab.capability for nvidia.com/gpu is 8, more than the 0 (not listed)" in problem
    queues = {
        "team": {"capability": {GPU: 8}},
        "lab": {"parent": "team", "guarantee": {GPU: 4, "cpu": 8}},
    }
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert "queues.team.capability for cpu is 0 (not listed), but its child" in problem
    assert "(lab) are guaranteed 8 in total" in problem


@pytest.mark.parametrize("share_field", ["guarantee", "deserved"])
def test_capability_must_list_every_guaranteed_or_deserved_resource(share_field: str) -> None:
    team = {"capability": {GPU: 8}, share_field: {GPU: 8, "cpu": 64, "memory": "1Ti"}}
    (problem,) = volcano_problems(scheduler={"share": "capacity"}, queues={"team": team})
    assert f"{share_field} for cpu to 64, more than capability (0 (not listed))" in problem


def test_guarantee_cannot_exceed_the_capability() -> None:
    (problem,) = volcano_problems(queues={"team": {"guarantee": {GPU: 9}, "capability": {GPU: 8}}})
    assert "gpu-platform:volcano.queues.team sets guarantee for nvidia" in problem


def test_queue_cycles_and_unknown_parents_are_reported() -> None:
    queues = {"a": {"parent": "b"}, "b": {"parent": "a"}, "c": {"parent": "d"}}
    found = volcano_problems(scheduler={"share": "capacity"}, queues=queues)
    assert any("queues.a.parent is 'b', which makes 'a' its own ancestor" in p for p in found)
    assert any("queues.c.parent is 'd', which is not a queue of this stack" in p for p in found)


def test_jobs_can_use_only_leaf_queues() -> None:
    values = changed("volcano.queues.lab", {"parent": "research"})
    values["volcano"]["scheduler"] = {"share": "capacity"}
    (problem,) = problems(values)
    assert problem.startswith("gpu-platform:training.jobs.digits.queue is 'research', which has")


def test_root_queue_cannot_be_configured() -> None:
    (problem,) = volcano_problems(queues={"root": {}})
    assert "gpu-platform:volcano.queues.root is created by Volcano" in problem


def test_job_that_cannot_reclaim_because_of_its_class_is_reported() -> None:
    classes = {"training": {"value": 100, "preemption": "Never"}, "other": {"value": 200}}
    (problem,) = volcano_problems(scheduler={"reclaim": "gangs"}, priority_classes=classes)
    assert "gpu-platform:training.jobs.digits.priority_class is 'training', whose" in problem


def test_preemption_requires_a_class_that_can_preempt() -> None:
    classes = {"training": {"value": 100, "preemption": "Never"}}
    (problem,) = volcano_problems(scheduler={"preempt": "gangs"}, priority_classes=classes)
    assert "no class under gpu-platform:volcano.priority_classes may preempt" in problem


@pytest.mark.parametrize("stack", ["dev", "simulated", "staging", "prod"])
def test_environments_do_not_override_the_scheduler_configuration(stack: str) -> None:
    file = Path(__file__).parents[3] / f"Pulumi.{stack}.yaml"
    settings = yaml.safe_load(file.read_text())["config"]["gpu-platform:volcano"]
    assert "scheduler_config_override" not in settings.get("values", {}).get("custom", {})
