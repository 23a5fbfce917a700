"""Capturing, storing and redacting snapshots of a cluster."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitops import prices
from gitops.__main__ import main
from gitops.errors import GitopsError
from gitops.forecast.capacity import free, free_devices
from gitops.forecast.replay import SimulatedGang
from gitops.forecast.shapes import estimated_shapes, requests
from gitops.forecast.state import State, load, redact
from gitops.runs.snapshot import Cluster
from gitops.runs.status import read_runs
from kube.quantities import parse_quantity
from tests.gitops.forecast.states import TAKEN, gang
from tests.gitops.runs import kubectl, objects

CREATED = "2026-01-01T07:00:00Z"
LOG = """\
2026-01-01T08:00:00Z {"event": "start", "epochs": 4, "step": 0}
2026-01-01T08:10:00Z {"event": "epoch", "epoch": 1, "epochs": 4, "loss": 1.0}
2026-01-01T08:10:05Z {"event": "checkpoint", "step": 45, "seconds": 5}
"""
AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"app": "secret-app"}},
                "topologyKey": "example.com/rack",
            }
        ]
    }
}


def cluster() -> list[dict[str, Any]]:
    waiting = objects.volcano_job("waiting", "Pending")
    template = {"spec": {"containers": [{"resources": {"limits": {objects.GPU: 8}}}]}}
    tasks = [{"name": "worker", "replicas": 3, "template": template}]
    waiting["spec"] |= {"tasks": tasks, "priorityClassName": "urgent"}
    suspended = objects.volcano_job("suspended", "Aborted")
    suspended["spec"]["tasks"] = tasks
    running = [objects.pod("running", n, startTime="2026-01-01T08:00:00Z") for n in range(2)]
    for pod in running:
        pod["spec"] |= {"activeDeadlineSeconds": 7200, "affinity": AFFINITY}
        pod["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "hidden"}]
        pod["metadata"]["labels"] |= {"app": "secret-app", "team": "secret-team"}
    server = objects.pod("server")
    server["metadata"]["annotations"] = {}
    down = objects.node()
    down["metadata"]["name"] = "down"
    down["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    return [
        objects.priority_class("urgent", 2000),
        objects.priority_class("system-node-critical", 2000001000),
        objects.node(**{"example.com/rack": "a", "example.com/owner": "someone"}),
        down,
        objects.queue(),
        *running,
        objects.volcano_job("running", "Running"),
        objects.group("running", min_member=2, created=CREATED),
        waiting,
        objects.group("waiting", "Pending", min_member=3, created="2026-01-01T07:30:00Z"),
        suspended,
        objects.volcano_job("over", "Completed"),
        objects.group("over", "Completed"),
        server,
    ]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kubectl.install(tmp_path, cluster(), log=LOG)
    volume = {"name": "conf", "configMap": {"name": "scheduler"}}
    pod = {"containers": [{"image": "example.com/vc-scheduler:v1.14.1"}], "volumes": [volume]}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "scheduler", "namespace": "volcano-system"},
        "spec": {"template": {"spec": pod}},
    }
    kubectl.put(tmp_path, [deployment], "deployments")
    configuration = {
        "kind": "ConfigMap",
        "metadata": {"name": "scheduler"},
        "data": {"volcano-scheduler.conf": 'actions: "allocate"'},
    }
    kubectl.put(tmp_path, [configuration], "configmaps")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def taken(folder: Path, *arguments: str, name: str = "state.json") -> State:
    assert main(["snapshot", "--out", str(folder / name), *arguments]) == 0
    return load(folder / name)


def test_snapshot_contains_nodes_queues_and_gangs(installed: Path) -> None:
    state = taken(installed)
    node, down = state.nodes
    assert (node.unschedulable, down.unschedulable) == (False, True)
    assert node.name == "n"
    assert node.allocatable == {objects.GPU: "8"}
    assert node.reserved == {objects.GPU: "2", "cpu": "1", "pods": "1"}
    assert [queue.name for queue in state.queues] == ["vision"]
    assert {each.name: each.value for each in state.priority_classes}["urgent"] == 2000
    assert (state.volcano, state.scheduler_configuration) == ("v1.14.1", 'actions: "allocate"')
    assert {gang.name: gang.state for gang in state.gangs} == {
        "running": "running",
        "waiting": "pending",
        "suspended": "suspended",
    }
    assert state.notes == ["nodes that are not Ready, listed as unschedulable: 1"]


def test_running_gang_is_captured_with_nodes_deadline_and_progress(installed: Path) -> None:
    (running,) = (gang for gang in taken(installed).gangs if gang.state == "running")
    (shape,) = running.pods
    assert (shape.count, shape.nodes) == (2, ["n", "n"])
    assert shape.requests == {objects.GPU: "2", "cpu": "1"}
    assert running.created == datetime(2026, 1, 1, 7, tzinfo=UTC)
    assert running.deadline_seconds == 7200
    assert running.progress == 0.25
    assert running.left_seconds == 0
    assert running.saved == datetime(2026, 1, 1, 8, 10, tzinfo=UTC)
    assert running.saves_every_seconds == 600
    assert running.remaining(datetime(2026, 1, 1, 9, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    ("known", "later", "unsaved"),
    [
        ({"saved": 300}, 0, 300),
        ({"saved": 300}, 7200, 7500),
        ({"saved": 300, "saves_every_seconds": 600.0}, 120, 420),
        ({"saved": 300, "saves_every_seconds": 600.0}, 7200, 600),
        # The last checkpoint is overdue, so later ones may be as well.
        ({"saved": 900, "saves_every_seconds": 600.0}, 7200, 900),
        ({"started": 3600}, 60, 3660),
        ({}, 0, None),
    ],
)
def test_unsaved_work_counts_from_the_last_checkpoint(
    known: dict[str, float], later: float, unsaved: float | None
) -> None:
    ago = {k: TAKEN - timedelta(seconds=known[k]) for k in ("saved", "started") if k in known}
    running = gang("a", 1, 8, "n", hour=7).model_copy(update={"started": None, **known, **ago})
    assert running.unsaved_seconds(TAKEN, later) == unsaved


def test_pods_of_an_unadmitted_gang_come_from_its_tasks(installed: Path) -> None:
    (waiting,) = (gang for gang in taken(installed).gangs if gang.name == "waiting")
    assert (waiting.size, waiting.minimum, waiting.priority_class) == (3, 3, "urgent")
    assert waiting.pods[0].requests == {objects.GPU: "8"}
    assert waiting.remaining(datetime.now(UTC)) is None


@pytest.mark.parametrize(("minimum", "each"), [(2, "8"), (3, "6")])
def test_pods_are_estimated_from_the_minimum_resources_of_a_podgroup(
    minimum: int, each: str
) -> None:
    amounts = {objects.GPU: "16", "cpu": "7", "pods": "2"}
    (shape,) = estimated_shapes({"minMember": minimum, "minResources": amounts})
    assert (shape.count, shape.requests[objects.GPU]) == (minimum, each)


def test_estimated_huge_pages_are_rounded_up_to_whole_pages() -> None:
    amounts = {"requests.hugepages-2Mi": "1Gi", "cpu": "7"}
    (shape,) = estimated_shapes({"minMember": 3, "minResources": amounts})
    assert parse_quantity(shape.requests["hugepages-2Mi"]) == 171 * 2 * 1024**2
    assert shape.requests["cpu"] == "2.334"


def test_a_full_node_with_shared_gpus_has_no_free_device() -> None:
    left = {"volcano.sh/vgpu-number": Decimal(0), "volcano.sh/vgpu-memory": Decimal(40960)}
    assert free_devices({"gpu-0": left}) == 0


def test_network_devices_do_not_count_as_gpus(installed: Path) -> None:
    items = cluster()
    for item in items:
        if item["kind"] == "Node":
            item["status"]["allocatable"]["rdma/hca"] = "1000"
        elif item["metadata"]["name"].startswith("running-"):
            item["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = "1"
    kubectl.put(installed, items)
    state = taken(installed)
    (running,) = (gang for gang in state.gangs if gang.state == "running")
    assert running.pods[0].requests == {"cpu": "1", objects.GPU: "2", "rdma/hca": "1"}
    assert SimulatedGang("running", running, None).gpus == 4
    assert free_devices(free(state.nodes, [])) == 6
    (status,) = read_runs(Cluster(), prices.load(), TAKEN, name=("ml", "running"))
    assert status.gpus == {objects.GPU: 4}


def test_gang_priorities_come_from_pods_or_priority_classes(installed: Path) -> None:
    items = cluster()
    for item in items:
        if item["metadata"]["name"].startswith("running") and item["kind"] == "Pod":
            item["spec"] |= {"priorityClassName": "unlisted", "priority": 10}
        elif item["metadata"]["name"] == "suspended":
            item["spec"]["priorityClassName"] = "urgent"
    kubectl.put(installed, items)
    priorities = {gang.name: gang.priority for gang in taken(installed).gangs}
    assert priorities == {"running": 10, "waiting": 2000, "suspended": 2000}


def test_gangs_in_missing_queues_only_reserve_resources(installed: Path) -> None:
    items = cluster()
    for item in items:
        if item["kind"] == "PodGroup" and item["metadata"]["name"] in ("running", "waiting"):
            item["spec"]["queue"] = "deleted"
    kubectl.put(installed, items)
    state = taken(installed)
    assert [gang.name for gang in state.gangs] == ["suspended"]
    assert state.nodes[0].reserved == {objects.GPU: "6", "cpu": "3", "pods": "3"}
    assert any("queue does not exist" in note for note in state.notes)


def test_closed_queues_are_counted_in_the_notes(installed: Path) -> None:
    closed = objects.queue("closed") | {"status": {"state": "Closed"}}
    notes_before = taken(installed).notes
    kubectl.put(installed, [*cluster(), closed])
    (note,) = set(taken(installed).notes) - set(notes_before)
    assert note.endswith(": 1")


def test_podgroups_without_a_spec_get_defaults(installed: Path) -> None:
    items = [*cluster(), objects.queue("default")]
    for item in items:
        if item["kind"] == "PodGroup":
            del item["spec"]
    kubectl.put(installed, items)
    gangs = {gang.name: (gang.queue, gang.minimum) for gang in taken(installed).gangs}
    assert gangs["waiting"] == ("default", 1)


def test_a_snapshot_contains_no_environment_variables(installed: Path) -> None:
    taken(installed)
    assert "hidden" not in (installed / "state.json").read_text()


def test_gangs_without_a_priority_class_get_the_default(installed: Path) -> None:
    normal = objects.priority_class("normal", 100) | {"globalDefault": True}
    kubectl.put(installed, [*cluster(), normal])
    gangs = {gang.name: (gang.priority_class, gang.priority) for gang in taken(installed).gangs}
    assert gangs["waiting"] == ("urgent", 2000)
    assert gangs["suspended"] == ("normal", 100)


def test_yaml_and_json_have_the_same_content(installed: Path) -> None:
    first, second = taken(installed), taken(installed, name="state.yaml")
    assert first.model_copy(update={"taken": second.taken}) == second


def test_redaction_replaces_names_and_keeps_references(installed: Path) -> None:
    state = taken(installed, "--redact")
    text = (installed / "state.json").read_text()
    for name in ("waiting-", '"vision"', '"ml"', '"urgent"', "secret-team", "someone"):
        assert name not in text
    assert state.redacted
    (running,) = (gang for gang in state.gangs if gang.state == "running")
    assert running.pods[0].nodes == [state.nodes[0].name] * 2 == ["node-1", "node-1"]
    assert running.queue == state.queues[0].name == "queue-1"
    assert state.nodes[0].labels["example.com/rack"] == "a"
    assert {each.name for each in state.priority_classes} == {"priority-1", "system-node-critical"}


def test_redaction_replaces_names_of_unlisted_objects(installed: Path) -> None:
    state = taken(installed)
    unlisted = {"priority_class": "unlisted-class", "queue": "unlisted-queue"}
    queues = [each.model_copy(update={"spec": {"parent": "division"}}) for each in state.queues]
    gangs = [each.model_copy(update=unlisted) for each in state.gangs]
    text = redact(state.model_copy(update={"queues": queues, "gangs": gangs})).model_dump_json()
    for name in ("unlisted-class", "unlisted-queue", "division"):
        assert name not in text


def test_redaction_keeps_values_that_equal_a_name(installed: Path) -> None:
    state = taken(installed)
    odd = state.model_copy(
        update={"gangs": [g.model_copy(update={"name": g.state}) for g in state.gangs]}
    )
    assert [gang.state for gang in redact(odd).gangs] == [gang.state for gang in state.gangs]


def test_kinds_that_cannot_be_listed_are_noted(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.forbid(installed, "priorityclasses.scheduling.k8s.io")
    (installed / "deployments").unlink()
    state = taken(installed)
    assert state.volcano is None
    assert len(state.notes) == 3
    assert "warning: PriorityClasses cannot be listed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a snapshot"),
        ("{", "cannot read"),
        ("[" * 100_000, "cannot read .* nested deeper than 200 levels"),
        ("version: 2", "version is 2"),
        ("version: 1\nnodes: 3", "taken: Field required"),
    ],
)
def test_file_that_is_not_a_snapshot_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(GitopsError, match=message):
        load(tmp_path / "file")


def test_unknown_fields_are_rejected(installed: Path) -> None:
    taken(installed)
    document = json.loads((installed / "state.json").read_text())
    document["gangs"][0]["color"] = "red"
    (installed / "odd.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(GitopsError, match=r"gangs\.0\.color"):
        load(installed / "odd.yaml")


def test_pods_on_unknown_nodes_are_rejected(installed: Path) -> None:
    taken(installed)
    document = json.loads((installed / "state.json").read_text())
    del document["nodes"][0]
    (installed / "odd.json").write_text(json.dumps(document))
    problem = "gang ml/running has pods on nodes that are not in the snapshot: n;"
    with pytest.raises(GitopsError, match=problem):
        load(installed / "odd.json")


def test_succeeded_pods_count_towards_the_minimum(installed: Path) -> None:
    items = cluster()
    pods = [item for item in items if item["kind"] == "Pod"]
    pods[1]["status"]["phase"] = "Succeeded"
    kubectl.put(installed, items)
    (running,) = (gang for gang in taken(installed).gangs if gang.name == "running")
    assert (running.size, running.minimum, running.state) == (1, 1, "running")
    pods[0]["status"]["phase"] = "Succeeded"
    kubectl.put(installed, items)
    assert "running" not in {gang.name for gang in taken(installed).gangs}


def test_failed_pods_are_replaced(installed: Path) -> None:
    items = cluster()
    pods = [item for item in items if item["kind"] == "Pod"]
    pods[1]["status"]["phase"] = "Failed"
    kubectl.put(installed, items)
    (running,) = (gang for gang in taken(installed).gangs if gang.name == "running")
    (shape,) = running.pods
    assert (running.minimum, shape.count, shape.nodes) == (2, 2, ["n"])


def test_pods_on_deleted_nodes_are_omitted(installed: Path) -> None:
    items = cluster()
    pods = [item for item in items if item["kind"] == "Pod"]
    pods[1]["spec"]["nodeName"] = "deleted"
    kubectl.put(installed, items)
    (running,) = (gang for gang in taken(installed).gangs if gang.name == "running")
    (shape,) = running.pods
    assert (running.size, shape.nodes, running.state) == (2, ["n"], "pending")


def test_requests_count_init_containers_as_kubernetes_does() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("1", restartPolicy="Always"), container("4")],
    }
    assert requests(spec) == {"cpu": "5"}
    spec["initContainers"].reverse()
    assert requests(spec) == {"cpu": "4"}
    assert requests({"containers": [container("5")]}) == {"cpu": "5"}
