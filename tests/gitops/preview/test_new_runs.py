"""Cost of the runs that an update would start, and whether they wait in their queue."""

from typing import Any

import pytest

from gitops import prices
from gitops.preview.build import build
from gitops.preview.markdown import render
from gitops.preview.report import Report
from tests.gitops import plans
from tests.gitops.runs.objects import job_flow
from tests.infra import jobs

A800 = "NVIDIA-A800-SXM4-80GB"


def report(*steps: dict[str, Any]) -> Report:
    return build(plans.plan(*steps), stack="prod", prices=prices.load())


def run(name: str = "run-11111111", **fields: Any) -> plans.Manifest:
    return plans.volcano_job(name, **{"pods": 2, "gpus": 8, "product": A800, **fields})


def indexed(deadline: int | None, **fields: Any) -> plans.Manifest:
    labels = {"gpu-platform.dev/workload": "training"}
    template = {"metadata": {"labels": labels}, "spec": plans.pod(gpus=4, product=A800, **fields)}
    limit = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": plans.metadata("digits-11111111"),
        "spec": {"completions": 2, "parallelism": 2, "template": template, **limit},
    }


def test_a_new_run_costs_its_gpus_until_its_deadline() -> None:
    (row,) = report(plans.step("create", new=indexed(7200))).new_runs
    assert (row.run, row.gpus, row.hours, row.each_attempt) == ("digits-11111111", 8, 2, False)
    assert float(row.cost or 0) == pytest.approx(8 * 2 * 2.40)


def test_pod_deadline_limits_each_attempt() -> None:
    found = report(plans.step("create", new=run(activeDeadlineSeconds=36_000)))
    (row,) = found.new_runs
    assert (row.queue, row.hours, row.each_attempt) == ("research", 10, True)
    line = "| `run-11111111` | `research` | 16 | 38.40 | 10 h each attempt | 384.00 each attempt |"
    assert line in render(found)


def test_a_long_deadline_is_written_in_days() -> None:
    assert "| 3 days each attempt |" in render(
        report(plans.step("create", new=run(activeDeadlineSeconds=259_200)))
    )


@pytest.mark.parametrize(
    "job", [indexed(None), run(activeDeadlineSeconds=60, product="NVIDIA-B200")]
)
def test_cost_is_unknown_without_a_deadline_or_price(job: plans.Manifest) -> None:
    found = report(plans.step("create", new=job))
    assert found.new_runs[0].cost is None
    assert render(found).split("### New runs")[1].split("\n")[4].endswith("| unknown |")


def test_cost_includes_devices_of_existing_claim_templates() -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": plans.metadata("gpus"),
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    job = run(gpus=0)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    (row,) = report(plans.same(template), plans.step("create", new=job)).new_runs
    assert (row.gpus, float(row.cost_hour or 0)) == (8, pytest.approx(8 * 2.40))


def test_running_and_suspended_jobs_are_not_new_runs() -> None:
    suspended = indexed(60)
    suspended["spec"]["suspend"] = True
    assert report(plans.same(run()), plans.step("create", new=suspended)).new_runs == []


def test_a_resumed_job_is_listed_with_its_cost() -> None:
    suspended, resumed = indexed(7200), indexed(7200)
    suspended["spec"]["suspend"] = True
    (row,) = report(plans.step("update", suspended, resumed)).new_runs
    assert (row.run, row.gpus, row.hours) == ("digits-11111111", 8, 2)
    assert report(plans.step("update", resumed, suspended)).new_runs == []


def test_run_waits_while_an_earlier_run_holds_the_queue() -> None:
    steps = [
        plans.same(plans.queue(gpus=16)),
        plans.step("delete", run("run-00000000"), retain=True),
        plans.step("create", new=run()),
    ]
    (text,) = report(*steps).waiting
    assert text == (
        "Queue `research` allows 16 `nvidia.com/gpu`, but 32 are requested, 16 of them for "
        "earlier runs that may continue: `run-11111111` will wait until other runs finish."
    )
    steps[0] = plans.same(plans.queue(gpus=32))
    assert report(*steps).waiting == []


def test_run_may_be_rejected_while_an_earlier_run_uses_the_quota() -> None:
    quota = plans.quota(**{"requests.nvidia.com/gpu": "31", "pods": "1", "limits.cpu": "1"})
    steps = [
        plans.same(plans.queue(gpus=32)),
        plans.same(quota),
        plans.step("delete", run("run-00000000"), retain=True),
        plans.step("create", new=run()),
    ]
    (text,) = report(*steps).waiting
    assert text == (
        "The quota of ml allows 31 `requests.nvidia.com/gpu`, but 32 are requested, 16 of them for "
        "earlier runs that may continue: the API server may reject pods of `run-11111111`. Volcano "
        "terminates a Volcano Job after about three minutes without its pods; jobs of other kinds "
        "wait."
    )
    # A run that waits in its queue has no pods.
    steps[0] = plans.same(plans.queue(gpus=16))
    (text,) = report(*steps).waiting
    assert text.startswith("Queue")


def test_moved_run_waits_for_its_earlier_run_only_in_the_same_cluster() -> None:
    moved = run()
    moved["metadata"] = {**moved["metadata"], "namespace": "ml2"}
    steps = [
        plans.same(plans.queue(gpus=16)),
        plans.step("replace", run(), moved, retain=True, keys=["metadata.namespace"]),
    ]
    (text,) = report(*steps).waiting
    assert "16 of them for earlier runs that may continue: `run-11111111` will wait" in text
    steps[1] = plans.step("replace", run(), run(), retain=True, keys=["provider"])
    found = report(*steps)
    assert found.waiting == []
    assert found.held_by_earlier_runs == {"research": 16}
    # A run deleted from the old cluster holds no GPUs in the new cluster.
    queue = plans.queue(gpus=16)
    steps = [
        plans.step("replace", queue, queue, keys=["provider"]),
        plans.step("delete", run("run-00000000"), retain=True),
        plans.step("create", new=run()),
    ]
    assert report(*steps).waiting == []


def test_a_run_waits_if_its_queue_is_too_small_for_the_stack() -> None:
    other = run("other-00000000")
    found = report(
        plans.same(plans.queue(gpus=16)), plans.same(other), plans.step("create", new=run())
    )
    assert "but 32 are requested: `run-11111111` will wait" in found.waiting[0]
    assert f"- {found.waiting[0]}" in render(found)


@pytest.mark.parametrize(("phase", "waits"), [("Running", True), ("Completed", False)])
def test_a_run_does_not_wait_for_finished_runs_of_the_stack(phase: str, waits: bool) -> None:
    other = plans.same(run("other-00000000"), outputs={"status": {"state": {"phase": phase}}})
    steps = [plans.same(plans.queue(gpus=16)), other, plans.step("create", new=run())]
    assert bool(report(*steps).waiting) is waits


@pytest.mark.parametrize(
    ("phase", "prepare", "train", "waits"),
    [
        ("Succeed", "Completed", "Completed", False),
        ("Running", "Completed", "Running", True),
        ("Running", "Running", None, True),
        ("Running", "Completed", "Failed", False),
        ("Running", "Failed", None, False),
    ],
)
def test_a_run_does_not_wait_for_finished_steps(
    phase: str, prepare: str, train: str | None, waits: bool
) -> None:
    *templates, flow = jobs.objects(
        jobs.job("volcano", steps={"prepare": {"command": ["true"]}}, after=["prepare"], nodes=2)
    )
    states = {"prepare": prepare} if train is None else {"prepare": prepare, "train": train}
    outputs = job_flow("job-0123abcd", phase, **states)
    steps = [
        plans.same(plans.queue(gpus=2)),
        *map(plans.same, templates),
        plans.same(flow, outputs=outputs),
        plans.step("create", new=run(gpus=1)),
    ]
    assert bool(report(*steps).waiting) is waits
    removed = [plans.step("delete", old, retain=True) for old in templates]
    removed.append(plans.step("delete", flow, retain=True, outputs=outputs))
    found = report(*removed)
    assert bool(found.held_by_earlier_runs) is waits
    assert any("If it is still running" in text for text in found.impacts) is waits


def test_a_run_waits_if_a_parent_of_its_queue_is_too_small() -> None:
    earlier, other = run("run-00000000"), run("other-00000000")
    earlier["spec"]["queue"] = other["spec"]["queue"] = "vision"
    steps = [
        plans.same(plans.queue("science", gpus=40)),
        plans.same(plans.queue("research", gpus=40, parent="science")),
        plans.same(plans.queue("vision", gpus=40, parent="science")),
        plans.step("delete", earlier, retain=True),
        plans.same(other),
        plans.step("create", new=run()),
    ]
    (text,) = report(*steps).waiting
    assert text == (
        "Queue `science` allows 40 `nvidia.com/gpu`, but 48 are requested, 16 of them for "
        "earlier runs that may continue: `run-11111111` will wait until other runs finish."
    )
    steps[0] = plans.same(plans.queue("science", gpus=48))
    assert report(*steps).waiting == []


def test_a_full_queue_without_new_runs_is_not_mentioned() -> None:
    assert report(plans.same(plans.queue(gpus=8)), plans.same(run())).waiting == []


def test_cost_of_earlier_runs_is_reported() -> None:
    found = report(plans.step("delete", run(), retain=True), plans.same(run("other")))
    assert float(found.held_cost_hour or 0) == pytest.approx(16 * 2.40)
    assert (
        "may hold 16 more GPUs in `research` until they end.\nTheir cost per hour: 38.40."
        in render(found)
    )


def test_unknown_price_is_not_shown_as_a_saving() -> None:
    old, new = (plans.deployment(product=product) for product in ("NVIDIA-L4", "NVIDIA-B200"))
    comment = render(report(plans.step("update", old, new)))
    assert "| per hour, all GPUs busy | 1.50 | unknown | unknown |" in comment
    assert "Not in the price table: `NVIDIA-B200`." in comment


def test_a_sweep_costs_its_budget_and_counts_its_parallel_trials() -> None:
    job = run("digits-sweep")
    bounds = {"parallel": "3", "trials": "24", "gpu-hours": "12", "expected-share": "0.41"}
    annotations = {f"gpu-platform.dev/sweep-{name}": value for name, value in bounds.items()}
    kind = {"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobTemplate"}
    labels = {"gpu-platform.dev/workload": "training"}
    metadata = {**job["metadata"], "annotations": annotations, "labels": labels}
    found = report(plans.step("create", new={**job, **kind, "metadata": metadata}))
    (row,) = found.new_runs
    assert (row.gpus, row.gpu_hours) == (3 * 16, 12)
    assert float(row.cost or 0) == pytest.approx(12 * 2.40)
    text = render(found)
    assert "| `digits-sweep` | `research` | 48 | 115.20 | 12 GPU-hours | 28.80 |" in text
    assert "Its trials are expected to run 41% of their epochs or steps." in text


@pytest.mark.parametrize("gpus", [1, 4])
def test_new_notebook_shows_its_hourly_cost(gpus: int) -> None:
    created = jobs.objects(jobs.job("notebook", gpus_per_node=gpus, gpu_product=A800))
    (row,) = report(*(plans.step("create", new=made) for made in created)).new_runs
    assert (row.run, row.queue, row.gpus) == ("job-0123abcd", "research", gpus)
    assert float(row.cost_hour or 0) == pytest.approx(gpus * 2.40)


def test_a_run_with_steps_is_listed_by_its_name() -> None:
    steps = {"prepare": {"command": ["true"]}}
    created = jobs.objects(jobs.job("volcano", steps=steps, after=["prepare"], gpu_product=A800))
    found = report(*(plans.step("create", new=made) for made in created))
    assert [row.run for row in found.new_runs] == ["job-0123abcd (train)"]
