"""API keys: who may ask. Keys are never logged, and compared in constant time."""

import hashlib
import hmac
import os
from pathlib import Path
from typing import Final

from workload.configuration import ConfigurationError
from workload.report import emit

_DIGEST: Final = "sha256:"


class Access:
    """The keys of a file, read again when the file has changed, as Secrets do while mounted."""

    def __init__(self, file: str) -> None:
        """Without a file everybody may ask. Raises ConfigurationError when it has no keys."""
        self._path = Path(file) if file else None
        self._seen: tuple[int, int, int] | None = None
        self._digests: tuple[bytes, ...] = ()
        if self._path is not None:
            try:
                self._read(self._path)
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"INFERENCE_API_KEYS_FILE: {self._told(error)}") from None

    @property
    def needed(self) -> bool:
        """Whether a key must be shown."""
        return self._path is not None

    def allows(self, authorization: str | None, api_key: str | None) -> bool:
        """Whether `Authorization: Bearer KEY` or `X-API-Key: KEY` shows a key that is known."""
        if self._path is None:
            return True
        key = api_key
        if key is None and authorization is not None:
            scheme, _, credentials = authorization.partition(" ")
            key = credentials.strip() if scheme.lower() == "bearer" else None
        if key is None:
            return False
        digest = hashlib.sha256(key.encode()).digest()
        # No `any`: it would tell by its time how far down the right key stands.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0

    def refresh(self) -> None:
        """Read the file again when it has changed; a bad one leaves the keys as they are."""
        if self._path is None:
            return
        try:
            if self._stamp(self._path) == self._seen:
                return
            self._read(self._path)
            emit("api keys", keys=len(self._digests))
        except (OSError, ValueError) as error:
            reason = self._told(error)
            emit("api keys kept", reason=reason)

    def _read(self, path: Path) -> None:
        self._seen = self._stamp(path)
        lines = [line.strip() for line in path.read_text().splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError("has no key: write one a line")
        self._digests = tuple(_digest(key) for key in keys)

    def _told(self, error: OSError | ValueError) -> str:
        if isinstance(error, OSError):
            return f"{self._path} cannot be read: {error.strerror}"
        if isinstance(error, UnicodeDecodeError):
            return f"{self._path} is no text"
        return f"{self._path} {error}"

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int, int]:
        found = os.stat(path)  # noqa: PTH116
        return found.st_ino, found.st_size, found.st_mtime_ns


def _digest(key: str) -> bytes:
    if not key.startswith(_DIGEST):
        return hashlib.sha256(key.encode()).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(_DIGEST))
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError("has a line that begins with sha256: but has no 64 hexadecimal digits")
    return digest
