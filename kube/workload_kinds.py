"""Kinds whose objects run pods, as data: one record for each kind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kube.kinds import KINDS
from kube.kinds.record import Path

_TEMPLATE: Final[Path] = ("spec", "template", "spec")


@dataclass(frozen=True, kw_only=True)
class WorkloadKind:
    """Where the objects of a kind state their pods.

    `pods` are the paths of pod specifications; `*` stands for every item or value.
    """

    group: str
    kind: str
    pods: tuple[Path, ...] = ()


def _built_in(group: str, *kinds: str, pods: Path = _TEMPLATE) -> list[WorkloadKind]:
    return [WorkloadKind(group=group, kind=kind, pods=(pods,)) for kind in kinds]


def _job_kinds() -> list[WorkloadKind]:
    """Return the records of the job kinds that this project deploys."""
    layouts = [kind.layout for kind in KINDS.values() if kind.layout.resource.group != "batch"]
    return [
        WorkloadKind(
            group=layout.resource.group,
            kind=layout.resource.kind,
            pods=tuple((*path, "spec") for path in layout.pods),
        )
        for layout in layouts
    ]


def by_name(records: Iterable[WorkloadKind]) -> Mapping[tuple[str, str], WorkloadKind]:
    """Return the records by API group and kind in lower case."""
    return {(record.group, record.kind.lower()): record for record in records}


WORKLOAD_KINDS: Final = by_name(
    [
        *_built_in("", "Pod", pods=("spec",)),
        *_built_in("", "PodTemplate", pods=("template", "spec")),
        *_built_in("", "ReplicationController"),
        *_built_in("apps", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"),
        *_built_in("batch", "Job"),
        *_built_in("batch", "CronJob", pods=("spec", "jobTemplate", *_TEMPLATE)),
        *_job_kinds(),
    ]
)
