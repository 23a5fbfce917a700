"""A real registry for OCI artifacts: Debian's, with a certificate from a test CA."""

import hashlib
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.platforms import unavailable
from tests.training.programs import free_port, until

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Registry:
    """A running registry and its data directory."""

    host: str
    authority: Path
    folder: Path

    def send(
        self, method: str, url: str, body: bytes | None = None, kind: str = "application/json"
    ) -> Any:
        """Send a request and return the headers of the response."""
        request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)  # noqa: S310
        trusted = ssl.create_default_context(cafile=str(self.authority))
        with urllib.request.urlopen(request, timeout=60, context=trusted) as answer:  # noqa: S310
            return answer.headers

    def put_manifest(self, repository: str, version: str, content: bytes) -> None:
        """Store a manifest under a tag or its digest."""
        url = f"https://{self.host}/v2/{repository}/manifests/{version}"
        self.send("PUT", url, content, MANIFEST)

    def put_blob(self, repository: str, content: bytes, kind: str) -> dict[str, Any]:
        """Store a blob and return its descriptor."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        started = self.send("POST", f"https://{self.host}/v2/{repository}/blobs/uploads/", b"")
        upload = f"{started['Location']}&digest={digest}"
        self.send("PUT", upload, content, "application/octet-stream")
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def stored(self, digest: str) -> Path:
        """Return the file in which the registry stores a blob or a manifest."""
        name = digest.removeprefix("sha256:")
        return self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"


USER, PASSWORD = "publisher", "not-a-secret"
_USERS = f"{USER}:$2b$04$ZwWHZSv0GzHSfXQ4/GQFiecAikUTqvy7gQctMGlnOiVTtjkIF5tJu"
"""User name and password in htpasswd format."""


@contextmanager
def serving(folder: Path, *, login: bool = False) -> Iterator[Registry]:
    """Run a registry, optionally one that requires a login."""
    if shutil.which("docker-registry") is None:
        unavailable("no docker-registry (Debian's package of that name)")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "chain.pem")
    host = f"127.0.0.1:{free_port()}"
    tls = {"certificate": str(folder / "chain.pem"), "key": str(folder / "key.pem")}
    described: dict[str, Any] = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {"addr": host, "tls": tls},
    }
    if login:
        (folder / "users").write_text(_USERS)
        users = {"realm": "models", "path": str(folder / "users")}
        described["auth"] = {"htpasswd": users}
    (folder / "config.yml").write_text(yaml.safe_dump(described))
    with (folder / "log").open("wb") as log:
        command = ["docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    found = Registry(host, folder / "authority.pem", folder / "blobs")

    def responds() -> bool:
        try:
            found.send("GET", f"https://{host}/v2/")
        except urllib.error.HTTPError:
            return True
        except urllib.error.URLError:
            assert process.poll() is None, (folder / "log").read_text()
            return False
        return True

    try:
        until(responds)
        yield found
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("registry")) as found:
        yield found
