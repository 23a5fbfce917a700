"""All rules, grouped by topic, in the order in which they are reported.

Custom rules from users' files use the same decorators as the pack's rules.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from policies.configuration import RESERVED
from policies.rule import ConfigurationError, Rule
from policies.rules import (
    access,
    budget,
    claims,
    control_plane,
    exposure,
    extensions,
    gpu,
    gpu_devices,
    gpu_nodes,
    helm,
    host_access,
    host_volumes,
    images,
    inference,
    injection,
    manifests,
    memory_volumes,
    models,
    network_policies,
    notebooks,
    pod_hardening,
    pod_security,
    preemption,
    priorities,
    queues,
    retries,
    rollout,
    scheduling,
    secret_values,
    shared_memory,
    storage,
    sweeps,
    tenancy,
    unknown_kinds,
)

VARIABLE = "GPU_POLICIES_RULES"
"""Environment variable that lists files with custom rules, separated as in PATH."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def unique(rules: Sequence[Rule[Any]]) -> list[Rule[Any]]:
    """Return the rules; raise ValueError if two have the same name, because one would be lost."""
    counts = Counter(rule.name for rule in rules)
    duplicates = [name for name, count in counts.items() if count > 1]
    if duplicates:
        names = ", ".join(duplicates)
        raise ValueError(f"found two rules with the name {names}; rename one of them")
    return list(rules)


RULES: list[Rule[Any]] = unique(
    [
        *manifests.RULES,
        *unknown_kinds.RULES,
        *gpu_devices.RULES,
        *gpu.RULES,
        *gpu_nodes.RULES,
        *claims.RULES,
        *shared_memory.RULES,
        *memory_volumes.RULES,
        *scheduling.RULES,
        *queues.RULES,
        *retries.RULES,
        *images.RULES,
        *host_access.RULES,
        *pod_security.RULES,
        *pod_hardening.RULES,
        *secret_values.RULES,
        *access.RULES,
        *exposure.RULES,
        *extensions.RULES,
        *control_plane.RULES,
        *priorities.RULES,
        *injection.RULES,
        *tenancy.RULES,
        *network_policies.RULES,
        *storage.RULES,
        *host_volumes.RULES,
        *inference.RULES,
        *models.RULES,
        *rollout.RULES,
        *budget.RULES,
        *sweeps.RULES,
        *preemption.RULES,
        *notebooks.RULES,
        *helm.RULES,
    ]
)

RULES_BY_NAME = {rule.name: rule for rule in RULES}


def with_custom_rules(files: Iterable[str | Path] = ()) -> list[Rule[Any]]:
    """Return the pack's rules, and the custom rules from `files` and `GPU_POLICIES_RULES`.

    Raise `ConfigurationError` if a file or the name of a rule is invalid.
    """
    configured = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    rules = list(RULES)
    for file in dict.fromkeys(Path(name).absolute() for name in [*configured, *files]):
        used_names = {*RESERVED, *(rule.name for rule in rules)}
        for rule in _load(file):
            if not _NAME.fullmatch(rule.name) or rule.name in used_names:
                raise ConfigurationError(
                    f"{file}: found the rule {rule.name!r}, whose name is invalid or already "
                    "used; write a unique name of lower-case words, separated by hyphens"
                )
            used_names.add(rule.name)
            rules.append(rule)
    return rules


def _load(file: Path) -> list[Rule[Any]]:
    """Return the rules that a file defines."""
    spec = importlib.util.spec_from_file_location(f"custom_rules.{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigurationError(f"{file}: not a Python file; pass a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.modules.update(_module_aliases())
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # A script may exit when it is imported.
        raise ConfigurationError(f"{file}: {type(error).__name__}: {error}") from error
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    rules = [rule for rule in found if rule.check.__module__ == spec.name]
    if not rules:
        raise ConfigurationError(
            f"{file}: it defines no rule; decorate a function, for example with pod_rule"
        )
    return rules


def _module_aliases() -> dict[str, ModuleType]:
    """Map the module names that custom rules import to the loaded modules of the pack.

    Custom rules import `policies`, but the installed pack is `gpu_platform.policies`.
    """
    prefix = str(__package__)
    return {
        f"policies{name.removeprefix(prefix)}": module
        for name, module in sys.modules.items()
        if name == prefix or name.startswith(f"{prefix}.")
    }
