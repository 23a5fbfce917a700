"""Masking of known secrets in reports."""

import base64
import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus

HIDDEN: Final = "[secret]"
_MIN_LENGTH: Final = 3
_MIN_LENGTH_BASE64: Final = 6


class Mask:
    """Mask for known secrets in text, including their base64, URL and JSON encodings.

    The engine hides values that it knows to be secret, but not parts of these values. Secrets with
    one or two characters are not masked, because they occur in almost every text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        encodings = {text for secret in self._secrets for text in _encodings(secret)}
        # Longest first, since one secret may be a part of another.
        self._encodings = sorted(encodings, key=lambda text: (-len(text), text))

    def __call__(self, text: str) -> str:
        """Return the text with the secrets masked."""
        for encoding in self._encodings:
            text = text.replace(encoding, HIDDEN)
        return text

    def with_secrets(self, secrets: Iterable[str]) -> "Mask":
        """Return a mask that also replaces these secrets."""
        return Mask(self._secrets.union(secrets))

    def tree(self, value: Any) -> Any:
        """Return plain data with the secrets masked, including secret numbers."""
        if not self._encodings:
            return value
        if isinstance(value, dict):
            return {self(key): self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_integer = isinstance(value, float) and value.is_integer()
            return HIDDEN if str(int(value) if is_integer else value) in self._encodings else value
        return self(value) if isinstance(value, str) else value


def _encodings(secret: str) -> Iterable[str]:
    if len(secret) < _MIN_LENGTH:
        return
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield quote(secret, safe="")
    yield quote(secret)
    yield quote_plus(secret)
    yield base64.b64encode(secret.encode()).decode()
    for offset in range(3):
        core = _inside_base64(secret.encode(), offset)
        if len(core) >= _MIN_LENGTH_BASE64:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def _inside_base64(secret: bytes, offset: int) -> str:
    """Return the base64 characters that do not depend on the text around the secret.

    `offset` is the number of bytes before the secret, modulo 3.
    """
    text = base64.b64encode(bytes(offset) + secret + bytes(2)).decode()
    return text[-(-8 * offset // 6) : 8 * (offset + len(secret)) // 6]
