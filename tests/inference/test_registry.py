"""Authorization of downloads from an OCI registry that is replaced by a function."""

import hashlib
import io
import json
import threading
import urllib.error
import urllib.request
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from inference import registry
from inference.registry import RegistryFiles

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
    """A complete response."""

    length = 0


class Server:
    """A registry that accepts the latest token only."""

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
        given = request.get_header("Authorization")
        if self.refuse_all or given is None or given != self.accepted:
            headers = Message()
            headers["WWW-Authenticate"] = 'Bearer realm="https://tokens.example.com/"'
            url = request.full_url.replace(REGISTRY, self.refused_by)
            raise urllib.error.HTTPError(url, 401, "Unauthorized", headers, None)
        return Body(MANIFEST if "/manifests/" in request.full_url else WEIGHTS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(registry, "_authorized", server.authorize)
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_: server)
    return server


def files() -> RegistryFiles:
    return RegistryFiles(f"oci://registry.example.com/models/digits@{digest(MANIFEST)}")


def test_one_token_is_used_for_all_files(server: Server) -> None:
    found = files()
    assert [b"".join(found.read(file)) for file in FILES] == [WEIGHTS, WEIGHTS]
    assert server.tokens == 1


def test_an_expired_token_is_replaced(server: Server) -> None:
    found = files()
    server.accepted = None
    assert b"".join(found.read(FILES[0])) == WEIGHTS
    server.accepted = None
    assert b"".join(found.read(FILES[1])) == WEIGHTS
    assert server.tokens == 3


def test_a_refused_token_is_replaced_once(server: Server) -> None:
    found = files()
    server.refuse_all = True
    with pytest.raises(urllib.error.HTTPError, match="401"):
        b"".join(found.read(FILES[0]))
    assert server.tokens == 2


def test_a_blob_store_gets_no_token(server: Server) -> None:
    found = files()
    server.refuse_all, server.refused_by = True, BLOB_STORE
    with pytest.raises(urllib.error.HTTPError, match="401"):
        b"".join(found.read(FILES[0]))
    assert server.tokens == 1


class Interrupted(BaseHTTPRequestHandler):
    """A registry whose responses with weights end too early."""

    def do_GET(self) -> None:
        content = MANIFEST if "/manifests/" in self.path else WEIGHTS
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if content is MANIFEST else content[:-2])

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_an_interrupted_download_is_not_taken_for_another_content(
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
