"""The V2 protocol over REST on a real server."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from tests.inference.serving import INFER, Server, digits, output, request_body, value
from tests.training.programs import until
from training.data import held_out_digits
from workload.export import load_network
from workload.manifest import read_manifest


def test_predictions_over_http_equal_those_of_the_trained_model(
    server: Server, trained: Path
) -> None:
    images, labels = held_out_digits()
    response = server.client.post(INFER, json=request_body(images, id="all"))
    assert response.status_code == 200
    assert response.json()["id"] == "all"
    with torch.no_grad():
        network = load_network(trained, read_manifest(trained))
        expected = network(torch.from_numpy(images)).softmax(1).numpy()
    actual = np.array(output(response, "probabilities")).reshape(expected.shape)
    assert actual == pytest.approx(expected, abs=1e-6)
    assert output(response, "class") == expected.argmax(1).tolist()
    facts = server.client.get("/v2/models/digits").json()
    accuracy = np.mean(np.array(output(response, "label")).astype(int) == labels)
    assert accuracy == pytest.approx(facts["parameters"]["metrics"]["accuracy"])
    assert response.json()["model_version"] == facts["versions"][0]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/models/digits/ready", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/repository/models/digits/load", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v2/models/digits/versions/1", 404),
        ("GET", "/v2/models/digits/versions/1/ready", 404),
        ("GET", "/v2/models/digits/%ff%fe", 404),
        ("GET", "/v2/models/%64igits/ready", 200),
        ("GET", "/v2/models/digits%2Fready", 404),
        ("POST", "/v2/models/digits%2finfer", 405),
        ("GET", "/v2/models//infer", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("OPTIONS", INFER, 405),
        ("GET", "/", 404),
        ("POST", INFER, 400),
    ],
)
def test_every_path_returns_the_expected_status_code(
    method: str, path: str, code: int, server: Server
) -> None:
    response = server.client.request(method, path)
    assert response.status_code == code
    assert ("error" in response.json()) == (code >= 400)
    assert ("allow" in response.headers) == (code == 405)


def test_head_is_answered_like_get_but_without_a_body(server: Server) -> None:
    for path in ("/v2/health/live", "/v2", "/openapi.json"):
        response = server.client.head(path)
        assert (response.status_code, response.content) == (200, b"")
    assert server.client.head(INFER).status_code == 405


def test_model_version_has_its_own_path(server: Server) -> None:
    [version] = server.client.get("/v2/models/digits").json()["versions"]
    path = f"/v2/models/digits/versions/{version}"
    assert server.client.get(f"{path}/ready").status_code == 200
    response = server.client.post(f"{path}/infer", json=request_body(digits(1)))
    assert response.status_code == 200


BINARY = {"Inference-Header-Content-Length": "2"}
"""Header for a body that contains only tensors after its first two bytes."""


@pytest.mark.parametrize(
    ("headers", "limit"),
    [({}, "the JSON is larger than 500000"), (BINARY, "the body is larger than 1000000")],
)
def test_large_bodies_are_refused_with_and_without_content_length(
    server: Server, headers: dict[str, str], limit: str
) -> None:
    def unannounced() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    for content in (b" " * 1_000_001, unannounced()):
        try:
            response = server.client.post(INFER, content=content, headers=headers)
        except (httpx.WriteError, httpx.ReadError):
            continue  # The server answered and closed the connection before the end.
        assert response.status_code == 413
        assert limit in response.json()["error"]
    # The metrics thread may run before the rest of the body is dropped.
    until(lambda: value(server.metrics, "inference_buffered_bytes") == 0)


def test_json_with_a_content_length_above_the_limit_is_refused_before_it_is_sent(
    server: Server,
) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n"
    assert exchange(server, f"{head}\r\n".encode()).startswith(b"HTTP/1.1 413 ")
    tensors = f"{head}Inference-Header-Content-Length: 2\r\nConnection: close\r\n\r\n"
    # Bodies with tensors may be this large, so only their invalid JSON is refused.
    assert exchange(server, tensors.encode() + b" " * 600_000).startswith(b"HTTP/1.1 400 ")


def test_a_chunked_body_is_read(server: Server) -> None:
    body = json.dumps(request_body(digits(2))).encode()
    response = server.client.post(INFER, content=iter([body[:100], body[100:]]))
    assert response.status_code == 200


CHUNKED = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("chunk_end", [b"XX0\r\n\r\n", b"0\r\n\r\n", b"\r\nzz\r\n\r\n"])
def test_chunk_with_an_invalid_end_is_refused(server: Server, chunk_end: bytes) -> None:
    body = json.dumps(request_body(digits(2))).encode()
    answer = exchange(server, CHUNKED + f"{len(body):x}\r\n".encode() + body + chunk_end)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_truncated_chunked_body_is_not_computed(server: Server) -> None:
    body = json.dumps(request_body(digits(2))).encode()
    computed = value(server.metrics, "inference_samples_total")
    for sent in (f"{len(body):x}\r\n".encode() + body, f"{len(body):x}\r\n".encode() + body[:9]):
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(CHUNKED + sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(65536) == b""
    assert value(server.metrics, "inference_samples_total") == computed
    assert value(server.metrics, "inference_buffered_bytes") == 0


def exchange(server: Server, raw: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(raw)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nContent-Length: 7\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: x\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ],
)
def test_body_with_an_ambiguous_length_is_refused(server: Server, framing: bytes) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
    answer = exchange(server, head + framing + b"\r\n{}   ")
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))


def test_a_compressed_body_is_refused(server: Server) -> None:
    response = server.client.post(INFER, content=b"x", headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert "Content-Encoding" in response.json()["error"]


def test_an_uncompressed_body_may_be_declared_as_such(server: Server) -> None:
    response = server.client.post(INFER, content=b"x", headers={"Content-Encoding": "Identity"})
    assert "the body is not valid JSON" in response.json()["error"]


def test_every_answer_has_a_request_id(server: Server) -> None:
    mine = server.client.get("/v2", headers={"X-Request-Id": "mine"})
    assert mine.headers["x-request-id"] == "mine"
    others = {server.client.get("/v2").headers["x-request-id"] for _ in range(3)}
    assert len(others) == 3


def test_expired_deadline_is_answered_with_504(server: Server) -> None:
    body = request_body(digits(1))
    expired = server.client.post(INFER, json=body, headers={"X-Request-Timeout": "1e-9"})
    assert expired.status_code == 504
    assert "retry-after" in expired.headers
    assert server.client.post(INFER, json=body | {"parameters": {"timeout": 1}}).status_code == 504
    invalid = server.client.post(INFER, json=body, headers={"X-Request-Timeout": "soon"})
    assert invalid.status_code == 400
    assert "X-Request-Timeout" in invalid.json()["error"]


def test_metrics_count_requests_by_code_and_have_a_model_label(server: Server) -> None:
    def settled_metrics() -> str:
        # A request is counted after its answer is written. The metrics thread may run in between,
        # but the next request may not.
        server.client.get("/v2")
        return server.metrics

    metrics_before = settled_metrics()
    server.client.post(INFER, json=request_body(digits(5)))
    server.client.post(INFER, content=b"{")
    metrics_after = settled_metrics()
    for series, increase in (
        ('inference_requests_total{code="200",protocol="rest"}', 1),
        ('inference_requests_total{code="400",protocol="rest"}', 1),
        ("inference_samples_total", 5),
        ("inference_request_seconds_count", 2),
        ("inference_queue_seconds_count", 1),
        ("inference_model_seconds_count", 1),
        ("inference_batch_samples_sum", 5),
        ('inference_batch_samples_bucket{le="4.0"}', 0),
        ('inference_batch_samples_bucket{le="8.0"}', 1),
    ):
        assert value(metrics_after, series) - value(metrics_before, series) == increase, series
    [version] = server.client.get("/v2/models/digits").json()["versions"]
    assert f'version="{version}"' in metrics_after
    assert value(metrics_after, "inference_ready") == 1
    assert value(metrics_after, "inference_queue_depth") == 0
