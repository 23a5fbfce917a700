"""Registry of the kinds that run pods, request accelerators or deploy other objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kube.workloads import kubernetes, nvidia, pipelines, serving, training, volcano, wrappers
from kube.workloads.record import WorkloadKind

Registry = Mapping[tuple[str, str], WorkloadKind]
"""Maps the API group and the lower-case name of a kind to its record."""


def by_name(records: Iterable[WorkloadKind]) -> Registry:
    """Index records by group and kind. If a kind has two records, the last one applies."""
    return {(record.group, record.kind.lower()): record for record in records}


WORKLOAD_KINDS: Final = by_name(
    [
        *kubernetes.WORKLOADS,
        *kubernetes.PLAIN,
        *kubernetes.PATTERNS,
        *volcano.KINDS,
        *training.KINDS,
        *serving.KINDS,
        *nvidia.KINDS,
        *pipelines.KINDS,
        *wrappers.KINDS,
    ]
)


def find(registry: Registry, group: str, kind: str) -> WorkloadKind | None:
    """Return the record for a kind.

    If there is none, return the record for all kinds of the group.
    """
    return registry.get((group, kind.lower())) or registry.get((group, "*"))
