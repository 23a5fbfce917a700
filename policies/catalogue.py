"""All rules, by topic and in the order in which they are reported."""

from __future__ import annotations

from typing import Any

from policies import (
    access,
    budget,
    claims,
    exposure,
    extensions,
    gpu,
    gpu_devices,
    gpu_nodes,
    helm,
    host_access,
    images,
    inference,
    manifests,
    memory_volumes,
    network_policies,
    pod_hardening,
    pod_security,
    priorities,
    queues,
    retries,
    rollout,
    scheduling,
    secret_values,
    shared_memory,
    storage,
    tenancy,
    unknown_kinds,
)
from policies.rule import Rule

RULES: list[Rule[Any]] = [
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
    *priorities.RULES,
    *tenancy.RULES,
    *network_policies.RULES,
    *storage.RULES,
    *inference.RULES,
    *rollout.RULES,
    *budget.RULES,
    *helm.RULES,
]

RULES_BY_NAME = {rule.name: rule for rule in RULES}
