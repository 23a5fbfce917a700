"""Directories in object stores: s3://, gs:// and az://.

obstore retries failed requests. It reads keys, regions, endpoints and workload identities from the
same environment variables as the vendors' tools (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE,
AWS_ENDPOINT_URL, GOOGLE_…, AZURE_…).
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from workload.files import write_atomically

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

STORE_SCHEMES: Final = ("s3", "gs", "az")
URL: Final = re.compile(
    rf"({'|'.join(STORE_SCHEMES)})://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*"
)
CHUNK_BYTES: Final = 8 * 2**20
READ_SECONDS: Final = 60
MAX_TEXT_BYTES: Final = 64 * 2**20
"""Maximum size of an object that is read into memory."""


class StoreError(OSError):
    """A request to an object store failed; the message contains the URL and the reason."""


class DamagedError(ValueError):
    """An object does not exist, or does not have the expected size or digest."""


def connect(url: str) -> "ObjectStore":
    """Return the store for a URL; raise ValueError or an obstore error if the URL is invalid."""
    from obstore.store import from_url

    # A large transfer may take a long time, but must not stall.
    options: ClientConfig = {"timeout": "24h", "read_timeout": f"{READ_SECONDS}s"}
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["allow_http"] = True
    return from_url(url, client_options=options)


def first_line(error: Exception) -> str:
    """Return the first line of an obstore error; the other lines repeat it."""
    return str(error).strip().partition("\n")[0]


class StoreDirectory:
    """A directory in an object store. All methods raise StoreError if a request fails."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._errors("cannot be used"):
            self._store = connect(url)

    def list_sizes(self, directory: str) -> dict[str, int]:
        """Map the names of all objects below a directory to their sizes."""
        from obstore import list as list_objects

        with self._errors(f"{directory} cannot be listed"):
            pages = [*list_objects(self._store, f"{directory}/")]
        return {found["path"]: found["size"] for page in pages for found in page}

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object; None if it does not exist."""
        from obstore import get

        with self._errors(f"{name} cannot be read"):
            try:
                found = get(self._store, name)
                if found.meta["size"] > MAX_TEXT_BYTES:
                    raise ValueError(f"it has more than {MAX_TEXT_BYTES} bytes")
                return bytes(found.bytes())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes | Path) -> None:
        """Write an object, which appears only when it is complete; a file is uploaded in parts."""
        from obstore import put

        with self._errors(f"{name} cannot be written"):
            put(self._store, name, content)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. Names that do not exist are ignored."""
        from obstore import delete

        for name in names:
            with self._errors(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
                delete(self._store, name)

    def download(
        self, name: str, path: Path, size: int, sha256: str, advance: Callable[[int], object]
    ) -> None:
        """Download an object to a file, which appears only when it is complete and verified.

        `advance` is called with the number of bytes of each part. Raise DamagedError if the object
        does not exist or does not have this size and digest.
        """

        def write(stream: BinaryIO) -> None:
            digest, done = hashlib.sha256(), 0
            for part in self._chunks(name):
                done += len(part)
                if done > size:
                    break
                stream.write(part)
                digest.update(part)
                advance(len(part))
            if done != size:
                found = "more than" if done > size else f"{done} instead of"
                raise DamagedError(f"{self.url}/{name} is damaged: it has {found} {size} bytes")
            if digest.hexdigest() != sha256:
                raise DamagedError(f"{self.url}/{name} is damaged: its SHA-256 does not match")

        write_atomically(path, write)

    def _chunks(self, name: str) -> Iterator[bytes]:
        from obstore import get

        with self._errors(f"{name} cannot be read"), contextlib.suppress(FileNotFoundError):
            yield from map(bytes, get(self._store, name).stream(min_chunk_size=CHUNK_BYTES))
            return
        raise DamagedError(f"{self.url}/{name} does not exist")

    @contextlib.contextmanager
    def _errors(self, problem: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(f"{self.url}: {problem}: {first_line(error)}") from None
