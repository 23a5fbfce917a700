"""Server of the policy pack, started by the engine."""

from __future__ import annotations

import gc
import io
import sys
from typing import Any

from pulumi_policy import PolicyPack

from policies.binding import Binding
from policies.custom_rules import VARIABLE, with_custom_rules
from policies.rule import ConfigurationError, Rule
from policies.rules.simulated import DECLARED_RULES
from policies.servicer import install

NAME = "gpu-platform"


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
