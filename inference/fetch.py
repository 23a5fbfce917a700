"""Download an export from an object store or a web server, and verify it.

  python -m inference.fetch s3://models/digits-1a2b3c4d/export /models/export

obstore reads s3://, gs://, az:// and https://. It takes keys, regions and endpoints from the same
environment variables as the vendors' tools: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_…, AZURE_….
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from workload import exit_codes
from workload.files import write_atomically
from workload.manifest import (
    MANIFEST_FILE,
    ExportError,
    Manifest,
    Weights,
    checked_file,
    parse_manifest,
    read_manifest,
)
from workload.report import conclude, emit

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

SCHEMES: Final = ("s3", "gs", "az", "https", "http")

MAX_MANIFEST_BYTES: Final = 2**20
_CHUNK_BYTES: Final = 8 * 2**20
_REPORT_SECONDS: Final = 2.0


class FetchError(Exception):
    """The export could not be downloaded; the message contains the URL and the reason."""


def fetch(url: str, folder: Path, sha256: str = "", kinds: Sequence[str] = ()) -> Manifest:
    """Download the manifest, the weights and artifacts of some `kinds` to `folder`.

    The manifest is written last, so that a directory with one is complete. Every file must match
    the manifest, and the weights must have the digest `sha256` if given. Existing files that
    match are kept. Raises FetchError if a file cannot be downloaded, ExportError if the export does
    not match its manifest or lacks a kind.
    """
    store = _open(url)
    manifest = _manifest(store, url)
    if sha256 and manifest.weights.sha256 != sha256:
        raise ExportError(
            f"{url} has weights with sha256 {manifest.weights.sha256}, but {sha256} was requested"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in (manifest.weights, *(manifest.artifact(kind) for kind in kinds)):
        _download(store, url, file, folder)
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    write_atomically(folder / MANIFEST_FILE, text.encode())
    return read_manifest(folder)


def _open(url: str) -> "ObjectStore":
    from obstore.store import from_url

    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise FetchError(f"{url} cannot be used: write a URL with {', '.join(SCHEMES)}")
    # A large file may take long, but must not stall.
    options: ClientConfig = {"timeout": "24h", "read_timeout": "60s"}
    if any(
        address.startswith("http://") for address in (url, os.environ.get("AWS_ENDPOINT_URL", ""))
    ):
        options["allow_http"] = True
    with _fetch_errors(f"{url} cannot be used"):
        return from_url(url, client_options=options)


def _manifest(store: "ObjectStore", url: str) -> Manifest:
    from obstore import get

    address = f"{url}/{MANIFEST_FILE}"
    with _fetch_errors(f"{address} cannot be read"):
        found = get(store, MANIFEST_FILE)
        size = found.meta["size"]
        text = bytes(found.bytes()) if size <= MAX_MANIFEST_BYTES else b""
    if size > MAX_MANIFEST_BYTES:
        raise ExportError(f"{address} has {size} bytes, too many for a manifest")
    return parse_manifest(text, address)


def _download(store: "ObjectStore", url: str, file: Weights, folder: Path) -> None:
    path = folder / file.file
    if path.exists():
        with contextlib.suppress(ExportError):
            checked_file(folder, file)
            return

    def write(stream: BinaryIO) -> None:
        done, reported = 0, time.monotonic()
        for chunk in _chunks(store, url, file):
            stream.write(chunk)
            done += len(chunk)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                emit("fetching", file=file.file, bytes=done, of=file.size)

    write_atomically(path, write)
    try:
        checked_file(folder, file)
    except ExportError:
        path.unlink()
        raise


def _chunks(store: "ObjectStore", url: str, file: Weights) -> Iterator[bytes]:
    """Yield the content. Raises ExportError beyond the expected size, to protect the disk."""
    from obstore import get

    address, done = f"{url}/{file.file}", 0
    with _fetch_errors(f"{address} cannot be read"):
        for chunk in get(store, file.file).stream(min_chunk_size=_CHUNK_BYTES):
            done += len(chunk)
            if done > file.size:
                raise ExportError(f"{address} has more than the {file.size} bytes of its manifest")
            yield bytes(chunk)


@contextlib.contextmanager
def _fetch_errors(message: str) -> Iterator[None]:
    """Convert errors of the store to FetchError with their first line; the rest repeats it."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        raise FetchError(f"{message}: {str(error).strip().partition(chr(10))[0]}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Download an export, log the result and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m inference.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="directory of the export: s3://, gs://, az:// or https://")
    parser.add_argument("folder", type=Path, help="target directory")
    parser.add_argument("--sha256", default="", help="expected digest of the weights")
    parser.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="KIND",
        help="also download this form of the model: pt2, pruned or int8",
    )
    options = parser.parse_args(arguments)
    try:
        manifest = fetch(options.url.rstrip("/"), options.folder, options.sha256, options.artifact)
    except ExportError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    except (FetchError, OSError) as error:
        conclude("error", message=str(error), exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    emit("fetched", run=manifest.run, sha256=manifest.weights.sha256, folder=str(options.folder))
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
