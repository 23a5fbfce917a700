"""Training runs as kubectl shows them: a stand-in prints what a cluster would answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster.deploy import runs
from devcluster.deploy.runs import Progress, Run, Runs
from devcluster.errors import DevclusterError
from kube.names import RUN_LABEL
from tests.devcluster.programs import Install

# Answers `get jobs…`, `get pods`, `get podgroups…` and `logs … POD` from the files of that name.
# What is asked for a second time is answered from NAME.2 where that is there.
KUBECTL = """
cd "$WORLD" || exit 9
echo "$*" >> calls
[ -e silent ] && { echo "connection refused" >&2; exit 1; }
case "$1" in
logs) for pod; do :; done; file="logs-$pod" ;;
get) file="$2" ;;
esac
[ -e "$file" ] || exit 0
cat "$file"
if [ -e "$file.2" ]; then mv "$file.2" "$file"; fi
"""
VOLCANO = Run("digits", "digits-1", "volcano", "ml", "research", 2, 1)
INDEXED = Run("digits", "digits-2", "indexed", "ml", "research", 2, 1)
EPOCH = {"event": "epoch", "epoch": 3, "epochs": 15, "loss": 0.51234, "accuracy": 0.9}
FINISHED = {"event": "finished", "accuracy": 0.97, "seconds": 12.5}
ERROR = {"event": "error", "message": "no data"}


class World:
    """The objects that the cluster has."""

    def __init__(self, folder: Path, kubectl: Path) -> None:
        self.folder = folder
        self.runs = Runs([str(kubectl)])

    def put(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)

    def volcano(
        self, phase: str, *pods: dict[str, Any], name: str = "jobs.batch.volcano.sh"
    ) -> None:
        self.put(name, {"status": {"state": {"phase": phase}}})
        self.put("pods", {"items": list(pods)})

    def indexed(self, conditions: list[dict[str, str]], *pods: dict[str, Any]) -> None:
        self.put("jobs.batch", {"status": {"conditions": conditions}})
        self.put("pods", {"items": list(pods)})

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def world(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> World:
    folder = tmp_path / "world"
    folder.mkdir()
    monkeypatch.setenv("WORLD", str(folder))
    monkeypatch.setattr(runs, "POLL_SECONDS", 0.01)
    return World(folder, install("kubectl", KUBECTL))


def pod(name: str, phase: str = "Running", said: object = None, node: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase}
    if said is not None:
        text = said if isinstance(said, str) else json.dumps(said)
        status["containerStatuses"] = [{"state": {"terminated": {"message": text}}}]
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node} if node else {},
        "status": status,
    }


def waiting(*owned: tuple[str, list[dict[str, str]]]) -> dict[str, Any]:
    return {
        "items": [
            {
                "metadata": {"ownerReferences": [{"name": owner}]},
                "status": {"conditions": conditions},
            }
            for owner, conditions in owned
        ]
    }


def test_a_run_is_read_from_the_stacks_output():
    output = {"name": "digits-1", "kind": "volcano", "namespace": "ml", "queue": "research"}
    assert Run.of("digits", {**output, "nodes": 2, "gpusPerNode": 1}) == VOLCANO


def test_a_job_that_does_not_exist_is_gone(world: World):
    assert world.runs.progress(VOLCANO) == Progress("Gone", {})


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        *((kind, "jobs.batch.volcano.sh") for kind in ("volcano", "mpi", "tensorflow", "plain")),
        ("indexed", "jobs.batch"),
        ("pytorch", "pytorchjobs.kubeflow.org"),
        ("trainjob", "trainjobs.trainer.kubeflow.org"),
    ],
)
def test_each_kind_of_job_is_asked_for_by_its_own_name(world: World, kind: str, resource: str):
    run = replace(VOLCANO, kind=kind)
    world.put(resource, {})
    world.runs.progress(run)
    job, pods = world.calls()[:2]
    assert job == f"get {resource} {run.name} -n ml --output=json --ignore-not-found"
    assert pods.startswith(f"get pods --selector {RUN_LABEL}={run.name} -n ml")


def test_a_volcano_job_that_has_no_state_yet_is_pending(world: World):
    world.put("jobs.batch.volcano.sh", {"metadata": {}})
    assert world.runs.progress(VOLCANO).phase == "Pending"


def test_an_indexed_job_runs_when_all_its_pods_do(world: World):
    world.indexed([], pod("digits-2-0-a"), pod("digits-2-1-a", "Pending"))
    assert world.runs.progress(INDEXED).phase == "Pending"
    world.indexed([], pod("digits-2-0-a"), pod("digits-2-1-a"))
    assert world.runs.progress(INDEXED).phase == "Running"


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
def test_an_indexed_job_ends_by_its_condition(world: World, ended: str):
    conditions = [
        {"type": "Suspended", "status": "False"},
        {"type": "SuccessCriteriaMet", "status": "True"},
        {"type": "Failed" if ended == "Complete" else "Complete", "status": "False"},
        {"type": ended, "status": "True"},
    ]
    world.indexed(conditions, pod("digits-2-0-a", "Succeeded"))
    assert world.runs.progress(INDEXED).phase == ended


@pytest.mark.parametrize(("kind", "ended"), [("pytorch", "Succeeded"), ("trainjob", "Complete")])
def test_kubeflows_kinds_end_by_their_conditions(world: World, kind: str, ended: str):
    run = replace(VOLCANO, kind=kind)
    conditions = [{"type": "Running", "status": "False"}, {"type": ended, "status": "True"}]
    resource = {"pytorch": "pytorchjobs.kubeflow.org"}.get(kind, "trainjobs.trainer.kubeflow.org")
    world.put(resource, {"status": {"conditions": conditions}})
    assert world.runs.wait(run, lambda _: None).phase == ended


def flow(phase: str, **steps: str) -> dict[str, Any]:
    made = [{"name": f"digits-1-1-{step}", "state": state} for step, state in steps.items()]
    return {"kind": "JobFlow", "status": {"state": {"phase": phase}, "jobStatusList": made}}


@pytest.mark.parametrize(
    ("described", "running", "phase"),
    [
        (flow(""), 0, "Pending"),
        (flow("Running", prepare="Completed"), 0, "Pending"),
        (flow("Running", prepare="Completed", train="Running"), 2, "Running"),
        (flow("Running", train="Failed"), 0, "Failed"),
        (flow("Running", prepare="Completed", train="Terminated"), 0, "Terminated"),
        (flow("Succeed", prepare="Completed", train="Completed"), 0, "Completed"),
    ],
)
def test_a_run_with_steps_is_a_job_flow(
    world: World, described: dict[str, Any], running: int, phase: str
):
    world.put("jobflows.flow.volcano.sh", described)
    world.put("pods", {"items": [pod(f"digits-1-1-train-worker-{n}") for n in range(running)]})
    assert world.runs.progress(VOLCANO).phase == phase


def test_a_run_with_steps_is_waited_for_until_its_last_step_has_ended(world: World):
    world.put("jobflows.flow.volcano.sh", flow("Running", train="Completed", evaluate="Pending"))
    world.put("jobflows.flow.volcano.sh.2", flow("Succeed"))
    world.put("pods", {"items": [pod("digits-1-1-train-master-0", "Succeeded", FINISHED)]})
    reason = {"status": "True", "message": "1 Insufficient GPU"}
    world.put("podgroups.scheduling.volcano.sh", waiting(("digits-1-1-evaluate", [reason])))
    said: list[str] = []
    assert world.runs.wait(VOLCANO, said.append).event == FINISHED
    assert said == ["Pending: 1 Insufficient GPU", "Completed"]


def test_what_a_launcher_passed_on_is_the_result_where_the_program_is_gone(world: World):
    world.volcano("Completed", pod("digits-1-launcher-0", "Succeeded"))
    world.put("logs-digits-1-launcher-0", json.dumps(FINISHED))
    assert world.runs.progress(replace(VOLCANO, kind="mpi")).event == FINISHED


def test_a_pod_group_of_the_runs_own_name_tells_why_it_waits(world: World):
    world.volcano("Pending")
    reason = {"status": "True", "message": "1 Insufficient GPU"}
    group = {"metadata": {"name": "digits-1"}, "status": {"conditions": [reason]}}
    world.put("podgroups.scheduling.volcano.sh", {"items": [group]})
    assert str(world.runs.progress(VOLCANO)) == "Pending: 1 Insufficient GPU"


def test_a_running_run_tells_the_last_line_of_its_first_pod(world: World):
    world.volcano("Running", pod("digits-1-worker-0"), pod("digits-1-master-0"))
    world.put(
        "logs-digits-1-master-0", f'{{"event": "start"}}\n{json.dumps(EPOCH)}\nwarning: [W]\n'
    )
    progress = world.runs.progress(VOLCANO)
    assert progress.event == EPOCH
    assert str(progress) == "Running, epoch 3 of 15, loss 0.5123"


@pytest.mark.parametrize("line", ["", "42", "null", '"event"', '["event"]', '{"other": 1}', "{"])
def test_a_line_that_is_no_event_is_passed_over(world: World, line: str):
    world.volcano("Running", pod("digits-1-master-0"))
    world.put("logs-digits-1-master-0", f"{json.dumps(EPOCH)}\n{line}\n")
    assert world.runs.progress(VOLCANO).event == EPOCH


def test_a_new_attempts_lines_come_before_what_an_old_one_left(world: World):
    world.indexed(
        [], pod("digits-2-0-a", "Failed", ERROR), pod("digits-2-0-b"), pod("digits-2-1-b")
    )
    world.put("logs-digits-2-0-a", json.dumps(ERROR))
    world.put("logs-digits-2-0-b", json.dumps(EPOCH))
    assert world.runs.progress(INDEXED).event == EPOCH


def test_the_result_is_the_termination_message(world: World):
    world.volcano(
        "Completed",
        pod("digits-1-master-0", "Succeeded", FINISHED),
        pod("digits-1-worker-0", "Succeeded", ""),
    )
    assert world.runs.progress(VOLCANO) == Progress("Completed", FINISHED)


def test_a_result_counts_more_than_the_error_of_an_earlier_attempt(world: World):
    complete = [{"type": "Complete", "status": "True"}]
    world.indexed(
        complete,
        pod("digits-2-0-a", "Failed", ERROR),
        pod("digits-2-0-b", "Succeeded", FINISHED),
    )
    assert world.runs.progress(INDEXED).event == FINISHED


def test_a_message_that_is_no_event_is_no_result(world: World):
    world.volcano("Failed", pod("digits-1-master-0", "Failed", "Killed"))
    assert world.runs.progress(VOLCANO).event == {}


def test_a_pending_run_says_what_its_gang_waits_for(world: World):
    world.volcano("Pending")
    scheduled = {"status": "False", "message": "long ago"}
    reason = {"status": "True", "message": "2/2 tasks in gang unschedulable: 1 Insufficient GPU"}
    world.put(
        "podgroups.scheduling.volcano.sh",
        waiting(
            ("other", [{"status": "True", "message": "other"}]), ("digits-1", [reason, scheduled])
        ),
    )
    said = "Pending: 2/2 tasks in gang unschedulable: 1 Insufficient GPU"
    assert str(world.runs.progress(VOLCANO)) == said


def test_a_run_without_a_pod_group_is_pending_for_no_said_reason(world: World):
    world.volcano("Pending")
    assert str(world.runs.progress(VOLCANO)) == "Pending"


def test_waiting_ends_with_the_run(world: World):
    world.volcano("Running", pod("digits-1-master-0"))
    world.volcano(
        "Completed", pod("digits-1-master-0", "Running", FINISHED), name="jobs.batch.volcano.sh.2"
    )
    said: list[str] = []
    assert world.runs.wait(VOLCANO, said.append).event == FINISHED
    assert said == ["Running", "Completed"]


def test_a_failed_run_is_told_with_the_last_lines_of_every_pod(world: World):
    world.volcano("Failed", pod("digits-1-master-0", "Failed"), pod("digits-1-worker-0", "Failed"))
    world.put("logs-digits-1-master-0", "no data\n")
    world.put("logs-digits-1-worker-0", "connection closed by peer\n")
    with pytest.raises(DevclusterError) as caught:
        world.runs.wait(VOLCANO, lambda _: None)
    assert str(caught.value).splitlines() == [
        "the run digits-1 ended as Failed:",
        "no data",
        "connection closed by peer",
    ]


@pytest.mark.parametrize("phase", ["Aborted", "Terminated"])
def test_a_run_that_somebody_ended_has_not_succeeded(world: World, phase: str):
    world.volcano(phase)
    with pytest.raises(DevclusterError, match=f"digits-1 ended as {phase}"):
        world.runs.wait(VOLCANO, lambda _: None)


def test_a_run_that_was_removed_is_not_waited_for(world: World):
    with pytest.raises(DevclusterError, match="digits-1 is not in ml any more"):
        world.runs.wait(VOLCANO, lambda _: None)


def test_a_cluster_that_does_not_answer_for_a_moment_is_waited_for(world: World):
    world.volcano("Completed", pod("digits-1-master-0", "Succeeded", FINISHED))
    world.put("silent", "")
    said: list[str] = []

    def report(line: str) -> None:
        said.append(line)
        (world.folder / "silent").unlink(missing_ok=True)

    assert world.runs.wait(VOLCANO, report).phase == "Completed"
    assert said[0] == "the cluster does not answer: connection refused"


def test_a_cluster_that_does_not_answer_any_more_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs, "SILENCE_SECONDS", 0.05)
    world.put("silent", "")
    with pytest.raises(DevclusterError, match="does not answer: connection refused"):
        world.runs.wait(VOLCANO, lambda _: None)


def test_a_gang_is_bound_when_every_pod_has_a_node(world: World):
    half = [pod("a", node="simulated-0"), pod("b", "Pending")]
    world.put("pods", {"items": half})
    world.put("pods.2", {"items": [pod("a", node="simulated-0"), pod("b", node="simulated-1")]})
    said: list[str] = []
    assert world.runs.wait_bound(VOLCANO, said.append) == 2
    assert said == ["1 of 2 pods have a node", "2 of 2 pods have a node"]


def test_the_pods_of_steps_are_none_of_the_gang(world: World):
    step = pod("digits-1-1-prepare-step-0", "Succeeded", node="simulated-0")
    step["metadata"]["labels"] = {"volcano.sh/task-spec": "step"}
    gang = [pod("a", node="simulated-0"), pod("b", node="simulated-1")]
    world.put("pods", {"items": [step, gang[0]]})
    world.put("pods.2", {"items": [step, *gang]})
    said: list[str] = []
    assert world.runs.wait_bound(VOLCANO, said.append) == 2
    assert said == ["1 of 2 pods have a node", "2 of 2 pods have a node"]


def test_a_gang_that_gets_no_nodes_says_why(world: World):
    reason = {"status": "True", "message": "queue resource quota insufficient"}
    world.put("podgroups.scheduling.volcano.sh", waiting(("digits-1", [reason])))
    with pytest.raises(DevclusterError, match="got no nodes in 0 s: queue resource quota"):
        world.runs.wait_bound(VOLCANO, lambda _: None, timeout=0.05)
