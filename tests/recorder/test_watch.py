"""The complete recorder, with the real client and a simulated transport."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lightkube import AsyncClient

from recorder import log_streams
from recorder.pods import Attempt
from recorder.records import Bounds
from recorder.watch import Recorder
from tests.recorder.examples import RUN, Api, pod, pod_manifest, terminated_state


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture
async def api(claims: Path) -> AsyncIterator[Api]:
    """Return an API server that a recorder watches and that the test changes."""
    server = Api()
    recorder = Recorder(server.client, claims, Bounds())

    async def observe_forever() -> None:
        while True:
            await recorder.observe()

    task = asyncio.create_task(observe_forever())
    yield server
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def stored_records(claims: Path) -> list[dict[str, Any]]:
    files = sorted((claims / "checkpoints" / RUN).rglob("*.json"))
    return [json.loads(path.read_text()) for path in files]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


async def test_failed_pod_is_recorded_with_its_log_and_events(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["21:16 the last line"]
    api.emit("ADDED", pod_manifest())
    api.emit("MODIFIED", pod_manifest(state=terminated_state(137)))
    await wait_until(lambda: bool(stored_records(claims)))
    [record] = stored_records(claims)
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
    api.emit("ADDED", pod_manifest())
    await wait_until(lambda: any(path.endswith("/log") for path in api.requested_paths))
    del api.logs["worker-0"]
    api.emit("DELETED", pod_manifest())
    await wait_until(lambda: bool(stored_records(claims)))
    [record] = stored_records(claims)
    assert (record["exitCode"], record["reason"]) == (None, "Deleted")
    [log] = claims.rglob("*.log")
    assert log.read_text() == "one\ntwo\n"


async def test_a_succeeded_pod_leaves_no_record(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["done"]
    api.emit("ADDED", pod_manifest())
    api.emit("MODIFIED", pod_manifest(state=terminated_state(0)))
    api.emit("DELETED", pod_manifest(state=terminated_state(0)))
    api.logs["worker-1"] = ["failed"]
    api.emit("ADDED", pod_manifest("worker-1", state=terminated_state(1)))
    await wait_until(lambda: bool(stored_records(claims)))
    assert [record["pod"] for record in stored_records(claims)] == ["worker-1"]


@pytest.mark.parametrize("code", [0, 1])
async def test_log_lines_of_terminated_containers_are_released(code: int, claims: Path) -> None:
    api = Api()
    api.logs["worker-0"] = ["line"]
    recorder = Recorder(api.client, claims, Bounds())
    recorder.update(pod())
    await wait_until(lambda: bool(recorder.streams._tails))
    recorder.update(pod(state=terminated_state(code)))
    await wait_until(lambda: len(stored_records(claims)) == code)
    assert not recorder.streams._tails


async def test_watch_resumes_after_an_api_server_outage(api: Api, claims: Path) -> None:
    api.failing_requests = 3
    api.pods = [pod_manifest(state=terminated_state(1))]
    api.logs["worker-0"] = ["logged before"]
    api.changes.put_nowait(None)  # the watch ends
    await wait_until(lambda: bool(stored_records(claims)))
    assert stored_records(claims)[0]["exitCode"] == 1


async def test_pods_deleted_while_disconnected_are_recorded(api: Api, claims: Path) -> None:
    api.logs["worker-0"] = ["before"]
    api.emit("ADDED", pod_manifest())
    await wait_until(lambda: any(path.endswith("/log") for path in api.requested_paths))
    api.failing_requests = 2
    api.changes.put_nowait(None)  # the watch ends, and the next requests fail
    await wait_until(lambda: bool(stored_records(claims)))
    assert stored_records(claims)[0]["reason"] == "Deleted"


async def test_pods_with_an_unmounted_claim_are_skipped(
    api: Api, claims: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.logs["worker-0"] = []
    api.emit("ADDED", pod_manifest(state=terminated_state(1), claim="elsewhere"))
    await wait_until(lambda: "not mounted in the recorder" in capsys.readouterr().err)
    assert [path.name for path in claims.iterdir()] == ["checkpoints"]


async def test_record_is_written_once_the_claim_is_available(
    api: Api, claims: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, stat, failures = claims / "checkpoints", Path.stat, 2

    def unavailable(path: Path, **options: Any) -> os.stat_result:
        nonlocal failures
        if path == claim and failures:
            failures -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", unavailable)
    api.logs["worker-0"] = ["the last line"]
    api.emit("ADDED", pod_manifest(state=terminated_state(1)))
    await wait_until(lambda: bool(stored_records(claims)))
    assert failures == 0


async def test_many_logs_use_additional_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_streams, "MAX_STREAMS", 2)
    api, clients = Api(), []

    def connect() -> AsyncClient:
        clients.append(api.client())
        return clients[-1]

    logs = log_streams.LogStreams(connect, 10, 1000)
    attempts = [Attempt(f"uid-{number}", f"worker-{number}", "training", 0) for number in range(5)]
    for attempt in attempts:
        api.endless[attempt.pod] = f"line of {attempt.pod}"
        logs.follow(attempt)
    await wait_until(lambda: all(path in api.requested_logs for path in api.endless))
    assert len(clients) == 1 + 3
    for attempt in attempts:
        logs.forget(attempt.uid)
    await asyncio.sleep(0)
