"""Waiting for runs, with a fake kubectl."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devcluster import DevclusterError
from devcluster.deploy import runs
from devcluster.deploy.runs import (
    Run,
    describe,
    describe_result,
    wait,
    wait_for_sweep,
    wait_scheduled,
)
from gitops import prices
from gitops.errors import GitopsError
from gitops.runs.snapshot import Cluster
from gitops.runs.status import RunStatus, read_runs
from kube.kinds.record import State
from kube.kinds.volcano import TEMPLATE
from kube.names import SWEEP_PARALLEL_ANNOTATION, SWEEP_SUMMARY_ANNOTATION
from tests.gitops.runs.kubectl import install, put
from tests.gitops.runs.objects import (
    GPU,
    batch_job,
    ended,
    group,
    job_flow,
    node,
    pod,
    queue,
    step_job,
    volcano_job,
)

DIGITS = Run("digits", "digits-1", "volcano", "ml", "research", 2, 1)
FINISHED = {"event": "finished", "accuracy": 0.97, "seconds": 12.5}
EPOCH = {"event": "epoch", "epoch": 3, "epochs": 15, "loss": 0.51234, "accuracy": 0.9}


class FakeCluster:
    """A cluster whose objects may change once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubectl = [str(install(folder, ()))]
        self.reports: list[str] = []

    def has(self, *objects: dict[str, Any]) -> None:
        put(self.folder, [*objects, node(), queue()])

    def has_later(self, *objects: dict[str, Any]) -> None:
        put(self.folder, [*objects, node(), queue()], "all.2")

    def after_patch(self, *objects: dict[str, Any]) -> None:
        put(self.folder, [*objects, node(), queue()], "patched")

    def patches(self) -> list[str]:
        return (self.folder / "patches").read_text().splitlines()

    def answers(self, *lists: list[dict[str, Any]]) -> list[str]:
        """Return a kubectl that answers with these lists, one after the other."""
        for number, objects in enumerate(lists):
            put(self.folder, objects, f"list.{number}")
        program = self.folder / "lists"
        program.write_text(
            f"#!/bin/sh\ncd {self.folder}\n"
            '[ ! -e silent ] || { echo "connection refused" >&2; exit 1; }\n'
            'set -- list.*\ncat "$1"\n[ $# = 1 ] || rm "$1"\n'
        )
        program.chmod(0o755)
        return [str(program)]

    def log(self, pod: str, *lines: object) -> None:
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        text = "\n".join(f"2026-01-01T08:10:00Z {line}" for line in texts)
        (self.folder / f"logs-{pod}").write_text(text)

    def wait(self, run: Run = DIGITS) -> RunStatus:
        return wait(self.kubectl, run, self.reports.append)

    def wait_scheduled(self, timeout: float = 120) -> int:
        return wait_scheduled(self.kubectl, DIGITS, self.reports.append, timeout)

    def status(self) -> RunStatus:
        (found,) = read_runs(Cluster(self.kubectl), prices.load(), datetime.now(UTC))
        return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(runs, "POLL_SECONDS", 0.01)
    return FakeCluster(tmp_path)


def ray_job(run: str, status: str) -> dict[str, Any]:
    job = batch_job(run) | {"apiVersion": "ray.io/v1", "kind": "RayJob"}
    return {**job, "status": {"jobDeploymentStatus": status}}


def kubeflow(kind: str, run: str, condition: str) -> dict[str, Any]:
    group = "trainer.kubeflow.org" if kind == "TrainJob" else "kubeflow.org"
    return batch_job(run, condition) | {"apiVersion": f"{group}/v1", "kind": kind}


def test_run_is_parsed_from_the_stack_output() -> None:
    output = {"name": "digits-1", "kind": "volcano", "namespace": "ml", "queue": "research"}
    assert Run.of("digits", {**output, "nodes": 2, "gpusPerNode": 1}) == DIGITS


@pytest.mark.parametrize(
    "job",
    [
        volcano_job("digits-1", "Completed"),
        batch_job("digits-1", "SuccessCriteriaMet", "Complete"),
        kubeflow("PyTorchJob", "digits-1", "Succeeded"),
        kubeflow("TrainJob", "digits-1", "Complete"),
        ray_job("digits-1", "Complete"),
        job_flow("digits-1", "Succeed", prepare="Completed", train="Completed"),
    ],
    ids=lambda job: f"{job['apiVersion']}/{job['kind']}",
)
def test_completed_run_of_every_kind_is_recognized(
    cluster: FakeCluster, job: dict[str, Any]
) -> None:
    cluster.has(job)
    assert cluster.wait().state is State.SUCCEEDED


@pytest.mark.parametrize(
    "job",
    [
        volcano_job("digits-1", "Failed"),
        volcano_job("digits-1", "Terminated"),
        batch_job("digits-1", "Failed"),
        kubeflow("PyTorchJob", "digits-1", "Failed"),
        ray_job("digits-1", "Failed"),
        job_flow("digits-1", "Running", prepare="Completed", train="Terminated"),
    ],
    ids=lambda job: f"{job['apiVersion']}/{job['kind']}",
)
def test_failed_run_of_every_kind_is_reported(cluster: FakeCluster, job: dict[str, Any]) -> None:
    cluster.has(job)
    assert cluster.status().state is State.FAILED
    with pytest.raises(DevclusterError, match="run digits-1 has failed"):
        cluster.wait()


VOLCANO_JOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "digits-1"}


@pytest.mark.parametrize("waiting", ["wait", "wait_scheduled"])
def test_admission_missed_by_volcanos_controllers_is_repeated(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    monkeypatch.setattr(runs, "REPAIR_DELAY_SECONDS", 0.05)
    missed = group("digits-1", "Inqueue")
    missed["metadata"] |= {"ownerReferences": [VOLCANO_JOB]}
    cluster.has(volcano_job("digits-1", "Pending"), missed)
    cluster.after_patch(
        volcano_job("digits-1", "Completed"), *(pod("digits-1", n) for n in range(2))
    )
    getattr(cluster, waiting)()
    (patch,) = cluster.patches()
    assert patch.startswith(f"podgroups.scheduling.volcano.sh {missed['metadata']['name']} ")
    assert '{"status": {"phase": "Pending"}}' in patch


@pytest.mark.parametrize("waiting", ["wait", "wait_scheduled"])
def test_run_is_restarted_if_volcano_missed_its_failed_pod(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, waiting: str
) -> None:
    monkeypatch.setattr(runs, "REPAIR_DELAY_SECONDS", 0.05)
    gang = group("digits-1", "Running", min_member=2)
    gang["metadata"] |= {"ownerReferences": [VOLCANO_JOB]}
    pods = pod("digits-1", 0, "Failed"), pod("digits-1", 1, "Pending")
    cluster.has(volcano_job("digits-1", "Running"), gang, *pods)
    cluster.after_patch(
        volcano_job("digits-1", "Completed"), *(pod("digits-1", n) for n in range(2))
    )
    getattr(cluster, waiting)()
    assert cluster.patches() == ["pods digits-1-worker-0 --namespace=ml"]


def test_waiting_reports_an_aborted_run_as_suspended(cluster: FakeCluster) -> None:
    # Volcano restarts an aborted job only on ResumeJob, so waiting for its end would never return.
    cluster.has(volcano_job("digits-1", "Aborted"), group("digits-1"))
    assert cluster.status().state is State.SUSPENDED
    resume = "`python -m gpu_platform resume digits-1 --namespace ml` resumes it"
    with pytest.raises(DevclusterError, match=f"digits-1 is suspended: {resume}"):
        cluster.wait()


@pytest.mark.parametrize(
    ("phase", "state"), [("Running", State.RUNNING), ("Aborted", State.SUSPENDED)]
)
def test_waiting_for_a_notebook_returns_its_current_state(
    cluster: FakeCluster, phase: str, state: State
) -> None:
    cluster.has(volcano_job("digits-1", phase), group("digits-1"), pod("digits-1"))
    assert cluster.wait(replace(DIGITS, kind="notebook")).state is state


def sweep(**summary: Any) -> dict[str, Any]:
    """A trial template to which the controller has added a summary."""
    bounds = {"objective": {"goal": "maximize", "metric": "accuracy"}, "problem": ""}
    bounds |= {"chosen": 1, "maximum_trials": 4, "gpu_hours": 1, "maximum_gpu_hours": 2}
    bounds |= {"unit": "epochs", "length": 9, "trials": [], **summary}
    annotations = {SWEEP_PARALLEL_ANNOTATION: "2", SWEEP_SUMMARY_ANNOTATION: json.dumps(bounds)}
    labels = {"app.kubernetes.io/name": "digits"}
    metadata = {"name": "digits-sweep", "labels": labels, "annotations": annotations}
    return {"kind": TEMPLATE.kind, "metadata": metadata}


def test_waiting_for_a_sweep_returns_its_winner(cluster: FakeCluster) -> None:
    kubectl = cluster.answers(
        [sweep(state="running")], [sweep(state="complete", winner="digits-1")]
    )
    assert wait_for_sweep(kubectl, "ml", "digits", cluster.reports.append) == "digits-1"
    assert cluster.reports[0].startswith("digits: running, 1 of 4 trials, 1 of 2 GPU-hours")


def test_a_sweep_whose_trials_are_rejected_reports_the_reason(cluster: FakeCluster) -> None:
    rejected = sweep(state="running", problem="exceeded quota")
    kubectl = cluster.answers([rejected], [sweep(state="complete", winner="digits-1")])
    wait_for_sweep(kubectl, "ml", "digits", cluster.reports.append)
    assert "rejected by the API server: exceeded quota" in cluster.reports[0]
    assert "rejected" not in cluster.reports[1]


def test_a_sweep_without_a_finished_trial_has_no_winner(cluster: FakeCluster) -> None:
    trial = {"run": "digits-1", "phase": "failed", "epochs": 0, "value": None}
    trials = [{**trial, "hyperparameters": {}}]
    kubectl = cluster.answers([sweep(state="complete", winner=None, trials=trials)])
    with pytest.raises(DevclusterError, match="none of its trials finished"):
        wait_for_sweep(kubectl, "ml", "digits", cluster.reports.append)


def test_run_suspended_by_its_settings_is_not_awaited(cluster: FakeCluster) -> None:
    cluster.has(batch_job("digits-1", "Suspended"))
    with pytest.raises(DevclusterError, match="is suspended: `state: running` or, for"):
        cluster.wait()


def test_run_with_steps_is_awaited_until_its_last_step_has_ended(cluster: FakeCluster) -> None:
    waits = group("digits-1-1-evaluate", "Inqueue", min_member=1)
    waits["metadata"]["ownerReferences"] = [VOLCANO_JOB | {"name": "digits-1-1-evaluate"}]
    cluster.has(
        job_flow("digits-1", "Running", train="Completed", evaluate="Pending"),
        step_job("digits-1", "evaluate", "Pending"),
        pod("digits-1", 0, "Succeeded", **ended(json.dumps(FINISHED))),
        waits,
    )
    cluster.has_later(
        job_flow("digits-1", "Succeed"),
        pod("digits-1", 0, "Succeeded", **ended(json.dumps(FINISHED))),
    )
    assert describe_result(cluster.wait().progress) == "accuracy 97.00% in 12.5 s"
    first, last = cluster.reports
    assert first.startswith("waiting, evaluate: Volcano admitted the job, but has not created")
    assert last == "succeeded"


def test_result_is_read_from_the_launchers_log(cluster: FakeCluster) -> None:
    launcher = pod("digits-1", 0, "Succeeded")
    launcher["metadata"]["name"] = "digits-1-launcher-0"
    cluster.has(volcano_job("digits-1", "Completed"), launcher)
    cluster.log("digits-1-launcher-0", FINISHED)
    assert describe_result(cluster.status().progress) == "accuracy 97.00% in 12.5 s"


def test_description_of_a_waiting_run_includes_the_reason(cluster: FakeCluster) -> None:
    waits = pod("digits-1", phase="Pending")
    waits["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are unavailable"}
    ]
    cluster.has(
        volcano_job("digits-1", "Pending"), group("digits-1", "Inqueue", min_member=2), waits
    )
    assert describe(cluster.status()) == "waiting: Volcano: 0/1 nodes are unavailable"


def test_description_of_a_running_run_includes_the_progress_of_its_first_pod(
    cluster: FakeCluster,
) -> None:
    master = pod("digits-1")
    master["metadata"]["name"] = "digits-1-master-0"
    cluster.has(volcano_job("digits-1", "Running"), pod("digits-1"), master)
    start = {"event": "start", "epochs": 15}
    cluster.log("digits-1-master-0", start, EPOCH, "warning: [W]", '{"other": 1}')
    assert describe(cluster.status()) == "running, epoch 3 of 15, loss 0.5123"


def test_the_result_of_a_custom_program_is_empty(cluster: FakeCluster) -> None:
    cluster.has(volcano_job("digits-1", "Completed"), pod("digits-1", 0, "Succeeded"))
    cluster.log("digits-1-worker-0", {"event": "finished", "step": 20})
    assert describe_result(cluster.status().progress) == ""
    cluster.log("digits-1-worker-0", {"event": "epoch", "epoch": "1/2"})
    assert describe(cluster.status()) == "succeeded"


def test_waiting_ends_when_the_run_ends(cluster: FakeCluster) -> None:
    cluster.has(volcano_job("digits-1", "Running"), pod("digits-1"))
    cluster.has_later(volcano_job("digits-1", "Completed"), pod("digits-1", 0, "Succeeded"))
    cluster.log("digits-1-worker-0", FINISHED)
    assert cluster.wait().state is State.SUCCEEDED
    assert cluster.reports == ["running", "succeeded"]


def test_failed_run_is_reported_with_the_last_log_line_of_every_pod(cluster: FakeCluster) -> None:
    pods = [pod("digits-1", number, "Failed") for number in range(2)]
    cluster.has(volcano_job("digits-1", "Failed"), *pods)
    cluster.log("digits-1-worker-0", "no data")
    cluster.log("digits-1-worker-1", "connection closed by peer")
    with pytest.raises(DevclusterError) as caught:
        cluster.wait()
    assert str(caught.value).splitlines() == [
        "run digits-1 has failed:",
        "no data",
        "connection closed by peer",
    ]


def test_failed_run_without_pods_is_reported_with_the_jobs_reason(cluster: FakeCluster) -> None:
    job = volcano_job("digits-1", "Failed", retryCount=3)
    job["spec"]["maxRetry"] = 3
    cluster.has(job)
    with pytest.raises(
        DevclusterError, match=r"failed:\nVolcano Job: 3 of 3 restarts are used up$"
    ):
        cluster.wait()


def test_waiting_fails_if_the_run_was_removed(cluster: FakeCluster) -> None:
    cluster.has(volcano_job("other", "Running"))
    with pytest.raises(DevclusterError, match="digits-1 no longer exists in ml"):
        cluster.wait()


@pytest.mark.parametrize("function", [wait, wait_scheduled, wait_for_sweep])
def test_waiting_survives_a_brief_api_server_outage(
    cluster: FakeCluster, function: Callable[..., object]
) -> None:
    cluster.has(volcano_job("digits-1", "Completed"), pod("digits-1"), pod("digits-1", 1))
    (cluster.folder / "silent").touch()

    def report(line: str) -> None:
        cluster.reports.append(line)
        (cluster.folder / "silent").unlink(missing_ok=True)

    if function is wait_for_sweep:
        kubectl = cluster.answers([sweep(state="complete", winner="digits-1")])
        assert wait_for_sweep(kubectl, "ml", "digits", report) == "digits-1"
    else:
        function(cluster.kubectl, DIGITS, report)
    assert cluster.reports[0].endswith(": connection refused")
    assert len(cluster.reports) == 2


def test_waiting_fails_after_a_long_api_server_outage(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "OUTAGE_SECONDS", 0.05)
    (cluster.folder / "silent").touch()
    with pytest.raises(GitopsError, match="connection refused"):
        cluster.wait()


def test_a_gang_is_scheduled_when_every_pod_has_a_node(cluster: FakeCluster) -> None:
    cluster.has(pod("digits-1"), pod("digits-1", 1, "Pending"))
    cluster.has_later(pod("digits-1"), pod("digits-1", 1))
    assert cluster.wait_scheduled() == 2
    assert cluster.reports == ["1 of 2 pods are scheduled", "2 of 2 pods are scheduled"]


def test_pods_of_steps_are_not_counted_as_part_of_the_gang(cluster: FakeCluster) -> None:
    step = pod("digits-1", 2, "Succeeded")
    step["metadata"]["labels"] |= {"volcano.sh/task-spec": "step"}
    cluster.has(step, pod("digits-1"))
    cluster.has_later(step, pod("digits-1"), pod("digits-1", 1))
    assert cluster.wait_scheduled() == 2
    assert cluster.reports == ["1 of 2 pods are scheduled", "2 of 2 pods are scheduled"]


def test_waiting_ends_if_the_pods_of_a_succeeded_run_were_deleted(cluster: FakeCluster) -> None:
    """Kubernetes deletes the pods of a deleted node."""
    cluster.has(volcano_job("digits-1", "Completed"), pod("digits-1", phase="Succeeded"))
    assert cluster.wait_scheduled(timeout=1) == 2


def test_unscheduled_gang_is_reported_with_the_reasons(cluster: FakeCluster) -> None:
    pods = [pod("digits-1", number, "Pending") for number in range(2)]
    job, gang = volcano_job("digits-1", "Pending"), group("digits-1", "Inqueue", min_member=2)
    put(cluster.folder, [job, gang, *pods, node(gpus=2), queue()])
    reason = f"was not scheduled within 0 s: requests 4 {GPU}, but the cluster has only 2"
    with pytest.raises(DevclusterError, match=reason):
        cluster.wait_scheduled(timeout=0.05)
