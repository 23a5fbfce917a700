"""Authorization of downloads from an OCI registry."""

import hashlib
import io
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl

import pytest
import trustme

from inference import registry
from inference.registry import RegistryFiles
from workload.manifest import ExportError

REGISTRY, BLOB_STORE = "https://registry.example.com/", "https://blobs.example.com/"
WEIGHTS = b"weights"
FILES = ("model.safetensors", "int8.pt2")


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


MANIFEST = json.dumps(
    {
        "layers": [
            {
                "annotations": {"org.cncf.model.filepath": file},
                "digest": digest(WEIGHTS),
                "size": len(WEIGHTS),
            }
            for file in FILES
        ]
    }
).encode()


class Body(io.BytesIO):
    """The body of a complete response."""

    length = 0


class Server:
    """A registry that accepts only the latest token. It replaces `urllib`'s opener."""

    def __init__(self) -> None:
        self.tokens = 0
        self.accepted: str | None = None
        self.refuse_all = False
        self.refused_by = REGISTRY
        """The server that requires authorization: the registry or its blob store."""

    def authorize(self, challenge: str) -> str:
        assert challenge == 'Bearer realm="https://tokens.example.com/"'
        self.tokens += 1
        self.accepted = f"Bearer {self.tokens}"
        return self.accepted

    def open(self, request: urllib.request.Request, timeout: float) -> Body:
        authorization = request.get_header("Authorization")
        if self.refuse_all or authorization is None or authorization != self.accepted:
            headers = Message()
            headers["WWW-Authenticate"] = 'Bearer realm="https://tokens.example.com/"'
            url = request.full_url.replace(REGISTRY, self.refused_by)
            raise urllib.error.HTTPError(url, 401, "Unauthorized", headers, None)
        return Body(MANIFEST if "/manifests/" in request.full_url else WEIGHTS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(registry, "_authorization_header", server.authorize)
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_: server)
    return server


def files(manifest: bytes = MANIFEST) -> RegistryFiles:
    return RegistryFiles(f"oci://registry.example.com/models/digits@{digest(manifest)}")


def test_deeply_nested_manifest_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = b"[" * 10**5
    monkeypatch.setattr(server, "open", lambda *_, **__: Body(manifest))
    with pytest.raises(ExportError, match="is not the manifest of a model"):
        files(manifest)


def test_one_token_is_used_for_all_files(server: Server) -> None:
    artifact = files()
    assert [b"".join(artifact.read(file)) for file in FILES] == [WEIGHTS, WEIGHTS]
    assert server.tokens == 1


def test_expired_token_is_replaced_with_a_new_one(server: Server) -> None:
    artifact = files()
    server.accepted = None
    assert b"".join(artifact.read(FILES[0])) == WEIGHTS
    server.accepted = None
    assert b"".join(artifact.read(FILES[1])) == WEIGHTS
    assert server.tokens == 3


def test_refused_token_is_replaced_only_once(server: Server) -> None:
    artifact = files()
    server.refuse_all = True
    with pytest.raises(urllib.error.HTTPError, match="401"):
        b"".join(artifact.read(FILES[0]))
    assert server.tokens == 2


def test_token_is_not_sent_to_a_blob_store(server: Server) -> None:
    artifact = files()
    server.refuse_all, server.refused_by = True, BLOB_STORE
    with pytest.raises(urllib.error.HTTPError, match="401"):
        b"".join(artifact.read(FILES[0]))
    assert server.tokens == 1


class Interrupted(BaseHTTPRequestHandler):
    """A registry that closes the connection before the weights are complete."""

    def do_GET(self) -> None:
        content = MANIFEST if "/manifests/" in self.path else WEIGHTS
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if content is MANIFEST else content[:-2])

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_interrupted_download_is_not_reported_as_a_digest_mismatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(registry.PLAIN_HTTP, "true")
    with ThreadingHTTPServer(("127.0.0.1", 0), Interrupted) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"oci://127.0.0.1:{server.server_port}/models/digits@{digest(MANIFEST)}"
        with pytest.raises(OSError, match="2 bytes"):
            b"".join(RegistryFiles(url).read(FILES[0]))
        server.shutdown()
        thread.join()


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A token server with TLS. Tests replace its request handler."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv(registry.USERNAME, "reader")
    monkeypatch.setenv(registry.PASSWORD, "secret")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def challenge(server: ThreadingHTTPServer) -> str:
    return f'Bearer realm="https://127.0.0.1:{server.server_port}/token",service="registry"'


@pytest.mark.parametrize("query", ["", "?account=a"])
def test_query_of_the_realm_is_kept(tokens: ThreadingHTTPServer, query: str) -> None:
    requested: list[str] = []

    class Granting(Interrupted):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"token": "granted"}')

    tokens.RequestHandlerClass = Granting
    registry._authorization_header(challenge(tokens).replace("/token", f"/token{query}"))
    ((path, _, found),) = (each.partition("?") for each in requested)
    expected = {"service": "registry"} | ({"account": "a"} if query else {})
    assert (path, dict(parse_qsl(found))) == ("/token", expected)


class PlainServer(Interrupted):
    """A server without TLS that records the credentials that it receives."""

    received: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.received.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "stolen"}')


def test_token_servers_redirect_to_plain_http_is_refused(
    tokens: ThreadingHTTPServer,
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), PlainServer) as plain_server:

        class Redirecting(Interrupted):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{plain_server.server_port}/token")
                self.end_headers()

        thread = threading.Thread(target=plain_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        tokens.RequestHandlerClass = Redirecting
        with pytest.raises(urllib.error.HTTPError, match="does not use HTTPS"):
            registry._authorization_header(challenge(tokens))
        plain_server.shutdown()
        thread.join()
    assert PlainServer.received == []


def test_credentials_are_not_sent_to_the_target_of_a_token_servers_redirect(
    tokens: ThreadingHTTPServer,
) -> None:
    received: dict[str, str | None] = {}

    class Redirecting(Interrupted):
        def do_GET(self) -> None:
            host = self.headers["Host"].partition(":")[0]
            received[host] = self.headers["Authorization"]
            self.send_response(200 if host == "localhost" else 302)
            self.send_header("Location", f"https://localhost:{tokens.server_port}/token")
            self.end_headers()
            self.wfile.write(b'{"token": "granted"}')

    tokens.RequestHandlerClass = Redirecting
    assert "granted" in registry._authorization_header(challenge(tokens))
    assert received["127.0.0.1"] is not None
    assert received["localhost"] is None


@pytest.mark.parametrize("answer", ["{}", "[]", '{"token": ""}'])
def test_token_servers_answer_without_a_token_is_an_error(
    tokens: ThreadingHTTPServer, answer: str
) -> None:
    class WithoutToken(Interrupted):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

    tokens.RequestHandlerClass = WithoutToken
    with pytest.raises(ValueError, match="token"):
        registry._authorization_header(challenge(tokens))
