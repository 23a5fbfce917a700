"""The whole recorder, with the real client and a simulated transport."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lightkube import AsyncClient

from recorder import log_streams
from recorder.pods import Attempt
from recorder.records import Bounds
from recorder.watch import Recorder
from tests.recorder.examples import RUN, Api, document, ended, pod


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture
async def api(claims: Path) -> AsyncIterator[Api]:
    """An API server that a recorder watches and a test changes."""
    made = Api()
    recorder = Recorder(made.client, claims, Bounds())

    async def forever() -> None:
        while True:
            await recorder.observe()

    task = asyncio.create_task(forever())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def kept(claims: Path) -> list[dict[str, Any]]:
    files = sorted((claims / "checkpoints" / RUN).rglob("*.json"))
    return [json.loads(path.read_text()) for path in files]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_failed_pod_is_kept_with_lines_and_events(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["21:16 the last line"]
    api.tell("ADDED", document())
    api.tell("MODIFIED", document(state=ended(137)))
    await until(lambda: bool(kept(claims)))
    [record] = kept(claims)
    assert (record["exitCode"], record["reason"], record["run"]) == (137, "OOMKilled", RUN)
    assert {event["object"] for event in record["events"]} == {
        "Pod/worker-0",
        f"Pod/{RUN}",
        f"Pod/{RUN}-group",
    }
    [log] = claims.rglob("*.log")
    assert log.read_text() == "21:16 the last line\n"


async def test_a_deleted_pod_is_recorded_with_its_log(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["one", "two"]
    api.tell("ADDED", document())
    await until(lambda: any(path.endswith("/log") for path in api.asked))
    del api.logs["worker-0"]
    api.tell("DELETED", document())
    await until(lambda: bool(kept(claims)))
    [record] = kept(claims)
    assert (record["exitCode"], record["reason"]) == (None, "Deleted")
    [log] = claims.rglob("*.log")
    assert log.read_text() == "one\ntwo\n"


async def test_a_succeeded_pod_leaves_no_record(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["done"]
    api.tell("ADDED", document())
    api.tell("MODIFIED", document(state=ended(0)))
    api.tell("DELETED", document(state=ended(0)))
    api.logs["worker-1"] = ["failed"]
    api.tell("ADDED", document("worker-1", state=ended(1)))
    await until(lambda: bool(kept(claims)))
    assert [record["pod"] for record in kept(claims)] == ["worker-1"]


@pytest.mark.parametrize("code", [0, 1])
async def test_lines_of_terminated_containers_are_dropped(code: int, claims: Path) -> None:
    api = Api()
    api.logs["worker-0"] = ["line"]
    recorder = Recorder(api.client, claims, Bounds())
    recorder.update(pod())
    await until(lambda: bool(recorder.streams._tails))
    recorder.update(pod(state=ended(code)))
    await until(lambda: len(kept(claims)) == code)
    assert not recorder.streams._tails


async def test_a_lost_api_server_is_watched_again(api: Api, claims: Path) -> None:
    api.away = 3
    api.pods = [document(state=ended(1))]
    api.logs["worker-0"] = ["said before"]
    api.changes.put_nowait(None)  # the watch ends
    await until(lambda: bool(kept(claims)))
    assert kept(claims)[0]["exitCode"] == 1


async def test_pods_deleted_while_disconnected_are_recorded(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["before"]
    api.tell("ADDED", document())
    await until(lambda: any(path.endswith("/log") for path in api.asked))
    api.away = 2
    api.changes.put_nowait(None)  # the watch ends, and the next requests fail
    await until(lambda: bool(kept(claims)))
    assert kept(claims)[0]["reason"] == "Deleted"


async def test_an_unmounted_claim_is_skipped(
    api: Api, claims: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.logs["worker-0"] = []
    api.tell("ADDED", document(state=ended(1), claim="elsewhere"))
    await until(lambda: "not mounted in the recorder" in caplog.text)
    assert [path.name for path in claims.iterdir()] == ["checkpoints"]


async def test_many_logs_use_additional_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_streams, "MAX_STREAMS", 2)
    api, made = Api(), []

    def connect() -> AsyncClient:
        made.append(api.client())
        return made[-1]

    logs = log_streams.LogStreams(connect, 10, 1000)
    attempts = [Attempt(f"uid-{number}", f"worker-{number}", "training", 0) for number in range(5)]
    for attempt in attempts:
        api.endless[attempt.pod] = f"line of {attempt.pod}"
        logs.follow(attempt)
    await until(lambda: all(path in api.requested_logs for path in api.endless))
    assert len(made) == 1 + 3
    for attempt in attempts:
        logs.forget(attempt.uid)
    await asyncio.sleep(0)
