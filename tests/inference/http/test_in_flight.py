"""Overload: more requests or connections than the limits."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.inference.engine.exports import write_probe
from tests.inference.engine.probes import FINE, HOLD, RELEASE
from tests.inference.serving import Server, serving, value
from tests.training.programs import until

INFER = "/v2/models/probe/infer"
MAX_IN_FLIGHT = 3
"""Two requests in the worker, and one in the queue."""
CONNECTIONS = 60
BUFFERED = 2_000_000
LONG = 25
"""Seconds that the model computes unless it is released. The client's timeout is longer."""


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that the handler `Probe` serves."""
    folder = tmp_path_factory.mktemp("admission") / "export"
    write_probe(folder)
    return folder


@contextlib.contextmanager
def started(folder: Path, export: Path, **settings: float) -> Iterator[Server]:
    """Start a server with low limits on sizes and connections."""
    handler = "tests.inference.engine.probes:Probe"
    bounds = {"max_batch": 1, "max_queue": 1, "max_connections": CONNECTIONS}
    bounds |= {"max_body_bytes": 1_000_000, "max_buffered_bytes": BUFFERED}
    with serving(folder, export, name="probe", handler=handler, **bounds, **settings) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def server(export: Path) -> Iterator[Server]:
    """A server that soon closes stalled connections."""
    with started(export.parent, export, header_seconds=5, stall_seconds=2) as server:
        yield server


@pytest.fixture
def patient_server(export: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that keeps stalled connections longer than a busy machine delays a test."""
    with started(tmp_path, export) as server:
        yield server


def body(action: int, seconds: float = 0, padding: int = 0) -> bytes:
    tensor = {"name": "inputs", "shape": [1, 3], "datatype": "FP32", "data": [action, seconds, 7]}
    return json.dumps({"inputs": [tensor], "id": "x" * padding}).encode()


class RawConnection:
    """A connection on which a request is sent in pieces."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self._answers = self.socket.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self.socket.close()

    def head(self, length: int) -> None:
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        self.socket.sendall(head.encode())

    def send(self, content: bytes) -> None:
        self.head(len(content))
        self.socket.sendall(content)

    def answer(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers of the next answer."""
        status = int(self._answers.readline().split()[1])
        headers = {}
        while line := self._answers.readline().decode().strip():
            name, _, text = line.partition(": ")
            headers[name.lower()] = text
        self._answers.read(int(headers["content-length"]))
        return status, headers


@pytest.fixture
def release(export: Path) -> Iterator[Callable[[], None]]:
    """A function that ends the computation of `HOLD`. The fixture calls it after the test."""
    file = export / RELEASE
    yield file.touch
    file.touch()


@pytest.fixture(autouse=True)
def wait_until_idle(server: Server, export: Path) -> None:
    """Wait until the requests and connections of earlier tests have ended."""
    until(lambda: server.in_flight == 0)
    (export / RELEASE).unlink(missing_ok=True)


Connect = Callable[[Server], RawConnection]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that opens connections, which the fixture closes."""
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(contextlib.closing(RawConnection(server)))


def test_excess_requests_are_refused_before_their_bodies_are_read(
    server: Server, connect: Connect, release: Callable[[], None]
) -> None:
    with ThreadPoolExecutor(MAX_IN_FLIGHT) as senders:
        responses = [
            senders.submit(server.client.post, INFER, content=body(HOLD, LONG))
            for _ in range(MAX_IN_FLIGHT)
        ]
        until(lambda: server.in_flight == MAX_IN_FLIGHT)
        unsent, short = connect(server), connect(server)
        unsent.head(1_000_000)
        assert (answer := unsent.answer())[0] == 429
        assert int(answer[1]["retry-after"]) >= 1
        assert answer[1]["connection"] == "close"
        # The bodies of these requests were read completely, so the connection stays open.
        for padding in (0, 20_000):
            short.send(body(FINE, padding=padding))
            status, headers = short.answer()
            assert (status, headers.get("connection")) == (429, None)
        release()
        assert (
            sorted(response.result().status_code for response in responses) == [200] * MAX_IN_FLIGHT
        )
        short.send(body(FINE))
        assert short.answer()[0] == 200


def test_probes_and_metrics_are_answered_while_the_model_computes(
    server: Server, release: Callable[[], None]
) -> None:
    with ThreadPoolExecutor(1) as senders:
        computed = senders.submit(server.client.post, INFER, content=body(HOLD, LONG))
        until(lambda: server.in_flight == 1)
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
            assert server.admin.get(path).status_code == 200
        assert not computed.done()
        release()
        assert computed.result().status_code == 200


def test_slow_uploads_do_not_block_other_requests(patient_server: Server, connect: Connect) -> None:
    server = patient_server
    slow = [connect(server) for _ in range(MAX_IN_FLIGHT)]
    for connection in slow:
        connection.head(100)
    until(lambda: server.in_flight == len(slow))
    until(lambda: server.client.post(INFER, content=body(FINE)).status_code == 200)
    assert server.in_flight == len(slow)


def test_idle_connection_is_closed_to_accept_a_new_one(
    patient_server: Server, connect: Connect
) -> None:
    server = patient_server
    busy = connect(server)
    busy.head(10)
    staying = [connect(server) for _ in range(CONNECTIONS)]
    new = connect(server)
    new.send(body(FINE))
    assert new.answer()[0] == 200
    # The connection that has been idle for the longest time is closed.
    assert staying[0].socket.recv(1) == b""
    busy.socket.sendall(b"0123456789")
    assert busy.answer()[0] == 400


def test_stalled_body_is_refused_after_a_few_seconds(server: Server, connect: Connect) -> None:
    stalled = connect(server)
    stalled.head(1_000_000)
    started = time.monotonic()
    assert stalled.answer()[0] == 408
    assert time.monotonic() - started < 10


def test_connection_is_closed_if_its_headers_do_not_arrive(
    server: Server, connect: Connect
) -> None:
    silent, slow = connect(server), connect(server)
    slow.socket.sendall(b"GET /v2 HTTP/1.1\r\n")
    assert silent.socket.recv(1) == b""
    assert slow.socket.recv(1) == b""


def test_incomplete_large_bodies_do_not_block_new_requests(
    server: Server, connect: Connect
) -> None:
    stalled = [connect(server) for _ in range(4)]
    for connection in stalled:
        connection.head(BUFFERED // 3)
        connection.socket.sendall(b"x" * (BUFFERED // 3 - 1))
    assert {connection.answer()[0] for connection in stalled} <= {408, 429}
    assert server.client.post(INFER, content=body(FINE)).status_code == 200
    until(lambda: value(server.metrics, "inference_buffered_bytes") == 0)


def test_connection_is_closed_if_its_answers_are_not_read(server: Server, connect: Connect) -> None:
    unread = connect(server)
    unread.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(2000):
        unread.socket.setblocking(False)
        try:
            unread.socket.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
        except BlockingIOError:
            break
    unread.socket.settimeout(30)
    time.sleep(6)
    with contextlib.suppress(ConnectionError):
        while unread.socket.recv(1 << 20):
            pass


def test_a_request_is_canceled_when_its_client_disconnects(
    server: Server, connect: Connect, release: Callable[[], None]
) -> None:
    def cancelled() -> float:
        return value(server.metrics, 'inference_requests_total{code="499",protocol="rest"}')

    cancelled_before = cancelled()
    leaving = connect(server)
    leaving.send(body(HOLD, LONG))
    until(lambda: server.in_flight == 1)
    leaving.close()
    until(lambda: server.in_flight == 0)
    assert cancelled() == cancelled_before + 1
