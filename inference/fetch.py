"""Download an export from a registry, an object store or a web server, and verify it.

  python -m inference.fetch oci://registry.example.com/models/digits@sha256:... /models/export
  python -m inference.fetch s3://models/digits-1a2b3c4d/export /models/export

workload.store describes the credentials for s3://, gs:// and az://. Registry credentials are read
from OCI_USERNAME and OCI_PASSWORD; set OCI_PLAIN_HTTP=true for a registry without TLS. Redirects
from a web server to another server are rejected, because they could lead to an address that only
this machine can reach.

--cache names a directory that several pods share. Files that this directory already contains
are copied instead of downloaded.
"""

import argparse
import contextlib
import signal
import string
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, BinaryIO, Final
from urllib.parse import quote, urlsplit

from inference.cache import Cache, copy
from inference.registry import SCHEME, RegistryFiles
from workload import exit_codes
from workload.files import write_atomically
from workload.manifest import (
    MANIFEST_FILE,
    ExportError,
    Manifest,
    UnavailableExportError,
    Weights,
    checked_file,
    parse_manifest,
    read_manifest,
)
from workload.report import conclude, emit
from workload.store import CHUNK_BYTES, READ_SECONDS, STORE_SCHEMES, connect, first_line

SCHEMES: Final = (SCHEME, *STORE_SCHEMES, "https", "http")

MAX_MANIFEST_BYTES: Final = 2**20
_REPORT_SECONDS: Final = 2.0

Read = Callable[[str], Iterator[bytes]]
"""Function that yields the content of a file in chunks."""


class FetchError(Exception):
    """The export could not be downloaded; the message contains the URL and the reason."""


def fetch(
    url: str,
    directory: Path,
    sha256: str = "",
    kinds: Sequence[str] = (),
    cache: Cache | None = None,
) -> Manifest:
    """Download the manifest, the weights and the artifacts of `kinds` to `directory`.

    The manifest is written last, so a directory that contains a manifest is complete. Every file
    must match the manifest. If `sha256` is given, the weights must have this digest. Existing
    files that match are kept, and cached files are copied instead of downloaded. Incomplete files
    of earlier downloads are removed, so only one process at a time may download to a directory.
    Raise FetchError if a file cannot be downloaded, and ExportError if the export does not match
    its manifest or lacks an artifact.
    """
    read = _open(url, cache)
    text = b"".join(_chunks(read, url, MANIFEST_FILE, MAX_MANIFEST_BYTES))
    manifest = parse_manifest(text, f"{url}/{MANIFEST_FILE}")
    if sha256 and manifest.weights.sha256 != sha256:
        raise ExportError(
            f"{url} has weights with sha256 {manifest.weights.sha256}, but {sha256} was requested"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # Earlier attempts that were killed, for example because of a memory limit, leave files behind.
    for unfinished in directory.glob(".*.tmp"):
        unfinished.unlink(missing_ok=True)
    for file in (manifest.weights, *(manifest.artifact(kind) for kind in kinds)):
        _provide(read, url, file, directory, cache)
    written = manifest.model_dump_json(indent=2, exclude_none=True)
    write_atomically(directory / MANIFEST_FILE, written.encode())
    return read_manifest(directory)


class _SameServerRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that rejects redirects to other servers."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Raise FetchError if the redirect points to another server."""
        if urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            raise FetchError(
                f"{req.full_url} redirects to {newurl.partition('?')[0]}: use the URL of that "
                "server if you trust it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, cache: Cache | None) -> Read:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchError(f"the URL cannot be used: {error}") from None
    if parts.scheme not in SCHEMES or parts.username is not None or parts.query:
        raise FetchError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path} cannot be used: use a URL "
            "without a user, a password or a query, and with one of the schemes "
            f"{', '.join(SCHEMES)}"
        )
    if parts.scheme == SCHEME:
        with _fetch_errors(f"{url} cannot be used"):
            return RegistryFiles(url, cache).read
    if parts.scheme not in STORE_SCHEMES:
        return lambda file: _read_web(f"{url}/{file}")
    from obstore import get

    with _fetch_errors(f"{url} cannot be used"):
        store = connect(url)
    return lambda file: map(bytes, get(store, file).stream(min_chunk_size=CHUNK_BYTES))


def _read_web(address: str) -> Iterator[bytes]:
    opener = urllib.request.build_opener(_SameServerRedirects)
    with opener.open(quote(address, safe=string.punctuation), timeout=READ_SECONDS) as response:
        while chunk := response.read(CHUNK_BYTES):
            yield chunk
        if response.length:
            raise FetchError(f"{address}: the response ended {response.length} bytes too early")


def _provide(read: Read, url: str, file: Weights, directory: Path, cache: Cache | None) -> None:
    """Copy a file from the cache or download it, unless `directory` contains an intact copy."""
    path = directory / file.file
    if path.exists():
        with contextlib.suppress(ExportError):
            checked_file(directory, file)
            return
    if cache is None:
        _download(read, url, file, directory)
        return
    with cache.lock(file.sha256) as progress:
        if not _copy_from_cache(cache, file, directory, progress):
            _download(read, url, file, directory, progress)
            cache.keep(file.sha256, path, progress)


def _copy_from_cache(
    cache: Cache, file: Weights, directory: Path, progress: Callable[[], object]
) -> bool:
    """Copy a file from the cache. Return False if there is no intact copy or copying fails."""
    with cache.open(file.sha256, file.size) as source:
        if source is None:
            return False
        try:
            _write(
                directory, file, lambda target: copy(source, target, file.size, progress), progress
            )
        except (OSError, UnavailableExportError) as error:
            # The target cannot be written or verified. The cached copy may be intact.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            emit("not_copied", file=file.file, reason=reason)
            return False
        except ExportError:
            cache.discard(file.sha256)
            return False
    emit("copied_from_cache", file=file.file, sha256=file.sha256)
    return True


def _download(
    read: Read, url: str, file: Weights, directory: Path, progress: Callable[[], object] = int
) -> None:
    def write(stream: BinaryIO) -> None:
        done, reported = 0, time.monotonic()
        for chunk in _chunks(read, url, file.file, file.size):
            stream.write(chunk)
            done += len(chunk)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                emit("fetching", file=file.file, bytes=done, of=file.size)
                progress()

    _write(directory, file, write, progress)


def _write(
    directory: Path,
    file: Weights,
    write: Callable[[BinaryIO], object],
    progress: Callable[[], object],
) -> None:
    """Write a file and verify it. If it does not match, delete it and raise ExportError."""
    write_atomically(directory / file.file, write)
    try:
        checked_file(directory, file, progress)
    except ExportError:
        (directory / file.file).unlink()
        raise


def _chunks(read: Read, url: str, file: str, limit: int) -> Iterator[bytes]:
    """Yield a file's content. Raise ExportError beyond `limit` bytes to protect disk and memory."""
    address, done = f"{url}/{file}", 0
    with _fetch_errors(f"{address} cannot be read"):
        for chunk in read(file):
            done += len(chunk)
            if done > limit:
                raise ExportError(f"{address} has more than the {limit} allowed bytes")
            yield chunk


@contextlib.contextmanager
def _fetch_errors(message: str) -> Iterator[None]:
    """Convert download errors to FetchError, with only the first line of their messages."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, HTTPException, ValueError, RecursionError) as error:
        raise FetchError(f"{message}: {first_line(error)}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Download an export, log the result and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m inference.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "url", help="URL of the export: oci://, s3://, gs://, az://, https:// or http://"
    )
    parser.add_argument("directory", type=Path, help="target directory")
    parser.add_argument("--sha256", default="", help="expected digest of the weights")
    parser.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="KIND",
        help="also download this artifact of the export: pt2, pruned or int8; may be repeated",
    )
    parser.add_argument("--cache", type=Path, help="directory of a cache that several pods share")
    parser.add_argument(
        "--cache-bytes",
        type=int,
        default=0,
        help="maximum size (bytes) of the cache; with 0, no files are added",
    )
    options = parser.parse_args(arguments)
    cache = Cache(options.cache, options.cache_bytes) if options.cache is not None else None
    url = options.url.rstrip("/")
    try:
        manifest = fetch(url, options.directory, options.sha256, options.artifact, cache)
    except (FetchError, OSError, UnavailableExportError) as error:
        conclude("error", message=str(error), exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    except ExportError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    target = str(options.directory)
    emit("fetched", run=manifest.run, sha256=manifest.weights.sha256, folder=target)
    return exit_codes.DONE


if __name__ == "__main__":
    # PID 1 of a container ignores SIGTERM by default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
