"""Start, reload and shutdown of a server process."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.inference.engine.exports import write_probe
from tests.inference.engine.probes import SLEEP
from tests.inference.serving import INFER, Server, digits, request_body, serving
from tests.training.programs import free_port, start, until


def test_server_waits_for_its_export_and_then_serves_it(trained: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    with serving(tmp_path, export) as server:
        assert server.ready.status_code == 503
        assert "does not exist yet" in server.ready.json()["reason"]
        response = server.client.post(INFER, content=b"{}")
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        shutil.copytree(trained, tmp_path / "copy")
        weights = tmp_path / "copy/model.safetensors"
        original = weights.read_bytes()
        weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        (tmp_path / "copy").rename(export)
        damaged = "not those that were exported"
        until(lambda: damaged in server.ready.json()["reason"], seconds=240)
        (export / "model.safetensors").write_bytes(original)
        server.wait_until_ready()
        server.program.await_output('"event": "loaded"')
        check_invalid_version_is_not_served(server, export)
        server.program.signal(signal.SIGTERM)
        assert server.program.exit_code() == 0


def check_invalid_version_is_not_served(server: Server, export: Path) -> None:
    """Check reloads that are requested over HTTP and by SIGHUP."""
    served = server.client.get("/v2/models/digits").json()["versions"]
    unchanged = server.admin.post("/v2/repository/models/digits/load")
    assert (unchanged.status_code, unchanged.json()["version"]) == (200, served[0])
    manifest = export / "manifest.json"
    document = json.loads(manifest.read_text())
    document["weights"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(document))
    rejected = server.admin.post("/v2/repository/models/digits/load")
    assert rejected.status_code == 409
    assert "not those that were exported" in rejected.json()["error"]
    server.program.signal(signal.SIGHUP)
    until(lambda: "inference_reload_failures_total 2.0" in server.metrics, seconds=240)
    assert server.client.get("/v2/models/digits").json()["versions"] == served
    assert server.client.post(INFER, json=request_body(digits(1))).status_code == 200


def test_sigterm_makes_the_server_unready_and_finishes_requests_in_flight(
    trained: Path, tmp_path: Path
) -> None:
    body = json.dumps(request_body(digits(50))).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving(tmp_path, trained, notice_seconds=3) as server:
        server.wait_until_ready()
        with socket.create_connection(("127.0.0.1", server.port), 30) as slow:
            slow.sendall(head + body[:1000])
            until(lambda: server.in_flight == 1)
            server.program.signal(signal.SIGTERM)
            until(lambda: server.ready.status_code == 503)
            assert server.ready.json()["reason"] == "the server is shutting down"
            response = server.client.post(INFER, json=request_body(digits(1)))
            assert response.status_code == 200
            # The client then opens a new connection, which reaches another server.
            assert response.headers["connection"] == "close"
            until(lambda: not listens(server))
            slow.sendall(body[1000:])
            answer = b"".join(iter(lambda: slow.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][1]["data"]) == 50
        assert server.program.exit_code() == 0
        server.program.await_output('"event": "stopped"')


def test_requests_that_exceed_the_drain_time_get_503_before_the_exit(tmp_path: Path) -> None:
    write_probe(tmp_path / "export")
    handler = "tests.inference.engine.probes:Probe"
    settings = {"handler": handler, "notice_seconds": 0, "drain_seconds": 15}
    tensor = {"name": "inputs", "shape": [1, 3], "datatype": "FP32", "data": [SLEEP, 300, 0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving(tmp_path, tmp_path / "export", **settings) as server:
        server.wait_until_ready()
        with socket.create_connection(("127.0.0.1", server.port), 30) as slow:
            slow.sendall(head + body)
            until(lambda: server.in_flight == 1)
            begun = time.monotonic()
            server.program.signal(signal.SIGTERM)
            assert server.program.exit_code() == 0
            assert 15 <= time.monotonic() - begun < 29
            assert slow.recv(65536).startswith(b"HTTP/1.1 503 ")
        server.program.await_output('"event": "drain_timeout"')


def test_volume_that_does_not_respond_does_not_prevent_the_exit(tmp_path: Path) -> None:
    export = tmp_path / "export"
    export.mkdir()
    os.mkfifo(export / "manifest.json")
    with serving(tmp_path, export) as server:
        server.program.signal(signal.SIGTERM)
        assert server.program.exit_code(30) == 0


def test_second_signal_ends_the_server_immediately(trained: Path, tmp_path: Path) -> None:
    with serving(tmp_path, trained, notice_seconds=300) as server:
        # An exit during a worker's start would end CPython's fork server, which tests share.
        server.wait_until_ready()
        server.program.signal(signal.SIGTERM)
        until(lambda: server.ready.status_code == 503)
        server.program.signal(signal.SIGTERM)
        assert server.program.exit_code() == 128 + signal.SIGTERM


def test_sigterm_stops_a_server_that_runs_as_process_1(tmp_path: Path) -> None:
    port = free_port()
    settings = {"MODEL_NAME": "digits", "MODEL_PATH": "/none", "HOST": "127.0.0.1", "PORT": port}
    environment = {f"INFERENCE_{name}": str(setting) for name, setting in settings.items()}
    # The kernel does not deliver signals without a handler to PID 1.
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    with (tmp_path / "output").open("wb") as output:
        outside = subprocess.Popen(
            [*namespace, sys.executable, "-m", "inference"],
            env=os.environ | environment | {"INFERENCE_NOTICE_SECONDS": "0"},
            stdout=output,
        )
    try:
        until(lambda: '"event": "listening"' in (tmp_path / "output").read_text())
        [init] = psutil.Process(outside.pid).children()
        init.send_signal(signal.SIGTERM)
        assert outside.wait(60) == 0
    finally:
        outside.kill()
        outside.wait()
    assert '"event": "stopped"' in (tmp_path / "output").read_text()


def test_server_runs_while_its_log_is_on_a_full_disk() -> None:
    port = free_port()
    settings = {"MODEL_NAME": "digits", "MODEL_PATH": "/none", "HOST": "127.0.0.1", "PORT": port}
    environment = {f"INFERENCE_{name}": str(setting) for name, setting in settings.items()}
    with Path("/dev/full").open("w") as full:
        server = subprocess.Popen(
            [sys.executable, "-m", "inference"],
            env=os.environ | environment | {"INFERENCE_NOTICE_SECONDS": "0"},
            stdout=full,
        )

    def responds() -> bool:
        assert server.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/v2/health/live").status_code == 200
        return False

    try:
        until(responds)
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def listens(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "INFERENCE_MODEL_PATH is missing"),
        (
            {"MODEL_PATH": "/none", "API_KEYS_FILE": "/none/keys"},
            "INFERENCE_API_KEYS_FILE: /none/keys cannot be read",
        ),
        (
            {"MODEL_PATH": "/none", "TLS_KEY": "/none/key", "TLS_CERTIFICATE": "/none/chain"},
            "/none/chain with /none/key cannot be used",
        ),
    ],
)
def test_server_exits_with_64_after_a_configuration_error(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    environment = {f"INFERENCE_{name}": text for name, text in settings.items()}
    program = start(
        "inference", [], {"INFERENCE_MODEL_NAME": "digits", **environment}, tmp_path / "output"
    )
    assert program.exit_code() == 64
    assert message in json.loads(program.text)["message"]


def test_server_exits_with_64_if_its_port_is_in_use(server: Server, tmp_path: Path) -> None:
    environment = {
        "INFERENCE_MODEL_NAME": "digits",
        "INFERENCE_MODEL_PATH": "/none",
        "INFERENCE_HOST": "127.0.0.1",
        "INFERENCE_PORT": str(server.port),
        "INFERENCE_ADMIN_PORT": str(free_port()),
    }
    program = start("inference", [], environment, tmp_path / "output")
    assert program.exit_code() == 64
    assert "cannot listen on 127.0.0.1" in program.text


def test_disconnected_client_is_counted_and_leaves_no_request_in_flight(server: Server) -> None:
    body = json.dumps(request_body(digits(1))).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), 30) as client:
        client.sendall(head + body[:10])
        until(lambda: server.in_flight == 1)
    until(lambda: server.in_flight == 0)
    assert 'inference_requests_total{code="499",protocol="rest"}' in server.metrics
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as second_client:
        assert second_client.post(INFER, content=body).status_code == 200
