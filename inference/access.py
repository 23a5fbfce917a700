"""API keys of clients. They are never logged, and compared in constant time."""

import hashlib
import hmac
import os
from pathlib import Path
from typing import Final

from workload.configuration import ConfigurationError
from workload.report import emit

_DIGEST_PREFIX: Final = "sha256:"


class Access:
    """The keys in a file, which is read again when it changes, as mounted Secrets do."""

    def __init__(self, file: str) -> None:
        """Allow everyone if `file` is empty. Raises ConfigurationError if it has no valid keys."""
        self.required = bool(file)
        """Whether requests need a key."""
        self._path = Path(file) if file else None
        self._stamp: tuple[int, int, int] | None = None
        self._digests: tuple[bytes, ...] = ()
        if self._path is not None:
            try:
                self._read(self._path)
            except (OSError, ValueError) as error:
                message = _describe(self._path, error)
                raise ConfigurationError(f"INFERENCE_API_KEYS_FILE: {message}") from None

    def allows(self, authorization: str | None, api_key: str | None) -> bool:
        """Return whether `Authorization: Bearer KEY` or `X-API-Key: KEY` has a valid key."""
        if self._path is None:
            return True
        key = api_key
        if key is None and authorization is not None:
            scheme, _, credentials = authorization.partition(" ")
            key = credentials.strip() if scheme.lower() == "bearer" else None
        if key is None:
            return False
        digest = hashlib.sha256(key.encode()).digest()
        # Not `any`: its time would reveal the position of the matching key.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0

    def refresh(self) -> None:
        """Read the file again if it has changed; keep the current keys if it is invalid."""
        if self._path is None:
            return
        try:
            if _stamp_of(self._path) == self._stamp:
                return
            self._read(self._path)
            emit("api keys", keys=len(self._digests))
        except (OSError, ValueError) as error:
            emit("api keys kept", reason=_describe(self._path, error))

    def _read(self, path: Path) -> None:
        self._stamp = _stamp_of(path)
        lines = [line.strip() for line in path.read_text().splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError("has no key: write one per line")
        self._digests = tuple(_digest(key) for key in keys)


def _describe(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"{path} is not a text file"
    return f"{path} {error}"


def _stamp_of(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)  # noqa: PTH116
    return found.st_ino, found.st_size, found.st_mtime_ns


def _digest(key: str) -> bytes:
    if not key.startswith(_DIGEST_PREFIX):
        return hashlib.sha256(key.encode()).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(_DIGEST_PREFIX))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError("has a line that starts with sha256: but lacks 64 hexadecimal digits")
    return digest
