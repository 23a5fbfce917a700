"""A server with TLS, API keys, tracing and a request log."""

import hashlib
import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from inference.access import Access
from tests.inference.serving import INFER, Server, digits, request_body, serving
from tests.training.programs import until

KEY, OTHER, ADMIN, SLOW = "plain-key", "hashed-key", "admin-key", "slow-key"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Collector:
    """An HTTP server that receives spans like an OpenTelemetry collector."""

    spans: list[Any] = field(default_factory=list)

    @property
    def handler(self) -> type[BaseHTTPRequestHandler]:
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                message = ExportTraceServiceRequest.FromString(body)
                for resource in message.resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, int]]:
    received = Collector()
    with ThreadingHTTPServer(("127.0.0.1", 0), received.handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield received, listening.server_port
        listening.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    file.write_text(
        f"# keys of the tests\n{KEY}\nhashed infer sha256:{digest}\n"
        f"operator admin {ADMIN}\nslow infer:2 {SLOW}\n"
    )
    return file


@pytest.fixture(scope="module")
def secured(
    trained: Path,
    authority: trustme.CA,
    keys: Path,
    collector: tuple[Collector, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secured")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key")
    certificate.cert_chain_pems[0].write_to_path(folder / "chain")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    settings = {
        "tls_certificate": folder / "chain",
        "tls_key": folder / "key",
        "tls_minimum": "1.3",
        "api_keys_file": keys,
        "request_log": "all",
        "tracing_endpoint": f"http://127.0.0.1:{collector[1]}/v1/traces",
    }
    with serving(folder, trained, verify=trusted, **settings) as running:
        running.wait_until_ready()
        yield running
        # The client keeps an idle connection, and does not answer the server's TLS close message.
        running.program.signal(signal.SIGTERM)
        assert running.program.exit_code() == 0
        assert '"event": "drain_timeout"' not in running.program.text


def test_health_probes_and_metrics_need_no_key(secured: Server) -> None:
    assert secured.client.get("/v2/models/digits/ready").status_code == 200
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
        assert secured.admin.get(path).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {OTHER}"}, 200),
        ({"X-API-Key": OTHER}, 200),
    ],
)
def test_requests_need_a_valid_key(headers: dict[str, str], code: int, secured: Server) -> None:
    response = secured.client.post(INFER, json=request_body(digits(1)), headers=headers)
    assert response.status_code == code
    assert ("www-authenticate" in response.headers) == (code == 401)
    assert secured.client.get("/v2", headers=headers).status_code == code
    assert KEY not in secured.program.text
    assert OTHER not in secured.program.text


def test_refusals_without_a_key_do_not_reveal_the_models_name(secured: Server) -> None:
    path = "/v2/models/other/infer"
    response = secured.client.post(path, json={})
    assert response.status_code == 401
    assert "digits" not in response.text
    assert secured.client.post(path, json={}, headers={"X-API-Key": KEY}).status_code == 404


def test_openapi_description_includes_the_responses_to_rejected_keys(secured: Server) -> None:
    for port in (secured.client, secured.admin):
        paths = port.get("/openapi.json", headers={"X-API-Key": ADMIN}).json()["paths"]
        answers = [set(each["responses"]) for path in paths.values() for each in path.values()]
        assert any({"401", "403"} <= codes for codes in answers)
        assert all(("401" in codes) == ("403" in codes) for codes in answers)


def test_a_key_permits_only_its_scopes(secured: Server) -> None:
    load = "/v2/repository/models/digits/load"
    assert secured.admin.post(load).status_code == 401
    response = secured.admin.post(load, headers={"X-API-Key": OTHER})
    assert response.status_code == 403
    assert response.json()["error"] == "API key 'hashed' lacks the 'admin' scope"
    assert secured.admin.post(load, headers={"X-API-Key": ADMIN}).status_code == 200
    assert secured.client.get("/v2", headers={"X-API-Key": ADMIN}).status_code == 403


def test_key_quota_is_enforced_and_metrics_contain_the_key_name(secured: Server) -> None:
    headers = {"X-API-Key": SLOW}
    answers = [
        secured.client.post(INFER, json=request_body(digits(1)), headers=headers) for _ in range(8)
    ]
    codes = [answer.status_code for answer in answers]
    assert codes[:2] == [200, 200]
    assert 429 in codes
    over = answers[codes.index(429)]
    assert over.json()["error"] == "API key 'slow' is limited to 2 requests per second"
    assert 'inference_key_requests_total{code="429",key="slow"}' in secured.metrics
    until(lambda: '"key": "slow"' in secured.program.text)


def test_a_renewed_certificate_is_used_without_a_restart(
    secured: Server, authority: trustme.CA
) -> None:
    def serial() -> str:
        pem = ssl.get_server_certificate(("127.0.0.1", secured.port))
        return hashlib.sha256(pem.encode()).hexdigest()

    old_serial = serial()
    folder = secured.program.output.parent
    renewed = authority.issue_cert("127.0.0.1")
    renewed.private_key_pem.write_to_path(folder / "key")
    renewed.cert_chain_pems[0].write_to_path(folder / "chain")
    until(lambda: serial() != old_serial)
    assert secured.ready.status_code == 200


def test_tls_below_the_minimum_version_is_refused(secured: Server, authority: trustme.CA) -> None:
    old = ssl.create_default_context()
    authority.configure_trust(old)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://127.0.0.1:{secured.port}/v2/health/live", verify=old)


def test_request_is_logged_once_and_traced(
    secured: Server, collector: tuple[Collector, int]
) -> None:
    headers = {"X-API-Key": KEY, "X-Request-Id": "traced", "traceparent": PARENT}
    secured.client.post(INFER, json=request_body(digits(1)), headers=headers)

    def log_lines_of_the_request() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in secured.program.text.splitlines()]
        return [line for line in lines if line.get("id") == "traced"]

    # The line is written by a thread after the answer is sent.
    until(lambda: len(log_lines_of_the_request()) > 0)
    [line] = log_lines_of_the_request()
    assert line["event"] == "request"
    assert (line["method"], line["path"], line["code"]) == ("POST", INFER, 200)
    spans = collector[0].spans
    trace = bytes.fromhex(PARENT.split("-")[1])
    until(lambda: len([span for span in spans if span.trace_id == trace]) == 3)
    request_spans = {span.name: span for span in spans if span.trace_id == trace}
    root = request_spans.pop("rest digits")
    assert root.parent_span_id == bytes.fromhex(PARENT.split("-")[2])
    assert {span.parent_span_id for span in request_spans.values()} == {root.span_id}
    assert set(request_spans) == {"queue", "compute"}


def test_keys_file_is_read_again_when_it_changes(secured: Server, keys: Path) -> None:
    new = keys.with_name("new")
    new.write_text(f"{KEY}\nadded-later\n")
    new.replace(keys)
    added = {"X-API-Key": "added-later"}
    until(lambda: secured.client.get("/v2", headers=added).status_code == 200)
    assert secured.client.get("/v2", headers={"X-API-Key": OTHER}).status_code == 401
    assert "added-later" not in secured.program.text


def test_current_keys_are_kept_if_the_keys_file_becomes_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n")
    access = Access(str(file))
    file.write_text("sha256:short\n")
    access.refresh()
    assert access.find(None, KEY)
    assert access.find(None, "sha256:short") is None
    logged = capsys.readouterr().out
    assert "api_keys_kept" in logged
    assert "short" not in logged


def test_oldest_connections_without_a_tls_handshake_are_closed_for_new_ones(
    secured: Server,
) -> None:
    """At most one eighth of the 4096 connections may be waiting for a handshake."""
    address = (secured.client.base_url.host, secured.client.base_url.port)
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(520)]
        assert secured.client.get("/v2/health/live").status_code == 200
        first, last = opened[0], opened[-1]
        first.settimeout(4)
        assert first.recv(1) == b""
        last.settimeout(0.2)
        with pytest.raises(TimeoutError):
            last.recv(1)
