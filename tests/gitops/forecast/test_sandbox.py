"""The sandbox, with a fake API server and scheduler log."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gitops.errors import GitopsError
from gitops.forecast.sandbox import PodState, Sandbox
from gitops.forecast.scheduler_log import SchedulerLog
from gitops.forecast.state import Queue
from tests.gitops.forecast.states import state

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {}}
CLOSED = "I0101 session.go:9] Close Session 1\n"
PAUSED = "I0101 scheduler.go:9] Finished loading scheduler config. Final state: actions=[shuffle]\n"
RESUMED = PAUSED.replace("shuffle", "allocate backfill")
MARKER = "I0101 event_handlers.go:9] Added pod <simulation/marker-0> into cache.\n"
PREEMPTED = "I0101 preempt.go:9] No preemptors in Queue <{}>, break.\n"
LOGS = {
    "1.14": 'I0101 cache.go:9] "SnapShot for scheduling" jobNum=12 QueueNum=2 NodeNum=34\n'
    "I0101 scheduler.go:9] Finished loading scheduler config. Final state: "
    "actions=[enqueue allocate], plugins=[gang]\n",
    "1.10": "I0101 cache.go:9] There are <12> Jobs, <2> Queues and <34> Nodes in total for "
    "scheduling.\nI0101 scheduler.go:9] Successfully loaded Scheduler conf, "
    "actions: [enqueue allocate], plugins: [gang]\n",
}
KNOWN = 'I0101 cache.go:9] "SnapShot for scheduling" jobNum={} QueueNum=2 NodeNum={}\n'


class Api:
    """A fake API server that accepts all objects except the given kinds."""

    def __init__(self, *rejected_kinds: str) -> None:
        self.rejected_kinds = rejected_kinds
        self.table: dict[str, Any] = {"columnDefinitions": [], "rows": []}
        self.requests: list[tuple[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path))
        body = json.loads(request.content) if request.content else {}
        if body.get("kind") in self.rejected_kinds:
            return httpx.Response(403, text="not now")
        if request.url.path.endswith("/pods"):
            return httpx.Response(200, json={"items": [], **self.table})
        return httpx.Response(200, json={"items": [READY] * 3})


def sandbox(folder: Path, api: Api, log: str = CLOSED, settings: Path = Path()) -> Sandbox:
    (folder / "log").write_text(log)
    client = httpx.Client(base_url="https://x.example", transport=httpx.MockTransport(api))
    return Sandbox(client, folder / "log", settings=settings)


def test_states_of_pods_are_read_from_the_table_of_the_api_server(tmp_path: Path) -> None:
    api = Api()
    cells = [("a", "Running", "gpu-0"), ("b", "Pending", "<none>"), ("c", "Pending", "gpu-1")]
    cells.append(("d", "Terminating", "gpu-1"))
    api.table = {
        "columnDefinitions": [{"name": name} for name in ("Name", "Status", "Node")],
        "rows": [{"cells": row} for row in cells],
    }
    found = sandbox(tmp_path, api).pod_states()
    assert found["a"] == PodState("gpu-0", "Running")
    assert found["b"].node is None
    assert {name for name, pod in found.items() if pod.is_transient} == {"c", "d"}


def test_only_complete_log_lines_count_as_sessions(tmp_path: Path) -> None:
    simulated = sandbox(tmp_path, Api(), CLOSED + "I0101] Close Session 2")
    assert simulated.sessions() == 1
    with (tmp_path / "log").open("a") as log:
        log.write(f"\nother\n{CLOSED}")
    assert simulated.sessions() == 3
    assert simulated.sessions() == 3


def test_scheduler_knows_a_marker_since_the_sessions_before_it(tmp_path: Path) -> None:
    simulated = sandbox(tmp_path, Api())
    marker = simulated.mark()
    assert simulated.known_since(marker) is None
    with (tmp_path / "log").open("a") as log:
        log.write(CLOSED + MARKER + CLOSED)
    assert simulated.known_since(marker) == 2
    assert simulated.sessions() == 3
    assert simulated.known_since(simulated.mark()) is None


def test_pods_of_a_gang_are_deleted_after_the_start_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, requested = Api(), []
    simulated = sandbox(tmp_path, api, "I0101 session.go:9] Open Session 1 with <0> Job\n" + CLOSED)

    def opened(_: float) -> None:
        requested.append([*api.requests])
        with (tmp_path / "log").open("a") as log:
            log.write("I0101 session.go:9] Open Session 2 with <0> Job\n")

    monkeypatch.setattr("gitops.forecast.sandbox.time.sleep", opened)
    simulated.end("gang-0-00000")
    assert requested == [[]]
    assert [method for method, _ in api.requests] == ["DELETE", "DELETE"]


@pytest.mark.parametrize("release", LOGS)
def test_log_of_each_volcano_release_is_parsed(release: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOGS[release])
    log = SchedulerLog(tmp_path / "log").read()
    assert (log.gangs, log.nodes) == (12, 34)
    assert (log.configuration_reads, log.actions) == (1, "enqueue allocate")


def test_queue_is_done_after_a_session_that_considers_it_first(tmp_path: Path) -> None:
    vision, language = PREEMPTED.format("vision"), PREEMPTED.format("language")
    of_vision, of_language = vision + language + CLOSED, language + vision + CLOSED
    simulated = sandbox(tmp_path, Api(), of_language + of_vision)
    since = simulated.sessions()
    queues = {"vision", "language", "without-admitted-gangs"}

    def remaining_after(session: str) -> set[str]:
        with (tmp_path / "log").open("a") as log:
            log.write(session)
        return simulated.untried_preemptions(queues, since)

    both = {"vision", "language"}
    # The first session may have started before the latest change.
    assert remaining_after(of_language) == both
    assert remaining_after(of_vision) == {"language"}
    assert remaining_after(of_vision + language) == {"language"}
    assert remaining_after(vision + CLOSED) == set()


def test_loading_a_second_state_applies_only_differences(tmp_path: Path) -> None:
    api = Api()
    simulated = sandbox(tmp_path, api)
    simulated.load(state())
    api.requests.clear()
    changed = state()
    changed.queues[0] = changed.queues[0].model_copy(update={"spec": {"weight": 3}})
    for each in (changed, changed, state()):
        simulated.load(each)
    written = [path.rpartition("/")[2] for method, path in api.requests if method == "PATCH"]
    assert written == ["vision", "vision"]


def test_parent_queues_are_created_first(tmp_path: Path) -> None:
    api = Api()
    parents = {"ai": "lab", "lab": "science", "science": "root", "root": ""}
    queues = [Queue(name=name, spec={"parent": parent}) for name, parent in parents.items()]
    sandbox(tmp_path, api).load(state().model_copy(update={"queues": queues}))
    names = [path.rpartition("/")[2] for method, path in api.requests if method == "PATCH"]
    assert [name for name in names if name in parents] == ["science", "lab", "ai"]


def test_changed_priority_class_is_recreated(tmp_path: Path) -> None:
    api = Api()
    simulated = sandbox(tmp_path, api)
    simulated.load(state())
    api.requests.clear()
    changed = state()
    changed.priority_classes[0] = changed.priority_classes[0].model_copy(update={"value": 3})
    simulated.load(changed)
    path = "/apis/scheduling.k8s.io/v1/priorityclasses/batch"
    assert [method for method, requested in api.requests if requested == path] == [
        "DELETE",
        "PATCH",
    ]


def test_rejected_object_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GitopsError, match="rejected an object: not now"):
        sandbox(tmp_path, Api("Node")).load(state())


class Scheduler:
    """A fake scheduler that appends the next text to its log whenever the sandbox sleeps."""

    def __init__(self, folder: Path, *texts: str) -> None:
        self._texts = list(texts)
        self._log, self.settings = folder / "log", folder / "scheduler.conf"
        self.settings.write_text("actions: allocate\n")
        self.configurations: list[str] = []

    def sleep(self, _: float) -> None:
        self.configurations.append(self.settings.read_text())
        with self._log.open("a") as log:
            log.write(self._texts.pop(0) if self._texts else "")


def paused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str, rejects: bool = False
) -> Scheduler:
    scheduler = Scheduler(folder, *texts)
    monkeypatch.setattr("gitops.forecast.sandbox.time.sleep", scheduler.sleep)
    monkeypatch.setattr("gitops.forecast.sandbox.TIMEOUT_SECONDS", 0.2)
    simulated = sandbox(folder, Api(), settings=scheduler.settings)
    simulated.load(state())
    with simulated.scheduler_paused():
        scheduler.configurations.append("block")
    assert simulated.rejects_configuration is rejects
    return scheduler


def test_paused_scheduler_resumes_once_it_knows_all_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing = [PAUSED, CLOSED, CLOSED]
    # The API server returns three PodGroups; the state has three nodes.
    incomplete = [MARKER, KNOWN.format(3, 2), KNOWN.format(2, 3)]
    scheduler = paused(tmp_path, monkeypatch, *pausing, *incomplete, KNOWN.format(3, 3), RESUMED)
    pause, resumed = "actions: shuffle\n", "actions: allocate\n"
    assert scheduler.configurations == [*[pause] * 3, "block", *[pause] * 4, resumed]


def test_rejected_configuration_is_replaced_by_volcanos_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [PAUSED, CLOSED * 2, MARKER, KNOWN.format(3, 3), PAUSED, RESUMED]
    scheduler = paused(tmp_path, monkeypatch, *texts, rejects=True)
    assert "name: proportion" in scheduler.settings.read_text()


@pytest.mark.parametrize(
    ("texts", "missing"),
    [
        ([], "has not read its configuration"),
        ([PAUSED, CLOSED], r"2 new lines with 'Close Session'"),
        ([PAUSED, CLOSED * 2], "has not seen pod marker-0"),
        ([PAUSED, CLOSED * 2, MARKER], "has seen 0 of 3 gangs and 0 of 3 nodes"),
    ],
)
def test_missing_scheduler_log_messages_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], missing: str
) -> None:
    with pytest.raises(GitopsError, match=missing):
        paused(tmp_path, monkeypatch, *texts)
