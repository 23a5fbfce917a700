"""Client API keys, with names, scopes and quotas. Keys are never logged."""

import hashlib
import hmac
import math
import re
import time
from pathlib import Path
from typing import Final, Literal, get_args

from workload.configuration import ConfigurationError
from workload.files import stamp_of
from workload.report import emit

Scope = Literal["infer", "admin"]

SCOPES: Final = get_args(Scope)

_DIGEST_PREFIX: Final = "sha256:"
_SCOPE: Final = "|".join(SCOPES)
_LINE: Final = re.compile(
    rf"((?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,62}})\s+(?P<scopes>({_SCOPE})(,({_SCOPE}))*)"
    r"(:(?P<quota>\d{1,9}(\.\d{1,3})?))?\s+)?(?P<key>\S+)"
)


class Key:
    """An API key with its name, its scopes, and its quota in requests per second (0: no quota)."""

    def __init__(self, name: str, scopes: frozenset[str], quota: float, digest: bytes) -> None:
        self.name, self.scopes, self.quota, self.digest = name, scopes, quota, digest
        self._tokens, self._filled = max(1.0, quota), time.monotonic()

    def take(self) -> bool:
        """Count a request; return False if the quota is exhausted.

        The token bucket holds one second's worth of requests, but at least one.
        """
        if not self.quota:
            return True
        now = time.monotonic()
        capacity = max(1.0, self.quota)
        self._tokens = min(capacity, self._tokens + (now - self._filled) * self.quota)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    @property
    def retry_after(self) -> int:
        """Time (s) until the quota permits the next request."""
        return max(1, math.ceil((1 - self._tokens) / self.quota))


class Access:
    """API keys from a file, such as a mounted Secret. `refresh` reloads a changed file."""

    def __init__(self, file: str) -> None:
        """Raise ConfigurationError if the file is unreadable or invalid, or contains no keys."""
        self._path = Path(file)
        self._reported = ""
        try:
            self._read()
        except (OSError, ValueError) as error:
            message = self._describe(error)
            raise ConfigurationError(f"INFERENCE_API_KEYS_FILE: {message}") from None

    def find(self, authorization: str | None, api_key: str | None) -> Key | None:
        """Return the key in `Authorization: Bearer KEY` or `X-API-Key: KEY`, if it is valid."""
        text = api_key
        if text is None and authorization is not None:
            scheme, _, credentials = authorization.partition(" ")
            text = credentials.strip(" \t") if scheme.lower() == "bearer" else None
        if text is None:
            return None
        # Restore the bytes that the client sent: headers are decoded as Latin-1.
        digest = hashlib.sha256(text.encode("latin-1")).digest()
        # Compare all keys, because otherwise the response time would reveal the key's position.
        found = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        return found[-1] if found else None

    def refresh(self) -> None:
        """Reload the file if it has changed; if it is now invalid, keep the current keys."""
        try:
            if stamp_of(self._path) != self._stamp:
                self._read()
                emit("api_keys_reloaded", keys=[key.name for key in self._keys])
            self._reported = ""
        except (OSError, ValueError) as error:
            reason, reported = self._describe(error), self._reported
            self._reported = reason
            if reason != reported:
                emit("api_keys_kept", reason=reason)

    def _read(self) -> None:
        stamp, text = stamp_of(self._path), self._path.read_text()
        self._stamp = stamp
        lines = enumerate(map(str.strip, text.splitlines()), 1)
        keys = [_parse(number, line) for number, line in lines if line and line[0] != "#"]
        if not keys:
            raise ValueError("the file contains no keys: write one key per line")
        names = [key.name for key in keys]
        if len(set(names)) < len(names):
            raise ValueError("two keys have the same name: give each key a different name")
        self._keys = keys

    def _describe(self, error: OSError | ValueError) -> str:
        if isinstance(error, OSError):
            return f"{self._path} cannot be read: {error.strerror}"
        if isinstance(error, UnicodeDecodeError):
            return f"{self._path} is not a text file"
        return f"{self._path}: {error}"


def _parse(number: int, line: str) -> Key:
    """Parse a line. A key without a name has the `infer` scope and no quota."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(
            f"line {number} is invalid: write NAME SCOPES[:REQUESTS_PER_SECOND] KEY, such as "
            f"`search infer:50 sha256:…`; the scopes are {', '.join(SCOPES)}"
        )
    key, digest = found["key"], hashlib.sha256(found["key"].encode()).digest()
    if key.startswith(_DIGEST_PREFIX):
        if not re.fullmatch("[0-9a-fA-F]{64}", key.removeprefix(_DIGEST_PREFIX)):
            raise ValueError(f"the key on line {number} must have 64 hex digits after sha256:")
        digest = bytes.fromhex(key.removeprefix(_DIGEST_PREFIX))
    scopes = frozenset((found["scopes"] or "infer").split(","))
    return Key(found["name"] or f"line-{number}", scopes, float(found["quota"] or 0), digest)
