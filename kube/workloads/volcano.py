"""Volcano kinds that run jobs."""

from __future__ import annotations

from typing import Final

from kube.names import BATCH_GROUP, FLOW_GROUP, SWEEP_PARALLEL_ANNOTATION
from kube.workloads.control import ClaimTemplates, Job, RuntimeReference
from kube.workloads.kubernetes import BATCH_ROLES, CONCURRENCY, NOT_RUN
from kube.workloads.record import Count, Pods, WorkloadKind


def _tasks(spec: str, *outer: Count, partial: bool = False) -> Pods:
    """Return the pods in the specification of a Volcano Job."""
    return Pods(
        at=f"{spec}.tasks.*.template.spec",
        priority=(f"{spec}.priorityClassName",),
        count=(*outer, Count(paths=(f"{spec}.tasks.*.replicas",))),
        partial=partial,
    )


def _volcano_job(spec: str) -> Job:
    return Job(
        at=spec,
        queue="queue",
        annotations=False,
        gang="minAvailable",
        scheduler="schedulerName",
        retries="maxRetry",
        retries_default=False,
        least=1,  # Volcano treats 0 as 3.
        in_place=False,
        pod_deadline=True,
        claims="volumes.*.volumeClaimName",
    )


_PARALLEL: Final = Count(paths=(f"metadata.annotations[{SWEEP_PARALLEL_ANNOTATION}]",))
_CRON: Final = "spec.jobTemplate.spec"
_PATCH: Final = "spec.flows.*.patch.jobSpec"
_HYPER_JOB: Final = "spec.replicatedJobs.*.templateSpec"

KINDS: Final = [
    WorkloadKind(
        group=BATCH_GROUP,
        kind="Job",
        pods=(_tasks("spec"),),
        # The job of a notebook ends when the notebook is idle.
        roles=(*BATCH_ROLES, "interactive"),
        ends=True,
        always=True,
        job=_volcano_job("spec"),
        # Volcano deletes these claims with the job.
        claims=(ClaimTemplates(at="spec.volumes.*", spec="volumeClaim"),),
    ),
    WorkloadKind(
        group=BATCH_GROUP,
        kind="CronJob",
        pods=(_tasks(_CRON, CONCURRENCY),),
        roles=BATCH_ROLES,
        ends=True,
        always=True,
        job=_volcano_job(_CRON),
    ),
    WorkloadKind(
        group="training.volcano.sh",
        kind="HyperJob",
        pods=(_tasks(_HYPER_JOB, Count(paths=("spec.replicatedJobs.*.replicas",))),),
        roles=BATCH_ROLES,
        ends=True,
        always=True,
        job=_volcano_job(_HYPER_JOB),
    ),
    # Each JobFlow creates one Volcano Job from each template that it names. A sweep creates several
    # Jobs from one template and runs them at the same time.
    WorkloadKind(
        group=FLOW_GROUP,
        kind="JobTemplate",
        pods=(_tasks("spec", _PARALLEL),),
        roles=BATCH_ROLES,
        ends=True,
        job=_volcano_job("spec"),
    ),
    WorkloadKind(
        group=FLOW_GROUP,
        kind="JobFlow",
        runs=RuntimeReference(name="spec.flows.*.name", kind_default="JobTemplate"),
        pods=(
            _tasks(_PATCH, partial=True),
            Pods(
                at=f"{_PATCH}.tasks.*.template",
                metadata=f"{_PATCH}.tasks.*.template.metadata",
                count=NOT_RUN,
                partial=True,
                additional=True,
            ),
        ),
        roles=BATCH_ROLES,
        ends=True,
        opaque=tuple(
            f"{_PATCH}.{field}"
            for field in (
                *("queue", "maxRetry", "minAvailable", "schedulerName"),
                *("tasks.*.replicas", "tasks.*.minAvailable"),
            )
        ),
    ),
]
