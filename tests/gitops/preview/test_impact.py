from decimal import Decimal
from typing import Any

import pytest

from gitops.preview.changes import Change, changes
from gitops.preview.impact import earlier_runs, gpus_by_queue, impacts
from infra.inference_service import routes
from tests.gitops import plans
from tests.infra import jobs
from tests.infra.serving import examples


def texts_of(*steps: dict[str, Any]) -> list[str]:
    return [impact.text for impact in impacts(changes(plans.plan(*steps).steps))]


def held_by_earlier_runs(found: list[Change]) -> dict[str, Decimal]:
    return gpus_by_queue(earlier_runs(found))


def test_impacts_are_sorted_by_severity() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": plans.metadata("digits")}
    texts = texts_of(
        plans.step("delete", service),
        plans.step("delete", plans.volcano_job()),
        plans.step("delete", plans.queue()),
        plans.step("delete", plans.deployment()),
        plans.step("delete", plans.claim()),
    )
    first = [text.split("`")[0].strip() for text in texts]
    assert first == ["Claim", "Queue", "Training run", "Deployment", "Service"]


def test_creations_and_updates_have_no_impact() -> None:
    job = plans.volcano_job()
    assert texts_of(plans.step("create", new=job), plans.same(plans.claim())) == []
    assert texts_of(plans.step("update", job, plans.volcano_job(pods=3))) == []


def test_replaced_claim_states_the_reason_and_the_data_loss() -> None:
    step = plans.step(
        "replace", plans.claim(), plans.claim(volume="other"), keys=["spec.volumeName"]
    )
    (text,) = texts_of(step)
    assert "Claim `checkpoints` is replaced, because `spec.volumeName` cannot be changed" in text
    assert "Its data is lost unless the reclaim policy of its volume is `Retain`" in text


def test_impact_of_a_retained_claim_depends_on_its_replacement() -> None:
    step = plans.step("replace", plans.claim(), plans.claim(volume="other"), retain=True)
    (text,) = texts_of(step)
    assert "the cluster rejects a second one" in text
    step = plans.step("replace", plans.claim(), plans.claim("next"), name="claim", retain=True)
    (text,) = texts_of(step)
    assert "Claim `checkpoints` is replaced" in text
    assert "Pods use the new claim `next`" in text
    (text,) = texts_of(plans.step("delete", plans.claim(), retain=True))
    assert "is removed from the stack but stays in the cluster. Its data is kept" in text


def test_impact_states_that_a_claim_is_protected() -> None:
    (text,) = texts_of(plans.step("delete", plans.claim(), protect=True))
    assert "It is protected: the update is rejected" in text
    step = plans.step("replace", plans.claim(), plans.claim(volume="other"), protect=True)
    assert "the update is rejected" in texts_of(step)[0]
    step["resourcePreEvent"]["metadata"]["new"]["protect"] = False
    assert "the same change removes the protection" in texts_of(step)[0]


@pytest.mark.parametrize(("policy", "message"), [("Delete", "is deleted."), ("Retain", "keeps")])
def test_impact_of_a_deleted_volume_depends_on_its_reclaim_policy(
    policy: str, message: str
) -> None:
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "shared"},
        "spec": {"persistentVolumeReclaimPolicy": policy},
    }
    assert message in texts_of(plans.step("delete", volume))[0]


def test_retained_run_holds_its_gpus_until_it_ends() -> None:
    step = plans.step("delete", plans.volcano_job(pods=2, gpus=4), retain=True)
    assert "it continues and holds 8 GPUs" in texts_of(step)[0]
    small = plans.step("delete", plans.volcano_job(pods=1, gpus=1), retain=True)
    assert "it continues and holds 1 GPU until" in texts_of(small)[0]
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) == {"research": 8}


def test_removed_run_that_is_suspended_is_not_reported_to_continue() -> None:
    job = plans.volcano_job()
    batch_job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": job["metadata"],
        "spec": {"suspend": True, "template": job["spec"]["tasks"][0]["template"]},
    }
    (text,) = texts_of(plans.step("delete", batch_job, retain=True))
    assert "It is suspended and remains so: delete it" in text
    assert "continues" not in text


@pytest.mark.parametrize(
    ("namespace", "key", "place"),
    [
        ("ml2", "metadata.namespace", "in the `ml2` namespace"),
        ("ml", "provider", "in the new cluster"),
    ],
)
def test_run_moved_elsewhere_continues_and_a_second_one_starts(
    namespace: str, key: str, place: str
) -> None:
    job = plans.volcano_job(pods=2, gpus=4)
    new = {**job, "metadata": {**job["metadata"], "namespace": namespace}}
    step = plans.step("replace", job, new, retain=True, keys=[key])
    (text,) = texts_of(step)
    assert "it continues and holds 8 GPUs" in text
    assert "deletes its service account, so the run fails the next time it needs pods" in text
    assert f"A second run starts under the same name {place}." in text
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) == {"research": 8}


def test_finished_run_moved_elsewhere_starts_again() -> None:
    outputs = {"status": {"state": {"phase": "Completed"}}}
    job = plans.volcano_job()
    new = {**job, "metadata": {**job["metadata"], "namespace": "ml2"}}
    step = plans.step("replace", job, new, outputs=outputs, retain=True)
    (text,) = texts_of(step)
    assert "It had already succeeded" in text
    assert "A second run starts" in text
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) == {}


def test_run_replaced_without_retention_is_killed() -> None:
    job = plans.volcano_job()
    step = plans.step("replace", job, job, keys=["metadata.namespace"])
    (text,) = texts_of(step)
    assert "it is killed" in text
    assert "second run" not in text
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) == {}


def test_killed_run_loses_progress_since_its_last_checkpoint() -> None:
    (text,) = texts_of(plans.step("delete", plans.volcano_job()))
    assert "it is killed, and the work since its last checkpoint is lost" in text


def test_finished_run_loses_no_work_and_holds_no_gpus() -> None:
    outputs = {"status": {"state": {"phase": "Completed"}}}
    step = plans.step("delete", plans.volcano_job(), outputs=outputs, retain=True)
    assert "It had already succeeded" in texts_of(step)[0]
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) == {}


@pytest.mark.parametrize(
    ("phase", "ended"),
    [("Running", False), ("Aborted", False), ("Terminated", True), ("Terminating", True)],
)
def test_only_finished_runs_release_their_gpus(phase: str, ended: bool) -> None:
    outputs = {"status": {"state": {"phase": phase}}}
    step = plans.step("delete", plans.volcano_job(), outputs=outputs, retain=True)
    assert (held_by_earlier_runs(changes(plans.plan(step).steps)) == {}) is ended


@pytest.mark.parametrize("status", [None, "?", {}])
def test_run_with_unreadable_status_counts_as_running(status: Any) -> None:
    step = plans.step("delete", plans.volcano_job(), outputs={"status": status}, retain=True)
    assert held_by_earlier_runs(changes(plans.plan(step).steps)) != {}


def test_removed_step_is_reported_with_the_name_of_its_run() -> None:
    steps = {"evaluate": {"command": ["true"], "gpus": 1}}
    objects = jobs.objects(jobs.job("volcano", steps=steps), "digits-1a2b3c4d")
    texts = texts_of(*(plans.step("delete", each, retain=True) for each in objects))
    assert [text.split(" is removed")[0] for text in texts] == [
        "Training run `digits-1a2b3c4d (evaluate)`",
        "Training run `digits-1a2b3c4d (train)`",
    ]


def test_deleted_notebook_loses_its_kernels_unless_it_has_finished() -> None:
    *_, notebook = jobs.objects(jobs.job("notebook", gpus_per_node=1), "anna-1a2b3c4d")
    (text,) = texts_of(plans.step("delete", notebook))
    assert text == (
        "Notebook `anna-1a2b3c4d` is deleted. If it is still running, its kernels are terminated, "
        "and unsaved changes are lost."
    )
    outputs = {"status": {"state": {"phase": "Completed"}}}
    (text,) = texts_of(plans.step("delete", notebook, outputs=outputs))
    assert text.endswith("It had already succeeded when the stack's state was last refreshed.")


def test_objects_of_a_retained_run_are_not_reported_separately() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": plans.metadata("run-00000000")}
    assert texts_of(plans.step("delete", service, retain=True)) == []


def sized(storage: str) -> plans.Manifest:
    claim = plans.claim("checkpoints")
    claim["spec"]["resources"]["requests"]["storage"] = storage
    return claim


def moved(manifest: plans.Manifest) -> plans.Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": "research"}}


def test_shrinking_claim_is_reported_but_growing_claim_is_not() -> None:
    (text,) = texts_of(plans.step("update", sized("50Ti"), sized("1Ti")))
    assert "Claim `checkpoints` shrinks from 50Ti to 1Ti" in text
    assert "Kubernetes rejects" in text
    assert texts_of(plans.step("update", sized("1Ti"), sized("50Ti"))) == []


def test_growing_claim_without_a_storage_class_is_reported() -> None:
    now, later = sized("5Gi"), sized("6Gi")
    now["spec"]["storageClassName"] = later["spec"]["storageClassName"] = ""
    (text,) = texts_of(plans.step("update", now, later))
    assert "Claim `checkpoints` grows from 5Gi to 6Gi, which Kubernetes rejects" in text
    assert texts_of(plans.step("update", later, later)) == []


def test_renamed_claim_is_reported_as_empty() -> None:
    texts = texts_of(
        plans.step("delete", plans.claim("old"), retain=True),
        plans.step("create", new=plans.claim("new")),
    )
    assert any("Claim `new` is new and empty, and claim `old` is removed" in text for text in texts)
    assert texts_of(plans.step("create", new=plans.claim("new"))) == []


def test_run_of_a_renamed_job_is_reported_to_start_from_the_beginning() -> None:
    def renamed(name: str) -> bool:
        texts = texts_of(
            plans.step("delete", plans.volcano_job("old-00000000"), retain=True),
            plans.step("create", new=plans.volcano_job(name)),
        )
        expected = (
            f"`{name}` starts from the beginning, although it has the settings of the removed"
        )
        return any(expected in text for text in texts)

    assert renamed("new-00000000")
    assert not renamed("new-11111111")


def test_claim_moved_to_another_namespace_is_reported_as_empty() -> None:
    (text,) = texts_of(plans.step("replace", plans.claim(), moved(plans.claim()), retain=True))
    assert "Pods use the new claim `checkpoints` in `research`, which is empty" in text
    assert "refuses" not in text


def test_new_claim_for_the_volume_of_a_bound_claim_is_reported() -> None:
    bound = {**plans.claim(), "status": {"phase": "Bound"}}
    step = plans.step("replace", plans.claim(), moved(plans.claim()), outputs=bound, retain=True)
    (text,) = texts_of(step)
    assert "The new claim is never bound, because its volume `shared` stays bound to" in text
    assert "empty" not in text
    steps = [
        plans.step("delete", plans.claim(), outputs=bound, retain=True),
        plans.step("create", new=plans.claim("new")),
    ]
    _, text = texts_of(*steps)
    assert "Claim `new` is never bound, because its volume `shared` stays bound to claim" in text
    # The claim returns to the volume that it was bound to before.
    pending = {**plans.claim(), "status": {"phase": "Pending"}}
    step = plans.step("replace", plans.claim(), moved(plans.claim()), outputs=pending, retain=True)
    assert not any("never bound" in text for text in texts_of(step))


def serving(run: str) -> plans.Manifest:
    deployment = plans.deployment()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "RUN_NAME", "value": run}]
    return deployment


def test_server_of_an_untrained_run_is_reported() -> None:
    started = plans.step("create", new=plans.volcano_job("run-11111111"))
    server_update = plans.step("update", serving("run-00000000"), serving("run-11111111"))
    (text,) = texts_of(started, server_update)
    assert "Deployment `digits` will serve run `run-11111111`" in text
    assert "which this change starts" in text
    # An existing run may have been trained already.
    assert texts_of(plans.same(plans.volcano_job("run-11111111")), server_update) == []


def sweep_template(trials: int) -> plans.Manifest:
    template = {**plans.volcano_job("digits-sweep"), "kind": "JobTemplate"}
    template["apiVersion"] = "flow.volcano.sh/v1alpha1"
    bounds = {"gpu-platform.dev/sweep-parallel": "1", "gpu-platform.dev/sweep-trials": trials}
    template["metadata"]["annotations"] = bounds
    return template


def test_trials_of_a_removed_sweep_continue() -> None:
    (text,) = texts_of(plans.step("delete", sweep_template(8)))
    assert text == (
        "Sweep `digits-sweep` is deleted. Its trials stay in the cluster, and running trials "
        "continue and hold their GPUs until they end. `python -m gpu_platform stop` stops them."
    )


def test_server_of_a_changed_sweeps_winner_is_reported() -> None:
    def serving_winner(link: str) -> plans.Manifest:
        deployment = serving(link)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        container["env"] = [
            {"name": "SWEEP_NAME", "value": "digits-sweep"},
            {"name": "INFERENCE_MODEL_PATH", "value": link},
        ]
        return deployment

    server_update = plans.step("update", serving_winner("a"), serving_winner("b"))
    (text,) = texts_of(plans.step("update", sweep_template(8), sweep_template(9)), server_update)
    assert "Deployment `digits` serves the winner of sweep `digits-sweep`" in text
    assert texts_of(plans.same(sweep_template(8)), server_update) == []


def test_stopped_run_is_reported_as_permanently_stopped() -> None:
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": plans.metadata("run-00000000"),
        "action": "TerminateJob",
        "target": {"kind": "Job", "name": "run-00000000"},
    }
    (text,) = texts_of(plans.step("create", new=command))
    assert text.startswith("Training run `run-00000000` is stopped permanently")
    assert texts_of(plans.same(command)) == []


def test_deleted_namespace_is_reported_with_its_content() -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
    assert "including claims and their data" in texts_of(plans.step("delete", space))[0]
    assert "Its content is kept" in texts_of(plans.step("delete", space, retain=True))[0]


def test_suspending_a_run_is_reported_but_resuming_is_not() -> None:
    job = {**plans.volcano_job(), "apiVersion": "batch/v1"}
    halted = {**job, "spec": {**job["spec"], "suspend": True}}
    (text,) = texts_of(plans.step("update", job, halted))
    assert "Training run `run-00000000` is suspended: its pods are terminated" in text
    assert texts_of(plans.step("update", halted, job), plans.step("update", halted, halted)) == []


@pytest.mark.parametrize(
    "kept",
    [
        plans.queue(),
        plans.deployment(),
        {"apiVersion": "helm.sh/v3", "kind": "Release", "metadata": {"name": "volcano"}},
    ],
    ids=lambda kept: kept["kind"],
)
def test_retained_object_has_no_other_impact(kept: dict[str, Any]) -> None:
    (text,) = texts_of(plans.step("delete", kept, retain=True))
    assert text.endswith("is removed from the stack but stays in the cluster.")


def scheduled(run: str = "job-0123abcd", **changes: Any) -> list[dict[str, Any]]:
    """Return the template and the CronJob of a scheduled job."""
    schedule = {"cron": "0 3 * * *", "image": "recorder", **changes}
    objects = jobs.objects(jobs.job("volcano", schedule=schedule), run)
    return [objects[0], objects[-1]]


def test_a_suspended_schedule_does_not_affect_an_active_run() -> None:
    (_, before), (_, after) = scheduled(), scheduled(suspend=True)
    (text,) = texts_of(plans.step("update", before, after))
    assert text.startswith("CronJob `job-schedule` is suspended")
    assert "terminated" not in text


def test_a_changed_schedule_does_not_affect_an_active_run() -> None:
    (old, before), (new, after) = scheduled(), scheduled("job-9999aaaa")
    created = [plans.step("delete", old), plans.step("create", new=new)]
    assert texts_of(*created, plans.step("update", before, after)) == []
    first, _ = texts_of(plans.step("delete", old), plans.step("delete", before))
    assert "it is killed" in first


def test_object_that_an_unfinished_replacement_will_delete_is_reported() -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": plans.metadata("default-deny"),
    }
    pending = plans.step("delete-replaced", policy)
    reverted = [
        plans.step("replace", moved(policy), policy, keys=["metadata.namespace"]),
        plans.step("delete-replaced", moved(policy)),
    ]
    text, _ = texts_of(*reverted, pending)
    assert text.startswith("`NetworkPolicy default-deny in ml` is deleted at the end of the")
    assert "pulumi up --refresh" in text
    assert texts_of(plans.same(policy), pending) == [text]
    # The replacement continues, the object is kept, or the engine deletes it before it creates it.
    assert texts_of(plans.same(moved(policy)), pending) == []
    assert texts_of(plans.same(policy), plans.step("delete-replaced", policy, retain=True)) == []
    (text,) = texts_of(plans.step("replace", policy, policy, keys=["spec"]), pending)
    assert "at the end" not in text


def test_object_that_an_unfinished_move_will_delete_is_reported_if_the_move_is_reverted() -> None:
    queue = plans.queue()
    pending = plans.step("delete-replaced", queue, provider="first")
    moved = plans.step("delete-replaced", queue, provider="second")
    assert texts_of(plans.same(queue, provider="second"), pending) == []
    reverted = plans.step("replace", queue, queue, keys=["provider"], provider="second")
    assert not any("at the end" in text for text in texts_of(reverted, moved))
    text, _ = texts_of(reverted, moved, pending)
    assert text.startswith(f"`Queue {queue['metadata']['name']}` is deleted at the end")


def test_deleted_queue_warns_about_runs_that_continue_in_it() -> None:
    (text,) = texts_of(plans.step("delete", plans.queue()))
    assert "A run that stays in the queue fails the next time it needs pods" in text


def test_deleted_priority_class_warns_about_runs_that_still_use_it() -> None:
    metadata = {"name": "training"}
    resource = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata}
    run = plans.step("delete", plans.volcano_job(), retain=True)
    text, last = texts_of(run, plans.step("delete", resource))
    assert text.startswith("PriorityClass `training` is deleted. Kubernetes rejects new pods")
    assert last.startswith("Training run")
    (text,) = texts_of(plans.step("replace", resource, resource, keys=["provider"]))
    assert "rejects" not in text


@pytest.mark.parametrize("operation", ["delete", "replace"])
def test_removed_chart_warns_about_its_custom_resources(operation: str) -> None:
    release = {"apiVersion": "helm.sh/v3", "kind": "Release", "metadata": {"name": "volcano"}}
    new = release if operation == "replace" else None
    (text,) = texts_of(plans.step(operation, release, new, keys=["namespace"]))
    assert text.startswith("Chart release `volcano` is ")
    assert "custom resource definitions may be deleted as well" in text


@pytest.mark.parametrize("weight", [20, 0])
def test_requests_do_not_fail_when_a_routed_canary_is_removed(weight: int) -> None:
    settings: dict[str, Any] = {"job": None, "run": "digits-0123abcd", "route": examples.GATEWAY}
    before = examples.serving(**settings, canary={**examples.CANARY, "weight": weight})
    (old,), (new,) = routes(before), routes(examples.serving(**settings))
    canary = examples.canary_objects(before)["Deployment"]
    change = plans.step("update", old, new) if old != new else plans.same(new)
    (text,) = texts_of(change, plans.step("delete", canary))
    assert text == (
        "Deployment `digits-canary` is deleted. Before that, its route is changed to send all "
        "requests to the stable version."
    )
    (text,) = texts_of(plans.step("delete", canary))
    assert "Requests fail" in text


def test_requests_do_not_fail_when_a_canary_with_an_ingress_is_removed() -> None:
    route = {"ingress": {"class_name": "nginx"}, "hostnames": ["digits.example.com"]}
    args = examples.serving(job=None, run="digits-0123abcd", route=route, canary=examples.CANARY)
    stable, weighted = routes(args)
    canary = examples.canary_objects(args)["Deployment"]
    removed = [plans.step("delete", weighted), plans.step("delete", canary)]
    text, _ = texts_of(plans.same(stable), *removed)
    assert text.startswith("Deployment `digits-canary` is deleted. Before that, its route")
    text, *_ = texts_of(plans.step("delete", stable), *removed)
    assert "Requests fail" in text
