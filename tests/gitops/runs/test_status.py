"""The status of runs, read through a stand-in for kubectl."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gitops import prices
from gitops.__main__ import main
from gitops.errors import GitopsError
from gitops.prices import Prices
from gitops.runs.snapshot import Cluster, Snapshot
from gitops.runs.status import RunStatus, Usage, read_runs, usage
from gitops.runs.waiting import waiting
from infra.manifests import RECORDER, standard_labels
from kube.kinds.record import State
from tests.gitops.runs.kubectl import forbid, install
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

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
LOG = "\n".join(
    [
        '2026-01-01T08:10:00.123456789Z {"event": "start", "epochs": 4}',
        '2026-01-01T09:10:00.123456789Z {"event": "epoch", "epoch": 1, "epochs": 4, "loss": 0.5}',
    ]
)
PRICES = Prices.model_validate(
    {
        "currency": "USD",
        "products": {"NVIDIA-L4": {"on_demand": "0.75", "spot": "0.30"}},
        "shares": {"nvidia.com/mig-1g.10gb": "0.25"},
        "spot_labels": {"karpenter.sh/capacity-type": "spot"},
    }
)


def cluster_of(folder: Path, *objects: dict[str, Any], names: Sequence[str] = ()) -> Cluster:
    """Return a cluster with these objects, in which all pods have the same log."""
    return Cluster([str(install(folder, objects, log=LOG, names=names))])


def single_run(cluster: Cluster) -> RunStatus:
    (found,) = read_runs(cluster, prices.load(), NOW)
    return found


def test_running_run_shows_progress_and_cost(tmp_path: Path) -> None:
    objects = (volcano_job("digits", "Running"), group("digits", min_member=2), node(), queue())
    found = single_run(cluster_of(tmp_path, *objects, pod("digits"), pod("digits", 1)))
    assert (found.kind, found.queue, found.state) == ("Volcano Job", "vision", State.RUNNING)
    assert (found.pods, found.wanted, found.gpus) == (2, 2, {GPU: 4})
    assert found.progress is not None
    assert (found.progress.epoch, found.progress.loss) == (1, 0.5)
    assert found.progress.remaining_seconds == pytest.approx(3 * 3600 - 50 * 60, abs=1)
    assert (found.gpu_hours, found.cost) == (8, 6)
    assert found.reasons == ()


def test_waiting_runs_show_positions_and_reasons(tmp_path: Path) -> None:
    cluster = cluster_of(
        tmp_path,
        node(gpus=2),
        queue(),
        *(volcano_job(name, "Pending") for name in ("late", "early", "urgent")),
        group("early", "Pending", created="2026-01-01T07:00:00Z"),
        group("late", "Pending", created="2026-01-01T08:00:00Z"),
        group("urgent", "Inqueue", created="2026-01-01T09:00:00Z"),
        pod("urgent", phase="Pending", priority=1000),
        volcano_job("runs", "Running"),
        group("runs"),
        pod("runs"),
    )
    found = {run.name: run for run in read_runs(cluster, prices.load(), NOW)}
    assert {name: run.position for name, run in found.items()} == {
        "urgent": 1,
        "early": 2,
        "late": 3,
        "runs": None,
    }
    assert f"requests 2 {GPU}, but only 0 of 2 are free" in found["urgent"].reasons
    assert found["urgent"].waiting_reason == (
        "ml/urgent in queue vision: 0 of 1 pods are scheduled (minimum to start: 1)"
    )


def test_failed_run_shows_its_last_log_lines(tmp_path: Path) -> None:
    error = json.dumps({"event": "error", "message": "batch_size is 7: write 8"})
    failed = pod("digits", phase="Failed", **ended(error))
    found = single_run(
        cluster_of(tmp_path, volcano_job("digits", "Failed", retryCount=3), failed, node())
    )
    assert found.state is State.FAILED
    assert found.last_log_lines == ("digits-worker-0:", "batch_size is 7: write 8")
    assert found.restarts == 3


@pytest.mark.parametrize(
    ("phase", "retries"), [("Aborted", 0), ("Pending", 1), ("Completed", 0), ("Restarting", 1)]
)
def test_use_of_a_run_whose_pods_were_deleted_is_unknown(
    tmp_path: Path, phase: str, retries: int
) -> None:
    job = volcano_job("digits", phase, retryCount=retries)
    # Volcano has deleted the PodGroup as well.
    job["spec"]["minAvailable"] = 2
    found = single_run(cluster_of(tmp_path, job, node(), queue()))
    assert (found.gpu_hours, found.cost) == (None, None)
    assert (found.pods, found.wanted) == (0, 2)
    assert found.as_json()["gpuHours"] is None


def test_run_that_has_not_started_has_used_no_gpus(tmp_path: Path) -> None:
    found = single_run(cluster_of(tmp_path, volcano_job("digits", "Pending"), node(), queue()))
    assert (found.gpu_hours, found.cost) == (0, 0)


def test_run_whose_queue_does_not_exist_shows_this_reason(tmp_path: Path) -> None:
    """Volcano terminates such a job without a reason if its pods are created again."""
    others = (node(), queue("default"))
    waits = single_run(cluster_of(tmp_path, volcano_job("digits", "Restarting"), *others))
    assert waits.waiting_reason == "ml/digits in queue vision: no PodGroup was created"
    assert waits.reasons == ("queue vision does not exist",)
    failed = single_run(cluster_of(tmp_path, volcano_job("digits", "Terminated"), *others))
    assert failed.reasons == ("queue vision does not exist",)
    ends = single_run(
        cluster_of(
            tmp_path,
            volcano_job("digits", "Failed"),
            pod("digits", phase="Failed", **ended()),
            *others,
        )
    )
    assert ends.reasons == ("digits-worker-0: exit code 1 (Error)",)


def test_job_owned_by_another_job_is_not_a_separate_run(tmp_path: Path) -> None:
    inner = batch_job("digits", owner="digits-jobset")
    assert single_run(cluster_of(tmp_path, batch_job("digits", "Complete"), inner)).kind == "Job"


def step_group(run: str, step: str, phase: str) -> dict[str, Any]:
    found = group(f"{run}-{step}-uid", phase)
    found["metadata"]["ownerReferences"] = [{"name": f"{run}-{run.rpartition('-')[2]}-{step}"}]
    return found


def test_run_with_steps_is_listed_once_with_its_current_step(tmp_path: Path) -> None:
    done, waits = pod("run-1", phase="Succeeded"), pod("run-1", 1, phase="Pending")
    done["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "gone"}
    waits["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "run-1-train-uid"}
    found = single_run(
        cluster_of(
            tmp_path,
            job_flow("run-1", "Running", prepare="Completed", train="Pending"),
            step_job("run-1", "prepare", "Completed"),
            step_job("run-1", "train", "Pending"),
            step_group("run-1", "train", "Inqueue"),
            *(done, waits, node(gpus=1), queue()),
        )
    )
    assert (found.kind, found.queue, found.state) == ("Volcano JobFlow", "vision", State.WAITING)
    assert (found.stage, found.position, found.pods, found.wanted) == ("train", 1, 0, 1)
    assert found.waiting_reason.startswith(
        "ml/run-1-1-train in queue vision: 0 of 1 pods are scheduled"
    )
    assert found.restarts == 2
    assert found.as_json()["stage"] == "train"


def test_failed_step_fails_the_run_and_shows_its_last_log_lines(tmp_path: Path) -> None:
    failed = pod("run-1", phase="Failed", **ended(json.dumps({"event": "error", "message": "no"})))
    failed["metadata"]["annotations"] = {}
    flow = job_flow("run-1", "Running", prepare="Failed")
    found = single_run(
        cluster_of(tmp_path, flow, step_job("run-1", "prepare", "Failed"), failed, node())
    )
    assert (found.state, found.stage, found.queue) == (State.FAILED, "prepare", "vision")
    assert found.last_log_lines == ("run-1-worker-0:", "no")


def rejected(job: str) -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": f"{job}.1"},
        "involvedObject": {"kind": "Job", "namespace": "ml", "name": job},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": f'Error creating: pods "{job}-0" is forbidden: exceeded quota: workloads',
    }


REJECTED = "the API server rejected pods of the job: exceeded quota: workloads"


def test_run_that_was_terminated_without_its_pods_states_why(tmp_path: Path) -> None:
    job = volcano_job("digits", "Terminated")
    assert single_run(cluster_of(tmp_path, job, rejected("digits"))).reasons == (REJECTED,)
    flow = job_flow("run-1", "Running", prepare="Completed", train="Terminated")
    step = step_job("run-1", "train", "Terminated")
    found = single_run(cluster_of(tmp_path, flow, step, rejected("run-1-1-train")))
    assert found.reasons == (REJECTED,)


def test_reason_of_a_failed_pod_precedes_an_earlier_rejection(tmp_path: Path) -> None:
    job, failed = volcano_job("digits", "Failed"), pod("digits", phase="Failed", **ended())
    (reason,) = single_run(cluster_of(tmp_path, job, failed, rejected("digits"))).reasons
    assert reason == "digits-worker-0: exit code 1 (Error)"


def test_podgroups_of_finished_and_suspended_jobs_have_no_position(tmp_path: Path) -> None:
    found = read_runs(
        cluster_of(
            tmp_path,
            *(node(), queue(), volcano_job("waits", "Pending")),
            group("waits", "Pending", created="2026-01-01T08:00:00Z"),
            *(group(name, "Pending") for name in ("over", "gone", "held")),
            *(batch_job("over", "Complete"), batch_job("held", "Suspended")),
        ),
        prices.load(),
        NOW,
    )
    places = {run.name: (run.position, run.waiting_reason) for run in found}
    assert places.pop("waits")[0] == 1
    assert places == {"over": (None, ""), "held": (None, "ml/held: suspended")}


def test_jobs_without_the_run_label_are_ignored(tmp_path: Path) -> None:
    other = volcano_job("other", "Running")
    other["metadata"]["labels"] = {}
    assert read_runs(cluster_of(tmp_path, other), prices.load(), NOW) == []


def test_failed_run_shows_the_log_command_if_a_recorder_is_running(tmp_path: Path) -> None:
    failed, succeeded = volcano_job("a", "Failed"), volcano_job("b", "Completed")
    recorder = pod("recorder")
    recorder["metadata"]["labels"] = standard_labels(RECORDER, RECORDER)
    found = read_runs(cluster_of(tmp_path, failed, succeeded, recorder), prices.load(), NOW)
    commands = {run.name: run.failure_log_command for run in found}
    shown = "python3 -m recorder show a"
    assert commands == {"a": f"kubectl exec -n ml deploy/failure-recorder -- {shown}", "b": ""}
    [alone] = read_runs(cluster_of(tmp_path, failed), prices.load(), NOW)
    assert alone.failure_log_command == ""


def test_completed_runs_come_last(tmp_path: Path) -> None:
    objects = (volcano_job("a", "Completed"), volcano_job("b", "Running"))
    found = read_runs(cluster_of(tmp_path, *objects), prices.load(), NOW)
    assert [run.name for run in found] == ["b", "a"]


def test_runs_are_read_from_a_cluster_without_volcano(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, batch_job("digits"), pod("digits"), node(), names=["jobs.batch"])
    assert single_run(cluster).state is State.RUNNING


def test_kinds_that_the_user_may_not_list_are_skipped(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, volcano_job("digits", "Running"), pod("digits"), node())
    forbid(tmp_path, "nodes", "events")
    found = single_run(cluster)
    assert (found.state, found.pods, found.cost) == (State.RUNNING, 1, None)
    (tmp_path / "pods").unlink()
    with pytest.raises(GitopsError, match="cannot list the pods of the cluster: forbidden"):
        single_run(cluster)
    with pytest.raises(GitopsError, match=r"of namespace ml: forbidden: pods$"):
        single_run(replace(cluster, namespace="ml"))


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (["status"], "If you are allowed to list the pods of a namespace, add --namespace NAME\n"),
        (["status", "-n=ml"], "sets permissions in tenancy.groups (docs/teams.md)\n"),
        (["snapshot"], "prints the required permissions (docs/simulation.md)\n"),
    ],
)
def test_remedy_for_a_forbidden_request_depends_on_the_command(
    command: list[str],
    end: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster_of(tmp_path, pod("digits"))
    forbid(tmp_path, "pods")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "cannot list the pods" in error
    assert error.endswith(end)


@pytest.mark.parametrize("failing", ["jobs.batch.volcano.sh", "api-resources"])
def test_runs_are_not_omitted_if_the_api_server_fails(tmp_path: Path, failing: str) -> None:
    cluster = cluster_of(tmp_path, volcano_job("digits", "Running"), pod("digits"), node())
    forbid(tmp_path, "nodes")  # so that each kind is requested separately
    program = tmp_path / "kubectl"
    failure = 'echo "Error from server: etcdserver: leader changed" >&2; exit 1'
    condition = f'case "$*" in *{failing}*) {failure} ;; esac'
    program.write_text(program.read_text().replace("case", f"{condition}\ncase", 1))
    with pytest.raises(GitopsError, match=r"cannot list .*: Error from server: etcdserver: leader"):
        read_runs(cluster, prices.load(), NOW)


def test_runs_are_read_even_if_an_aggregated_api_is_unavailable(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, volcano_job("digits", "Running"), pod("digits"))
    program = tmp_path / "kubectl"
    program.write_text(program.read_text().replace("exec cat names", "cat names; exit 1"))
    forbid(tmp_path, "nodes")  # so that each kind is requested separately
    assert single_run(cluster).state is State.RUNNING


def test_podgroups_and_queues_without_a_spec_are_accepted(tmp_path: Path) -> None:
    objects = [volcano_job("digits", "Pending"), group("digits", min_member=2), queue()]
    for each in objects[1:]:
        del each["spec"]
    cluster = cluster_of(tmp_path, *objects)
    assert single_run(cluster).state is State.WAITING
    assert waiting(cluster.snapshot())


def test_only_the_requested_run_is_read(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, volcano_job("a", "Running"), volcano_job("b", "Running"))
    found = read_runs(cluster, prices.load(), NOW, name=("ml", "b"))
    assert [run.name for run in found] == ["b"]


@pytest.mark.parametrize("has_log", [True, False])
def test_result_is_read_from_the_log_or_a_termination_message(
    tmp_path: Path, has_log: bool
) -> None:
    finished = json.dumps({"event": "finished", "accuracy": 0.97, "seconds": 12.5})
    error = json.dumps({"event": "error", "message": "no data"})
    pods = [
        pod("digits", 0, "Failed", **ended(error)),
        pod("digits", 1, "Succeeded", **ended("" if has_log else finished)),
    ]
    cluster = cluster_of(tmp_path, volcano_job("digits", "Completed"), *pods)
    (tmp_path / "log").write_text(f"2026-01-01T09:00:00Z {finished}\n" if has_log else "")
    found = single_run(cluster).progress
    assert found is not None
    assert (found.accuracy, found.seconds) == (0.97, 12.5)


def test_progress_is_read_from_pods_of_the_latest_attempt(tmp_path: Path) -> None:
    pods = [pod("digits", 0, "Failed"), pod("digits", 1)]
    cluster = cluster_of(tmp_path, batch_job("digits"), *pods)
    epoch = '2026-01-01T09:10:00Z {"event": "epoch", "epoch": 9, "epochs": 9, "loss": 0.5}'
    (tmp_path / "logs-digits-worker-0").write_text(epoch)
    found = single_run(cluster).progress
    assert found is not None
    assert found.epoch == 1


def test_logs_of_at_most_three_pods_are_read_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [pod("digits", number) for number in range(4)]
    cluster = cluster_of(tmp_path, volcano_job("digits", "Running"), *pods)
    read = list[str]()

    def logs(_cluster: Cluster, _namespace: str, name: str, _lines: int) -> list[str]:
        read.append(name)
        return []

    monkeypatch.setattr(Cluster, "logs", logs)
    single_run(cluster)
    assert read == [f"digits-worker-{number}" for number in range(3)]
    read.clear()
    single_run(cluster_of(tmp_path, volcano_job("digits", "Running"), *pods[:2]))
    assert read == ["digits-worker-0", "digits-worker-1"]


def test_each_line_of_the_error_of_an_unreachable_cluster_is_reported_once(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    login = "echo 'run: aws configure' >&2\n"
    log = "echo 'E1201 05:16:54.555237    3160 memcache.go:265] Unhandled' >&2\n"
    program.write_text(f"#!/bin/sh\n{login * 2}{log}echo 'exit code 253' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(GitopsError) as error:
        read_runs(Cluster([str(program)]), prices.load(), NOW)
    assert str(error.value) == "cannot list the API resources: run: aws configure\nexit code 253"


def test_a_missing_kubectl_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GitopsError, match="install kubectl"):
        read_runs(Cluster([str(tmp_path / "kubectl")]), prices.load(), NOW)


@pytest.mark.parametrize("period", ["-1", "0", "nan", "inf", "soon"])
def test_invalid_watch_interval_is_a_usage_error(
    period: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["status", "--watch", "--every", period])
    assert exited.value.code == 64
    assert f"{period} is not a valid number of seconds" in capsys.readouterr().err


def test_unknown_stack_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--stack", "prdo"]) == 64
    assert ", prod" in capsys.readouterr().err


def test_watch_shows_kubectl_errors_verbatim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    reason = "the server [fd00::1]:6443 [/refused]"
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\necho '{reason}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("gitops.runs.command.time", SimpleNamespace(sleep=interrupt))
    assert main(["status", "--watch"]) == 130
    assert reason in capsys.readouterr().out


def usage_of(*pods: dict[str, Any], on: dict[str, Any] | None = None, product: str = "") -> Usage:
    return usage(pods, Snapshot.of([on or node()]), PRICES, NOW, product)


def test_running_pod_counts_from_its_placement_until_now() -> None:
    assert usage_of(pod("run"), pod("run", 1)) == Usage(Decimal(8), Decimal(6))


def test_finished_pod_counts_until_its_end() -> None:
    over = pod("run", phase="Succeeded", **ended(at="2026-01-01T08:30:00Z"))
    assert usage_of(over).gpu_hours == 1


def test_waiting_pod_costs_nothing() -> None:
    assert usage_of(pod("run", phase="Pending")) == Usage(Decimal(0), Decimal(0))


def test_spot_nodes_are_charged_at_the_spot_price() -> None:
    spot = node(**{"karpenter.sh/capacity-type": "spot"})
    assert usage_of(pod("run"), on=spot).cost == Decimal("1.20")


def test_gpu_share_counts_as_a_fraction() -> None:
    sliced = pod("run")
    limits = sliced["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/mig-1g.10gb"] = limits.pop("nvidia.com/gpu")
    assert usage_of(sliced) == Usage(Decimal(1), Decimal("0.75"))


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"])
def test_cost_of_an_unlisted_gpu_share_is_unknown(resource: str) -> None:
    shared = pod("run")
    limits = shared["spec"]["containers"][0]["resources"]["limits"]
    limits[resource] = limits.pop("nvidia.com/gpu")
    assert usage_of(shared) == Usage(Decimal(0), None)
    assert usage_of(pod("run"), shared) == Usage(Decimal(4), None)


def test_devices_that_are_not_gpus_cost_nothing() -> None:
    connected = pod("run")
    limits = connected["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"rdma/hca": "1", "nvidia.com/gpumem": "3000"}
    assert usage_of(connected) == Usage(Decimal(4), Decimal(3))


@pytest.mark.parametrize(("product", "cost"), [("", None), ("NVIDIA-L4", Decimal(3))])
def test_cost_is_none_if_the_gpu_model_is_unknown(product: str, cost: Decimal | None) -> None:
    unlabeled = node()
    unlabeled["metadata"]["labels"] = {}
    assert usage_of(pod("run"), on=unlabeled, product=product).cost == cost
