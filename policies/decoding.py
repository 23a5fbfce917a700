"""Lazy decoding: the SDK decodes a resource once for all policies, and only if one reads it.

For every policy, the SDK's loop converts the same protobuf message to the same proxies again. With
forty rules, that costs more than the rules themselves. This module defers the conversion during a
call of the engine: policies receive `Properties`, one for each message, and `policies.binding`
converts them to plain data once for all rules. Resources of the stack that were checked before are
not decoded at all.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import json_format
from pulumi.runtime.proto import analyzer_pb2 as proto
from pulumi_policy import deserialize
from pulumi_policy import policy as sdk
from pulumi_policy import proxy as proxies

from policies.properties import Properties
from policies.rule import ConfigurationError

_CALLS = ("Analyze", "AnalyzeStack", "Remediate")
_REPEATED = ("_get_resource_options", "_get_provider_resource")


class _Memory(threading.local):
    """Memory of the current call; None outside of a call."""

    results: dict[tuple[Any, ...], tuple[Any, Any]] | None = None

    def once(self, make: Callable[[Any], Any], source: Any, *key: Any) -> Any:
        """Return the result of `make`, computed once per call for each source and key."""
        if self.results is None:
            return make(source)
        place = (id(source), *key)
        known = self.results.get(place)
        if known is None:
            # Keep a reference to the source, so that its id is not reused.
            known = self.results[place] = (source, make(source))
        return known[1]


@dataclass
class _Encoded:
    """A message on its way through the SDK, with the function that decodes it on demand."""

    message: Any
    options: tuple[Any, ...]

    def deferred(self, message: Any) -> Properties:
        """Return properties that are decoded when a policy reads them."""

        def decode() -> Any:
            values = json_format.MessageToDict(message)
            return proxies.unknown_checking_proxy(
                deserialize.deserialize_properties(values, *self.options)
            )

        return Properties(message, decode)


def share_decoding() -> None:
    """Install the memory in the SDK, once before the pack starts."""
    memory = _Memory()
    module: Any = sdk

    def to_dict(message: Any, *options: Any) -> Any:
        decoded = memory.results is None or options
        return json_format.MessageToDict(message, *options) if decoded else message

    def deserialized(source: Any, *options: Any) -> Any:
        if memory.results is None:
            return deserialize.deserialize_properties(source, *options)
        return _Encoded(source, options)

    def proxied(source: Any) -> Any:
        if not isinstance(source, _Encoded):
            return proxies.unknown_checking_proxy(source)

        return memory.once(source.deferred, source.message, *source.options)

    module.json_format = SimpleNamespace(**{**vars(json_format), "MessageToDict": to_dict})
    module.deserialize_properties = deserialized
    module.unknown_checking_proxy = proxied
    servicer: Any = module._PolicyAnalyzerServicer
    for name in _CALLS:
        setattr(servicer, name, _one_call(memory, getattr(servicer, name)))
    for name in _REPEATED:
        setattr(servicer, name, _repeated(memory, name, getattr(servicer, name)))


def on_configuration(listener: Callable[[dict[str, Any], list[str]], None]) -> None:
    """Call a function with all settings and the disabled policies when the engine sends them.

    If the function raises `ConfigurationError`, the engine refuses to run.
    """
    module: Any = sdk
    servicer: Any = module._PolicyAnalyzerServicer
    configure, decode = servicer.Configure, module.json_format.MessageToDict

    def configured(self: Any, request: Any, context: Any) -> Any:
        entries = request.policyConfig.items()
        disabled = [name for name, entry in entries if entry.enforcementLevel == proto.DISABLED]
        try:
            listener({name: decode(entry.properties) for name, entry in entries}, disabled)
        except ConfigurationError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return configure(self, request, context)

    servicer.Configure = configured


def _repeated(memory: _Memory, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def found(self: Any, request: Any) -> Any:
        return memory.once(lambda source: read(self, source), request, name)

    return found


def _one_call(memory: _Memory, answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(answer)
    def answered(*arguments: Any) -> Any:
        memory.results = {}
        try:
            return answer(*arguments)
        finally:
            memory.results = None

    return answered
