"""What the engine says of a resource, as plain data in which no secret is left.

The engine marks values that are not plain by a signature (pulumi's `sdk/go/common/resource/sig`):
secrets, outputs, assets, archives and references to resources.
"""

import base64
import json
from collections.abc import Iterable
from typing import Any, Final

from policies.values import UNKNOWN

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_SECRET_MARK: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  says that a secret follows
_OUTPUT_MARK: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWN_TEXT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How the engine writes a value of any type that is not known yet (`pulumi.runtime.rpc`)."""

HIDDEN: Final = "[secret]"
_SECRET_FIELDS: Final = ("data", "stringData")
_SHORTEST: Final = 3


def plain(value: Any) -> Any:
    """Dicts, lists and scalars; secrets become `[secret]`, what is unknown `UNKNOWN`."""
    if isinstance(value, dict):
        return _marked(value) if SIGNATURE in value else {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return UNKNOWN if value == UNKNOWN_TEXT else value


def _marked(value: dict[str, Any]) -> Any:
    mark = value[SIGNATURE]
    if mark == _SECRET_MARK or value.get("secret"):
        return HIDDEN
    if mark == _OUTPUT_MARK:
        return plain(value["value"]) if "value" in value else UNKNOWN
    return value.get("urn") or value.get("hash") or "(asset)"


def manifest(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a Kubernetes object as it is shown: what a Secret holds is never shown."""
    shown = {key: value for key, value in plain(inputs).items() if not key.startswith("__")}
    if shown.get("kind") == "Secret":
        for field in _SECRET_FIELDS:
            if isinstance(shown.get(field), dict):
                shown[field] = dict.fromkeys(shown[field], HIDDEN)
    return shown


class Mask:
    """Hides known secrets in text, as they are, in base64 and as JSON writes them.

    The engine hides what it knows to be secret; this is for what a program has taken apart. Values
    of one or two characters are left, since they are in every text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spelled = {form for secret in secrets for form in _forms(secret)}
        # The longest first: one secret may be a part of another.
        self._forms = sorted(spelled, key=lambda form: (-len(form), form))

    def __call__(self, text: str) -> str:
        """The text without the secrets."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def tree(self, value: Any) -> Any:
        """Plain data without the secrets; a number is hidden where it is one as a whole."""
        if not self._forms:
            return value
        if isinstance(value, dict):
            return {self(key): self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if str(value) in self._forms else value
        return self(value) if isinstance(value, str) else value


def _forms(secret: str) -> Iterable[str]:
    if len(secret) < _SHORTEST:
        return
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield base64.b64encode(secret.encode()).decode()
