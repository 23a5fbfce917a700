"""Resource properties as plain data, with a marker for values that are unknown during a preview.

The policy SDK passes properties as proxies that raise when an unknown value is read, so a single
unknown image digest would disable a whole rule for a resource. This module converts properties
once: unknown leaves become `UNKNOWN`, and everything else can be checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format
from pulumi_policy import Secret, deserialize, proxy

from policies.values import UNKNOWN, Unknown

_SENTINELS: Final = frozenset(
    value for name, value in vars(proxy).items() if re.fullmatch(r"UNKNOWN_\w+_VALUE", name)
)
"""Strings that represent unknown values in the engine's messages."""


@dataclass(frozen=True)
class Properties:
    """Properties as the engine sent them: a protobuf struct, which `plain` converts.

    The conversion takes a fifth of the time that the SDK needs to create its proxies.
    """

    message: Any


def _plain_struct(struct: Any) -> Any:
    fields = struct.fields
    if deserialize.SPECIAL_SIG_KEY in fields:
        # A secret, an asset or an archive: rare enough for the slow path.
        wrapped = {"value": json_format.MessageToDict(struct)}
        return plain(deserialize.deserialize_properties(wrapped)["value"])
    return {key: _plain_value(value) for key, value in fields.items()}


def _plain_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        return UNKNOWN if text in _SENTINELS else text
    if kind == "struct_value":
        return _plain_struct(value.struct_value)
    if kind == "list_value":
        return [_plain_value(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    return value.bool_value if kind == "bool_value" else None


def plain(value: Any) -> Any:
    """Convert properties to dicts, lists and scalars; unknown values become `UNKNOWN`.

    Accept the SDK's proxies, plain data and secrets (which are unwrapped). Integral floats become
    integers, because protobuf has only floats.
    """
    if isinstance(value, str):
        return UNKNOWN if value in _SENTINELS else value
    if value is None or isinstance(value, bool | int | Unknown):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Properties):
        return _plain_struct(value.message)
    if isinstance(value, Mapping):
        return {str(key): _read(value, key) for key in value}
    if isinstance(value, Sequence):
        return [_read(value, index) for index in range(len(value))]
    if isinstance(value, Secret):
        return plain(value.value)
    return str(value)  # assets and archives: no rule reads their contents


def _read(collection: Any, key: Any) -> Any:
    try:
        return plain(collection[key])
    except proxy.UnknownValueError:
        return UNKNOWN


def editable(value: Any) -> Any:
    """Copy properties to dicts and lists; secrets stay wrapped and unknown values stay sentinels.

    The SDK's proxies unwrap values on access. Like the SDK's serializer, this function reads the
    original value from the `__target` key.
    """
    if isinstance(value, Secret):
        return Secret(editable(value.value))
    if isinstance(value, dict):
        return {key: editable(item) for key, item in value.items()}
    if isinstance(value, Mapping):
        return editable(value["__target"])
    if isinstance(value, list):
        return [editable(item) for item in value]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        target: Any = value
        return editable(target["__target"])
    return value


def unwrapped(value: Any) -> Any:
    """Return the value inside a secret, or the value itself."""
    return value.value if isinstance(value, Secret) else value
