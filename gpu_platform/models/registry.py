"""Client for artifacts in an OCI registry.

Content that is read by digest is verified against the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import requests
from oras.auth import AuthenticationException
from oras.container import Container
from oras.provider import Registry

from gitops.errors import GitopsError
from gpu_platform.models.artifact import MANIFEST_TYPE, Descriptor, digest_of
from kube.promoted_models import DIGEST

_REFERENCE: Final = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(:\d+)?)/(?P<repository>[a-z0-9]+([._/-]+[a-z0-9]+)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
TIMEOUT_SECONDS = (30.0, 600.0)
"""Timeouts (s) for connecting and for receiving a response, which may contain a large file."""
_MAX_MANIFEST_BYTES: Final = 4 * 2**20
_CHUNK_BYTES: Final = 2**20
SIGNATURE_SUFFIX: Final = ".sig"


@dataclass(frozen=True)
class Reference:
    """Name of an artifact: registry/repository, optionally with :tag or @digest."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a reference. Raise GitopsError if it is not valid."""
        match = _REFERENCE.fullmatch(text)
        if match is None or not re.search(r"[.:]|^localhost$", match["host"]):
            raise GitopsError(
                f"{text!r} is not the name of a model: write a name such as "
                "registry.example.com/models/digits, and append :TAG or @sha256:DIGEST for a "
                "single version"
            )
        return cls(match["host"], match["repository"], match["tag"], match["digest"])

    @property
    def name(self) -> str:
        """Name of the registry and the repository."""
        return f"{self.host}/{self.repository}"

    def at(self, version: str) -> str:
        """Return the reference with a tag or a digest."""
        return f"{self.name}{'@' if version.startswith('sha256:') else ':'}{version}"


class UnavailableError(GitopsError):
    """Error for a registry that did not respond, or responded with a server error or rate limit."""


class _Client(Registry):  # type: ignore[misc]
    """oras client without retries, which would take two minutes if the registry's name is wrong."""

    do_request: Callable[..., requests.Response] = Registry.do_request.__wrapped__


class Repository:
    """A repository in a registry. All methods raise GitopsError if a request fails."""

    def __init__(self, reference: Reference, *, plain_http: bool = False) -> None:
        self.reference = reference
        # The oras command and other programs read SSL_CERT_FILE, but the requests library does not.
        trusted: str | bool = os.environ.get("SSL_CERT_FILE") or True
        root = f"{'http' if plain_http else 'https'}://{reference.host}/v2/"
        with self._wrap_errors("cannot be reached"):
            response = requests.get(root, timeout=TIMEOUT_SECONDS[0], verify=trusted)
        challenge = response.headers.get("WWW-Authenticate", "").lower()
        self._root = f"{root}{reference.repository}/"
        self._container = Container(reference.name)
        self._client = _Client(
            reference.host,
            insecure=plain_http,
            tls_verify=trusted,
            auth_backend="basic" if challenge.startswith("basic") else "token",
        )
        session = self._client.session
        session.request = partial(session.request, timeout=TIMEOUT_SECONDS)
        with self._wrap_errors("cannot be used"):
            self._client.auth.load_configs(self._container)
        if challenge.startswith("basic") and not hasattr(self._client.auth, "_basic_auth"):
            raise GitopsError(
                f"{reference.host} requires a login, but ~/.docker/config.json has no credentials "
                f"for it: run `docker login {reference.host}`"
            )

    def resolve(self, version: str) -> str:
        """Return the digest for a tag or digest. Raise GitopsError if it does not exist."""
        if not version.startswith("sha256:"):
            return digest_of(self._manifest_bytes(version))
        self.manifest(version)
        return version

    def manifest(self, digest: str) -> bytes:
        """Return a manifest after verifying its digest."""
        content = self._manifest_bytes(digest)
        if digest_of(content) != digest:
            raise GitopsError(
                f"{self.reference.at(digest)}: the registry sent a different manifest"
            )
        return content

    def tags(self) -> list[str]:
        """Return all tags except signature tags; empty if the repository does not exist."""
        with self._wrap_errors("did not return its tags"):
            response = self._request(f"{self._root}tags/list")
            if response.status_code == 404:
                return []
            found = self._client.get_tags(self._container)
        return sorted(tag for tag in found if not tag.endswith(SIGNATURE_SUFFIX))

    def signature(self, digest: str) -> bytes:
        """Return the signature bundle of an artifact."""
        tag = _signature_tag(digest)
        with self._wrap_errors("cannot be read"):
            response = self._request(f"{self._root}manifests/{tag}", "HEAD")
        if response.status_code == 404:
            raise GitopsError(f"{self.reference.at(digest)} is not signed")
        try:
            (bundle,) = json.loads(self._manifest_bytes(tag))["layers"]
            return self.blob(bundle["digest"])
        except (ValueError, KeyError, TypeError):
            raise GitopsError(f"{self.reference.at(tag)} is not a valid signature") from None

    def blob(self, digest: str) -> bytes:
        """Return the content of a small blob."""
        content = b""
        for chunk in self._chunks(digest):
            content += chunk
            if len(content) > _MAX_MANIFEST_BYTES:
                raise GitopsError(f"{self.reference.at(digest)} is too large")
        return content

    def download(self, digest: str, path: Path) -> None:
        """Write a blob to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            for chunk in self._chunks(digest):
                stream.write(chunk)

    def push_blob(self, content: Path, layer: Descriptor) -> None:
        """Upload a file unless the repository already contains it."""
        with self._wrap_errors(f"did not accept {content.name}"):
            self._client._check_200_response(
                self._client.upload_blob(str(content), self._container, layer)
            )

    def push_manifest(self, content: bytes, version: str) -> None:
        """Upload a manifest under a digest or a tag. An existing tag is moved."""
        headers = {"Content-Type": json.loads(content).get("mediaType", MANIFEST_TYPE)}
        with self._wrap_errors(f"did not accept {version}"):
            url = f"{self._root}manifests/{version}"
            self._client._check_200_response(self._request(url, "PUT", content, headers))

    def push_signature(self, digest: str, content: bytes) -> None:
        """Upload the manifest of a signature."""
        self.push_manifest(content, _signature_tag(digest))

    def _manifest_bytes(self, version: str) -> bytes:
        with self._wrap_errors("cannot be read"):
            response = self._request(f"{self._root}manifests/{version}")
            if response.status_code == 404:
                raise GitopsError(
                    f"{self.reference.at(version)} does not exist: "
                    f"`python -m gpu_platform models list {self.reference.name}` prints the tags"
                )
            self._client._check_200_response(response)
        if len(response.content) > _MAX_MANIFEST_BYTES:
            raise GitopsError(f"{self.reference.at(version)} is too large for a manifest")
        return response.content

    def _chunks(self, digest: str) -> Iterator[bytes]:
        checksum = hashlib.sha256()
        if not re.fullmatch(DIGEST, digest):
            raise GitopsError(f"{self.reference.name}: {digest!r} is not a valid digest")
        with self._wrap_errors(f"did not return {digest}"):
            response = self._request(f"{self._root}blobs/{digest}", stream=True)
            self._client._check_200_response(response)
            for chunk in response.iter_content(_CHUNK_BYTES):
                checksum.update(chunk)
                yield chunk
        if f"sha256:{checksum.hexdigest()}" != digest:
            raise GitopsError(f"{self.reference.name}: the blob {digest} is damaged")

    def _request(
        self,
        url: str,
        method: str = "GET",
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        accepted = {"Accept": f"{MANIFEST_TYPE}, application/octet-stream", **(headers or {})}
        response = self._client.do_request(url, method, data, accepted, None, stream)
        if response.status_code == 429 or response.status_code >= 500:
            response.raise_for_status()
        return response

    @contextmanager
    def _wrap_errors(self, problem: str) -> Iterator[None]:
        try:
            yield
        except (requests.RequestException, AuthenticationException, ValueError, OSError) as error:
            reason = str(error).strip().partition("\n")[0]
            is_unavailable = isinstance(error, requests.RequestException)
            kind = UnavailableError if is_unavailable else GitopsError
            raise kind(f"{self.reference.name} {problem}: {reason}") from None


def _signature_tag(digest: str) -> str:
    return f"{digest.replace(':', '-')}{SIGNATURE_SUFFIX}"
