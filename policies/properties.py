"""Resource properties as plain data, with a marker where the engine does not know a value yet.

The policy SDK hands properties over as proxies that raise when an unknown value is so much as
looked at, which would silence a whole rule for a resource because of one image digest. Here they
are converted once; from then on an unknown leaf is the value `UNKNOWN` and everything beside it
can be judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pulumi_policy import Secret, proxy

from policies.values import UNKNOWN, Unknown

_SENTINELS: Final = frozenset(
    value for name, value in vars(proxy).items() if re.fullmatch(r"UNKNOWN_\w+_VALUE", name)
)


def plain(value: Any) -> Any:
    """Converts properties to dicts, lists and scalars; unknown values become `UNKNOWN`.

    Accepts the SDK's proxies, plain data and secrets (which are unwrapped). Whole floats become
    integers, because protobuf knows only floats.
    """
    if isinstance(value, str):
        return UNKNOWN if value in _SENTINELS else value
    if value is None or isinstance(value, bool | int | Unknown):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _read(value, key) for key in value}
    if isinstance(value, Sequence):
        return [_read(value, index) for index in range(len(value))]
    if isinstance(value, Secret):
        return plain(value.value)
    return str(value)  # assets and archives: no rule reads inside them


def _read(collection: Any, key: Any) -> Any:
    try:
        return plain(collection[key])
    except proxy.UnknownValueError:
        return UNKNOWN
