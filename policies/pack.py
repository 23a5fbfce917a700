"""Server of the policy pack, started by the engine.

The SDK converts the same protobuf message to proxy objects once per policy, which takes about as
long as evaluating the rules. This server passes each resource as `Properties`, which
`policies.binding` converts to plain data once for all rules. Stack rules reuse the data of
resources that have already been checked.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf import json_format
from pulumi.runtime.proto import analyzer_pb2 as proto
from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyPack,
    PolicyResource,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy import policy as sdk

from policies.binding import Binding
from policies.catalogue import VARIABLE, with_custom_rules
from policies.properties import Properties
from policies.rule import ConfigurationError, Rule
from policies.rules.simulated import DECLARED_RULES

NAME = "gpu-platform"
Listener = Callable[[dict[str, Any], list[str]], None]
_SDK_SERVICER: Any = sdk._PolicyAnalyzerServicer
_Enabled = tuple[Any, EnforcementLevel, dict[str, Any] | None]
_STACK_TAGS: dict[str, str] = {}
"""Empty, because no rule reads stack tags."""
_REPORTING_LEVELS = {EnforcementLevel.REMEDIATE: EnforcementLevel.MANDATORY}
"""Maps the `remediate` level to the level at which violations that are not fixed are reported."""


class Servicer(_SDK_SERVICER):  # type: ignore[misc] # a private class
    """Servicer whose policies share a resource's properties.

    The policies must be synchronous and must not raise.

    When the engine sends the configuration, `listener` is called with all settings and the names of
    the disabled policies. If `listener` raises `ConfigurationError`, the engine aborts the run.
    """

    def __init__(
        self, listener: Listener, name: str, version: str, policies: list[Policy], *more: Any
    ) -> None:
        super().__init__(name, version, policies, *more)
        # The SDK configures these settings in each call, but they apply to the whole process.
        self._configure_runtime_settings()
        self._listener = listener
        self._policies = policies
        self._enabled: dict[type[Policy], list[_Enabled]] = {}

    def Analyze(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Check one resource with all enabled resource policies."""
        response = proto.AnalyzeResponse()
        properties: Any = Properties(request.properties)
        options = self._get_resource_options(request)
        for policy, level, settings in self._enabled_policies(ResourceValidationPolicy):
            arguments = ResourceValidationArgs(
                request.type,
                properties,
                request.urn,
                request.name,
                options,
                None,
                settings,
                _STACK_TAGS,
            )
            policy.validate(arguments, partial(self._report, response, policy, level))
        return response

    def AnalyzeStack(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Check the whole stack with all enabled stack policies."""
        response = proto.AnalyzeResponse()
        resources = [
            PolicyResource(
                each.type,
                Properties(each.properties),  # type: ignore[arg-type] # only our policies read them
                each.urn,
                each.name,
                self._get_resource_options(each),
                None,
                None,
                [],
                {},
            )
            for each in request.resources
        ]
        for policy, level, settings in self._enabled_policies(StackValidationPolicy):
            arguments = StackValidationArgs(resources, settings, _STACK_TAGS)
            policy.validate(arguments, partial(self._report, response, policy, level))
        return response

    def Remediate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Remediate one resource; the SDK converts it only if a policy may change it."""
        levels = map(self._get_enforcement_level, self._policies)
        if EnforcementLevel.REMEDIATE not in levels:
            return proto.RemediateResponse()
        return super().Remediate(request, context)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Read the settings of all policies."""
        entries = request.policyConfig.items()
        disabled = [name for name, entry in entries if entry.enforcementLevel == proto.DISABLED]
        settings = {name: json_format.MessageToDict(entry.properties) for name, entry in entries}
        try:
            self._listener(settings, disabled)
        except ConfigurationError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._enabled.clear()
        return super().Configure(request, context)

    def _enabled_policies(self, kind: type[Policy]) -> list[_Enabled]:
        """Return the enabled policies of a kind with their reporting levels and settings."""
        if kind not in self._enabled:
            policies = [policy for policy in self._policies if isinstance(policy, kind)]
            levels = [
                (policy, _REPORTING_LEVELS.get(level, level), self._get_policy_config(policy.name))
                for policy in policies
                if (level := self._get_enforcement_level(policy)) is not EnforcementLevel.DISABLED
            ]
            self._enabled[kind] = levels
        return self._enabled[kind]

    def _report(
        self,
        response: Any,
        policy: Policy,
        level: EnforcementLevel,
        message: str,
        urn: str | None = None,
    ) -> None:
        self._create_report_violation(
            response, policy.name, policy.description, level, policy.severity
        )(message, urn)


def install(listener: Listener) -> None:
    """Make the SDK serve the pack with this servicer."""
    module: Any = sdk
    module._PolicyAnalyzerServicer = partial(Servicer, listener)


def serve() -> None:
    """Start the pack's server for the engine. The call never returns."""
    # Modules and resources stay alive, so garbage collection would traverse them repeatedly.
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()
    rules = _rules()
    binding = Binding(rules=rules)
    install(binding.configure)
    # The SDK writes its port to stdout without flushing, so the engine would wait for it forever.
    unbuffered = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(unbuffered, write_through=True)
    PolicyPack(
        name=NAME,
        # Rules about simulations are only declared, so that the engine accepts their settings.
        policies=[*binding.policies([*rules, *DECLARED_RULES]), *binding.configuration_policies()],
        description="Rules that keep a Kubernetes cluster with GPUs safe",
    )


def _rules() -> list[Rule[Any]]:
    try:
        return with_custom_rules()
    except ConfigurationError as error:
        sys.exit(f"{NAME}: {VARIABLE}: {error}")
