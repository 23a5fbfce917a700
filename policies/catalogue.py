"""All rules, by topic and in the order in which they are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from policies.rule import Rule
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
