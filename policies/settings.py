"""Settings that several rules share. A rule's schema includes the settings that the rule reads."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, NonNegativeInt

from kube.accelerators import KNOWN_ACCELERATORS, Accelerators
from kube.names import COMPONENT_LABEL, WORKLOAD_LABEL
from kube.quantities import parse_quantity
from kube.workloads.record import Role
from policies.rule import RuleConfig

_WILDCARD: Final = re.compile(r"\[[^]]*\]|[*?]")


def _quantity(value: str) -> str:
    if parse_quantity(value) < 0:
        raise ValueError("must not be negative")
    return value


def _without_wildcards(pattern: str) -> str:
    return _WILDCARD.sub("", pattern)


def _lower_case(patterns: list[str]) -> list[str]:
    return [pattern.lower() for pattern in patterns]


def _exact(names: list[str]) -> list[str]:
    for name in names:
        if "*" in name:
            raise ValueError(f"{name!r} contains a wildcard; write the full name")
    return names


def _not_all_objects(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        namespace, _, rest = pattern.partition("/")
        if not _without_wildcards(namespace + rest.rpartition("/")[2]):
            raise ValueError(f"{pattern!r} exempts every namespace; write a namespace or a name")
    return patterns


def _not_all_gpus(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if any(fnmatchcase(name, pattern.lower()) for name in KNOWN_ACCELERATORS):
            raise ValueError(f"{pattern!r} matches GPUs; write the names of the other devices")
    return patterns


def _not_all_claims(devices: dict[str, int]) -> dict[str, int]:
    for pattern, count in devices.items():
        if not count and not _without_wildcards(pattern).strip("/"):
            raise ValueError(f"{pattern!r} matches every claim; write the namespace or the name")
    return devices


NamePatterns = Annotated[list[str], AfterValidator(_lower_case)]
"""Patterns for names, converted to lower case, because case is ignored."""

ExactNames = Annotated[list[str], AfterValidator(_exact)]
"""Names that contain no wildcard, because a wildcard would match nothing."""

SystemNames = Annotated[list[str], AfterValidator(_not_all_objects)]
"""Patterns for the addresses of exempt objects. Each must contain a namespace or a name."""


Quantity = Annotated[str, AfterValidator(_quantity)]
"""Kubernetes quantity, such as `8Gi`."""


class NoConfig(RuleConfig):
    """Configuration of rules without settings."""


class GpuConfig(RuleConfig):
    """Settings that define which extended resources and claims are accelerators."""

    other_devices: Annotated[list[str], AfterValidator(_not_all_gpus)] = Field(
        default=[],
        description="Extended resources and DRA device classes that are not GPUs or other "
        "accelerators, in addition to the network, storage and virtualization devices in "
        "`kube/accelerators.py`; `*` matches anything. Every other extended resource counts as an "
        "accelerator.",
    )
    claim_devices: Annotated[dict[str, NonNegativeInt], AfterValidator(_not_all_claims)] = Field(
        default={},
        description="Maps the `namespace/name` of ResourceClaims and ResourceClaimTemplates to "
        "their number of accelerators; `*` matches anything. Required for claims that the stack "
        "does not declare. Set 0 for claims without accelerators.",
    )

    @cached_property
    def accelerators(self) -> Accelerators:
        """Definition of accelerators, for `Container.gpus`."""
        return Accelerators(tuple(self.other_devices), tuple(self.claim_devices.items()))


QueueSystem = Literal["volcano", "kueue"]
"""System that queues training workloads."""


class ClusterConfig(GpuConfig):
    """Settings of the cluster. Each applies to every rule that has a setting of the same name."""

    queue_systems: list[QueueSystem] | None = Field(
        default=None, min_length=1, description="Installed systems that queue training workloads."
    )


class RoleConfig(GpuConfig):
    """Settings that determine the role of pods."""

    component_labels: list[str] = Field(
        default=[COMPONENT_LABEL, WORKLOAD_LABEL],
        description="Labels that determine the role of a pod. The first label with a value from "
        "`componentRoles` is used.",
    )
    component_roles: dict[str, Role] = Field(
        default={
            "training": "training",
            "batch": "batch",
            "inference": "serving",
            "serving": "serving",
            "interactive": "interactive",
            "singleuser-server": "interactive",
        },
        description="Role for each value of the labels. JupyterHub labels notebooks "
        "`singleuser-server`.",
    )
    small_gpus: int = Field(
        default=1,
        ge=0,
        description="Maximum total number of GPUs of a workload with the `batch` or "
        "`interactive` role. Workloads with more GPUs count as `training`.",
    )

    @cached_property
    def role_key(self) -> tuple[Any, ...]:
        """All settings that `Pod.role` depends on, as a cache key."""
        roles = tuple(sorted(self.component_roles.items()))
        return tuple(self.component_labels), roles, self.small_gpus, self.accelerators


class TaskConfig(RoleConfig):
    """Names of the tasks in a training job that need no GPU."""

    cpu_tasks: NamePatterns = Field(
        default=[
            "*launcher*",
            "mpimaster",
            "*-initializer",
            "ps",
            "*evaluator",
            "*driver",
            "head*",
            "coordinator",
        ],
        description="Names of tasks, replicas or groups of a training job whose pods need no GPU; "
        "`*` matches anything.",
    )


class SystemConfig(RuleConfig):
    """Workloads that are exempt from the rule."""

    system_workloads: SystemNames = Field(
        default=[],
        description="Objects that are exempt from the rule, each as `namespace/Kind/name` or "
        "`namespace/Kind.group/name`; `*` matches anything.",
    )
