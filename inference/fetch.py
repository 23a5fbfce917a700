"""Bring an export from an object store or a web server to a folder, and check it.

  python -m inference.fetch s3://models/digits-1a2b3c4d/export /models/export

s3://, gs://, az:// and https:// are read by obstore, which takes keys, regions and endpoints from
the environment as the stores' own tools do: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_…, AZURE_….
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

LARGEST_MANIFEST: Final = 2**20
_CHUNK: Final = 8 * 2**20
_REPORT_SECONDS: Final = 2.0


class FetchError(Exception):
    """The export could not be had; the message says what and why."""


def fetch(url: str, folder: Path, sha256: str = "", kinds: Sequence[str] = ()) -> Manifest:
    """Bring the manifest, the weights and artifacts of some `kinds` to `folder`.

    The manifest is written last, so that a folder with one is complete. Every file has to be what
    the manifest says; with `sha256` the weights have to be those. Files that are there already are
    kept. Raises FetchError when the store does not give a file, ExportError when the export is not
    as its manifest says or lacks a kind.
    """
    store = _open(url)
    manifest = _manifest(store, url)
    if sha256 and manifest.weights.sha256 != sha256:
        raise ExportError(
            f"{url} has weights with sha256 {manifest.weights.sha256}, but {sha256} is asked for"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in (manifest.weights, *(manifest.artifact(kind) for kind in kinds)):
        _bring(store, url, file, folder)
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    write_atomically(folder / MANIFEST_FILE, lambda stream: stream.write(text.encode()))
    return read_manifest(folder)


def _open(url: str) -> "ObjectStore":
    from obstore.store import from_url

    # A large file may take long, but not stand still.
    options: ClientConfig = {"timeout": "24h", "read_timeout": "60s"}
    if any(place.startswith("http://") for place in (url, os.environ.get("AWS_ENDPOINT_URL", ""))):
        options["allow_http"] = True
    with _plain_errors(f"{url} cannot be used"):
        return from_url(url, client_options=options)


def _manifest(store: "ObjectStore", url: str) -> Manifest:
    from obstore import get

    place = f"{url}/{MANIFEST_FILE}"
    with _plain_errors(f"{place} cannot be read"):
        found = get(store, MANIFEST_FILE)
        size = found.meta["size"]
        text = bytes(found.bytes()) if size <= LARGEST_MANIFEST else b""
    if size > LARGEST_MANIFEST:
        raise ExportError(f"{place} has {size} bytes, too many for a manifest")
    return parse_manifest(text, place)


def _bring(store: "ObjectStore", url: str, file: Weights, folder: Path) -> None:
    path = folder / file.file
    if path.exists():
        with contextlib.suppress(ExportError):
            checked_file(folder, file)
            return

    def write(stream: BinaryIO) -> None:
        done, said = 0, time.monotonic()
        for chunk in _chunks(store, url, file):
            stream.write(chunk)
            done += len(chunk)
            if time.monotonic() - said >= _REPORT_SECONDS:
                said = time.monotonic()
                emit("fetching", file=file.file, bytes=done, of=file.size)

    write_atomically(path, write)
    try:
        checked_file(folder, file)
    except ExportError:
        path.unlink()
        raise


def _chunks(store: "ObjectStore", url: str, file: Weights) -> Iterator[bytes]:
    """The content, up to the size that it should have: a disk is not filled by more."""
    from obstore import get

    place, done = f"{url}/{file.file}", 0
    with _plain_errors(f"{place} cannot be read"):
        for chunk in get(store, file.file).stream(min_chunk_size=_CHUNK):
            done += len(chunk)
            if done > file.size:
                raise ExportError(f"{place} has more than the {file.size} bytes of its manifest")
            yield bytes(chunk)


@contextlib.contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    """Failures of the store in one line; its further lines repeat that for programmers."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, ValueError) as error:
        raise FetchError(f"{what}: {str(error).strip().partition(chr(10))[0]}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, and say in one line what came or what is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m inference.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="folder of the export: s3://, gs://, az:// or https://")
    parser.add_argument("folder", type=Path, help="where it is brought to")
    parser.add_argument("--sha256", default="", help="of the weights; any others are refused")
    parser.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="KIND",
        help="fetch this form of the model, too: pt2, pruned or int8",
    )
    given = parser.parse_args(arguments)
    try:
        manifest = fetch(given.url.rstrip("/"), given.folder, given.sha256, given.artifact)
    except ExportError as error:
        conclude("error", message=str(error), exit_code=exit_codes.BAD_INPUT)
        return exit_codes.BAD_INPUT
    except (FetchError, OSError) as error:
        conclude("error", message=str(error), exit_code=exit_codes.FAILED)
        return exit_codes.FAILED
    emit("fetched", run=manifest.run, sha256=manifest.weights.sha256, folder=str(given.folder))
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
