"""Secrets in a stack's configuration, and a mask that hides them in all output."""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

from gitops.engine import Stack, run, stack_options
from gitops.errors import GitopsError
from gitops.stack_file import document

HIDDEN: Final = "[secret]"
_MIN_LENGTH: Final = 3
_MIN_LENGTH_BASE64: Final = 6
Steps = tuple[str | int, ...]
_SECURE = "secure"


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


def secure_paths(configuration: Any, path: Steps = ()) -> Iterator[Steps]:
    """Yield the paths of encrypted values in a stack's `config` mapping."""
    if isinstance(configuration, dict):
        if set(configuration) == {_SECURE}:
            yield path
            return
        for key, value in configuration.items():
            yield from secure_paths(value, (*path, key))
    elif isinstance(configuration, list):
        for index, value in enumerate(configuration):
            yield from secure_paths(value, (*path, index))


def values(stack: Stack) -> list[str]:
    """Return the decrypted secrets, so that they can be masked.

    The CLI is called only if there are secrets.

    Raises:
        GitopsError: If the secrets cannot be decrypted. A preview would fail as well.
    """
    paths = list(secure_paths(document(stack.file).get("config", {})))
    if not paths:
        return []
    result = run(stack, "config", "--show-secrets", "--json", *stack_options(stack))
    if result.status != 0:
        raise GitopsError(
            f"the secrets of stack {stack.name} cannot be decrypted; set PULUMI_CONFIG_PASSPHRASE "
            "or log in to its secrets provider, or preview with --rendered:\n"
            # stdout may contain the secrets that could be decrypted.
            f"{result.output.removeprefix(result.stdout)}"
        )
    shown = json.loads(result.stdout)
    return [text for path in paths for text in _texts(_value_at(shown, path))]


def _value_at(shown: dict[str, Any], path: Steps) -> Any:
    key, *steps = path
    entry = shown.get(str(key), {})
    value = entry.get("value")
    if not steps:
        return value
    value = entry.get("objectValue", json.loads(value or "null"))
    for step in steps:
        value = value[step]
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)] if value is not None else []
