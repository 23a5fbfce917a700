"""The simulated cluster's API and the scheduler's log, without a cluster."""

import json
from pathlib import Path

import httpx
import pytest

from gitops.errors import GitopsError
from gitops.forecast.sandbox import Sandbox
from tests.gitops.forecast.states import state

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {}}
CLOSED = "I0101 session.go:9] Close Session 1\n"


class Api:
    """An API server that accepts everything but the kinds that it refuses."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.asked: list[tuple[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path))
        made = json.loads(request.content) if request.content else {}
        if made.get("kind") in self.refused:
            return httpx.Response(403, text="not now")
        return httpx.Response(200, json={"items": [READY] * 3})


def sandbox(folder: Path, api: Api, log: str = CLOSED) -> Sandbox:
    (folder / "log").write_text(log)
    client = httpx.Client(base_url="https://x.example", transport=httpx.MockTransport(api))
    return Sandbox(client, folder / "log")


def test_sessions_are_counted_once_and_only_in_complete_lines(tmp_path: Path) -> None:
    made = sandbox(tmp_path, Api(), CLOSED + "I0101] Close Session 2")
    assert made.sessions() == 1
    with (tmp_path / "log").open("a") as log:
        log.write(f"\nother\n{CLOSED}")
    assert made.sessions() == 3
    assert made.sessions() == 3


def test_a_second_state_applies_only_what_differs(tmp_path: Path) -> None:
    api = Api()
    made = sandbox(tmp_path, api)
    made.load(state())
    api.asked.clear()
    changed = state()
    changed.queues[0] = changed.queues[0].model_copy(update={"spec": {"weight": 3}})
    for each in (changed, changed, state()):
        made.load(each)
    written = [path.rpartition("/")[2] for method, path in api.asked if method == "PATCH"]
    assert written == ["vision", "vision"]


def test_a_rejected_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(GitopsError, match="rejected an object: not now"):
        sandbox(tmp_path, Api("Node")).load(state())


def test_a_scheduler_with_other_log_messages_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitops.forecast.sandbox.TIMEOUT_SECONDS", 0.1)
    with pytest.raises(GitopsError, match="no line of its log contains '] Close Session '"):
        sandbox(tmp_path, Api(), "another text\n").load(state())
