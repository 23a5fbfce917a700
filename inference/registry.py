"""Files of a model in an OCI registry, listed with their digests in the artifact's manifest."""

import base64
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from typing import IO, Any, Final
from urllib.parse import urlencode, urlsplit

from inference.cache import Cache
from workload.manifest import MANIFEST_FILE, ExportError
from workload.store import CHUNK_BYTES, READ_SECONDS

SCHEME: Final = "oci"
USERNAME: Final = "OCI_USERNAME"
PASSWORD: Final = "OCI_PASSWORD"  # noqa: S105  the name of a variable
"""Environment variables with registry credentials. By default, requests are anonymous."""
PLAIN_HTTP: Final = "OCI_PLAIN_HTTP"
"""Environment variable: `true` selects HTTP without TLS, over which no credentials are sent."""

_URL: Final = re.compile(
    r"oci://(?P<host>[A-Za-z0-9.-]+(:\d+)?)/(?P<repository>[a-z0-9][a-z0-9._/-]*)"
    r"@sha256:(?P<digest>[0-9a-f]{64})"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_FILE_PATH: Final = "org.cncf.model.filepath"
_MAX_MANIFEST_BYTES: Final = 4 * 2**20
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that sends no credentials to another server, such as a blob store."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the redirected request, without credentials if it goes to another server.

        Raise HTTPError if the other server does not use HTTPS.
        """
        if urlsplit(newurl).scheme != "https" and not newurl.startswith(_origin(req.full_url)):
            problem = f"redirected to {newurl}, which does not use HTTPS"
            raise urllib.error.HTTPError(req.full_url, code, problem, headers, fp)
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and _origin(newurl) != _origin(req.full_url):
            found.remove_header("Authorization")
        return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


class RegistryFiles:
    """The files of one artifact.

    All methods raise OSError or ValueError if a request fails, and ExportError if content does not
    match its digest. Therefore, neither the registry nor the connection has to be trusted. Cached
    manifests are not requested again.
    """

    def __init__(self, url: str, cache: Cache | None = None) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError(
                f"use {SCHEME}://registry/repository@sha256:… with the digest of the artifact"
            )
        self._url, self._cache = url, cache
        scheme = "http" if os.environ.get(PLAIN_HTTP) == "true" else "https"
        self._base = f"{scheme}://{found['host']}/v2/{found['repository']}"
        self._authorization = ""
        self._opener = urllib.request.build_opener(_Redirects)
        digest = f"sha256:{found['digest']}"
        text = self._read_cached(f"manifests/{digest}", digest, _MAX_MANIFEST_BYTES)
        self._layers = _layers(url, text)

    def read(self, file: str) -> Iterator[bytes]:
        """Yield the content of a file. If its digest differs, raise ExportError at the end."""
        if file not in self._layers:
            raise ExportError(f"{self._url} has no file {file}")
        digest, size = self._layers[file]
        if file == MANIFEST_FILE:
            yield self._read_cached(f"blobs/{digest}", digest, min(size, _MAX_MANIFEST_BYTES))
        else:
            yield from self._download(f"blobs/{digest}", digest, size)

    def _read_cached(self, path: str, digest: str, limit: int) -> bytes:
        if self._cache is None:
            return b"".join(self._download(path, digest, limit))
        sha256 = digest.removeprefix("sha256:")
        content = self._cache.read(sha256, limit)
        if content is None:
            content = b"".join(self._download(path, digest, limit))
            self._cache.keep(sha256, content)
        return content

    def _download(self, path: str, digest: str, limit: int) -> Iterator[bytes]:
        content, done = hashlib.sha256(), 0
        with self._open(f"{self._base}/{path}") as response:
            while chunk := response.read(CHUNK_BYTES):
                content.update(chunk)
                done += len(chunk)
                if done > limit:
                    break
                yield chunk
            if done <= limit and response.length:
                raise OSError(f"the response ended {response.length} bytes too early")
        if f"sha256:{content.hexdigest()}" != digest:
            raise ExportError(f"{self._url}: the registry sent content that differs from {digest}")

    def _open(self, url: str) -> Any:
        try:
            return self._opener.open(self._request(url), timeout=READ_SECONDS)
        except urllib.error.HTTPError as error:
            # Respond to every 401, because the token of earlier requests may have expired. Ignore
            # challenges from blob stores, which must not choose who gets the credentials.
            challenged = error.code == 401 and _origin(error.url) == _origin(url)
            if not challenged or not url.startswith("https:"):
                raise
            self._authorization = _authorization_header(error.headers.get("WWW-Authenticate", ""))
        return self._opener.open(self._request(url), timeout=READ_SECONDS)

    def _request(self, url: str) -> urllib.request.Request:
        headers = {"Accept": f"{_MANIFEST_TYPE}, application/octet-stream"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        return urllib.request.Request(url, headers=headers)  # noqa: S310  https, or OCI_PLAIN_HTTP


def _layers(url: str, text: bytes) -> dict[str, tuple[str, int]]:
    try:
        found = {
            layer["annotations"][_FILE_PATH]: (str(layer["digest"]), int(layer["size"]))
            for layer in json.loads(text)["layers"]
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ExportError(f"{url} is not the manifest of a model: {error!r}") from None
    for digest, _ in found.values():
        if not _DIGEST.fullmatch(digest):
            raise ExportError(f"{url} has a layer with digest {digest}, which is not a SHA-256")
    return found


def _authorization_header(challenge: str) -> str:
    """Return the value of the Authorization header that answers a challenge.

    It contains Basic credentials, or a bearer token that is requested with these credentials. If no
    credentials are set, a Basic challenge is answered with an empty string.
    """
    user, password = os.environ.get(USERNAME, ""), os.environ.get(PASSWORD, "")
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    basic = f"Basic {pair}" if user else ""
    scheme, _, parameters = challenge.partition(" ")
    if scheme.lower() != "bearer":
        return basic
    query = dict(_CHALLENGE.findall(parameters))
    realm = query.pop("realm", "")
    if urlsplit(realm).scheme != "https":
        raise ValueError(f"the registry requires a token from {realm}, which does not use HTTPS")
    separator = "&" if urlsplit(realm).query else "?"
    request = urllib.request.Request(f"{realm}{separator}{urlencode(query)}")  # noqa: S310  https
    if basic:
        request.add_header("Authorization", basic)
    with urllib.request.build_opener(_Redirects).open(request, timeout=READ_SECONDS) as response:
        found = json.load(response)
    known = found if isinstance(found, dict) else {}
    if not (token := known.get("token") or known.get("access_token")):
        raise ValueError(f"{realm} returned no token")
    return f"Bearer {token}"
