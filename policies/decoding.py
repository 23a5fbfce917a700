"""Makes the SDK decode a resource once for all policies instead of once for each.

The SDK's loop over policies converts the same protobuf message to the same proxies again for every
one of them, which for a pack of forty rules costs more than the rules do. While one call of the
engine is answered, the three conversions remember their results here, by the identity of what they
were given; the proxies are read-only, so sharing them changes nothing. It is also what lets
`policies.binding` convert properties to plain data once for all rules.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pulumi_policy import deserialize, proxy
from pulumi_policy import policy as sdk

_CALLS = ("Analyze", "AnalyzeStack", "Remediate")


class _Memory(threading.local):
    """What was converted in the current call; None outside of one."""

    results: dict[tuple[Any, ...], tuple[Any, Any]] | None = None


def share_decoding() -> None:
    """Installs the memory in the SDK. Called once, before the pack starts."""
    memory = _Memory()
    module: Any = sdk
    json_format = module.json_format
    shared: dict[str, Any] = {
        "deserialize_properties": _remembered(memory, deserialize.deserialize_properties),
        "unknown_checking_proxy": _remembered(memory, proxy.unknown_checking_proxy),
        "json_format": SimpleNamespace(
            **{**vars(json_format), "MessageToDict": _remembered(memory, json_format.MessageToDict)}
        ),
    }
    for name, value in shared.items():
        setattr(module, name, value)
    servicer: Any = module._PolicyAnalyzerServicer
    for name in _CALLS:
        setattr(servicer, name, _one_call(memory, getattr(servicer, name)))


def on_configuration(listener: Callable[[dict[str, Any]], None]) -> None:
    """Has a function called with the configuration of all policies when the engine sends it."""
    module: Any = sdk
    servicer: Any = module._PolicyAnalyzerServicer
    configure, decode = servicer.Configure, module.json_format.MessageToDict

    def configured(self: Any, request: Any, context: Any) -> Any:
        listener({name: decode(entry.properties) for name, entry in request.policyConfig.items()})
        return configure(self, request, context)

    servicer.Configure = configured


def _remembered(memory: _Memory, convert: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convert)
    def converted(source: Any, *options: Any) -> Any:
        if memory.results is None:
            return convert(source, *options)
        key = (convert, id(source), *options)
        if key not in memory.results:
            # The source is kept beside the result, so that its id stays its own.
            memory.results[key] = (source, convert(source, *options))
        return memory.results[key][1]

    return converted


def _one_call(memory: _Memory, answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(answer)
    def answered(*arguments: Any) -> Any:
        memory.results = {}
        try:
            return answer(*arguments)
        finally:
            memory.results = None

    return answered
