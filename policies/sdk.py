"""Compatibility check of the installed policy SDK.

`properties` and `pack` use or replace internals of pulumi-policy. With an unsupported
version, rules could silently be skipped, so the pack refuses to start.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGE = "pulumi-policy"
MIN_VERSION, VERSION_LIMIT = (1, 21, 0), (1, 22)
"""Minimum supported version, and the first unsupported version, as in pyproject.toml."""
# Maps each internal part to its number of parameters, or to None if the part only has to exist.
_INTERNALS: dict[str, int | None] = {
    "policy:_PolicyAnalyzerServicer.Analyze": 3,
    "policy:_PolicyAnalyzerServicer.AnalyzeStack": 3,
    "policy:_PolicyAnalyzerServicer.Remediate": 3,
    "policy:_PolicyAnalyzerServicer.Configure": 3,
    "policy:_PolicyAnalyzerServicer._get_resource_options": 2,
    "policy:_PolicyAnalyzerServicer._get_policy_config": 2,
    "policy:_PolicyAnalyzerServicer._get_enforcement_level": 2,
    "policy:_PolicyAnalyzerServicer._create_report_violation": 6,
    "policy:_PolicyAnalyzerServicer._configure_runtime_settings": 1,
    "deserialize:deserialize_properties": 2,
    "deserialize:SPECIAL_SIG_KEY": None,
    "proxy:unknown_checking_proxy": 1,
    "proxy:UnknownValueError": None,
    "proxy:UNKNOWN_STRING_VALUE": None,
    "secret:Secret": None,
}


def check() -> None:
    """Exit with a message unless the installed SDK is supported."""
    if problems := list(_problems()):
        required = f"{PACKAGE}>={_version_text(MIN_VERSION)},<{_version_text(VERSION_LIMIT)}"
        sys.exit(f"gpu-platform: {'; '.join(problems)}; install {required}")


def _problems() -> Iterator[str]:
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        yield f"{PACKAGE} is not installed"
        return
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:3])
    if not MIN_VERSION <= numbers < VERSION_LIMIT:
        yield f"found {PACKAGE} {installed}, whose internals this pack does not support"
        return
    changed = [
        part for part, parameters in _INTERNALS.items() if not _is_compatible(part, parameters)
    ]
    if changed:
        yield f"found {PACKAGE} {installed} without the expected {', '.join(changed)}"
    elif not _can_unwrap():
        yield f"found {PACKAGE} {installed}, whose properties cannot be unwrapped"


def _is_compatible(part: str, parameters: int | None) -> bool:
    """Return whether a part of the SDK exists and has the expected number of parameters."""
    module, _, path = part.partition(":")
    try:
        value: Any = importlib.import_module(f"pulumi_policy.{module}")
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        return False
    return parameters is None or len(inspect.signature(value).parameters) == parameters


def _can_unwrap() -> bool:
    """Return whether a proxy's known values, unknown values and original data can be read."""
    from pulumi_policy import proxy

    from policies.properties import editable, plain
    from policies.values import UNKNOWN

    values = {"list": [{"number": 1.0}], "later": proxy.UNKNOWN_STRING_VALUE}
    proxied = proxy.unknown_checking_proxy(values)
    read = plain(proxied) == {"list": [{"number": 1}], "later": UNKNOWN}
    return bool(read and editable(proxied) == values)


def _version_text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
