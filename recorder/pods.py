"""What a pod of a run tells: where its checkpoints are, and which of its containers have ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lightkube.models.core_v1 import ContainerStateTerminated, ContainerStatus
from lightkube.resources.core_v1 import Pod

from kube.names import CHECKPOINTS_VOLUME, RUN_LABEL


@dataclass(frozen=True)
class Attempt:
    """One life of a container: `restarts` of it came before."""

    uid: str
    pod: str
    container: str
    restarts: int


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a container ended. Where nobody saw it, the code is None and the reason says why."""

    attempt: Attempt
    started: datetime | None
    finished: datetime | None
    exit_code: int | None
    signal: int | None = None
    reason: str
    message: str = ""


def run_of(pod: Pod) -> str:
    """The run that a pod belongs to."""
    labels = (pod.metadata and pod.metadata.labels) or {}
    return str(labels.get(RUN_LABEL, ""))


def claim_of(pod: Pod) -> str | None:
    """Name of the claim with its checkpoints; None where it has none."""
    volumes = (pod.spec and pod.spec.volumes) or []
    for volume in volumes:
        if volume.name == CHECKPOINTS_VOLUME and volume.persistentVolumeClaim is not None:
            return volume.persistentVolumeClaim.claimName
    return None


def running(pod: Pod) -> Iterator[Attempt]:
    """Containers that run now."""
    for status in _statuses(pod):
        if status.state is not None and status.state.running is not None:
            yield _attempt(pod, status, status.restartCount)


def failed(pod: Pod) -> Iterator[Ending]:
    """Containers that ended otherwise than well, also those that were started again since."""
    for status in _statuses(pod):
        ended = status.state.terminated if status.state else None
        before = status.lastState.terminated if status.lastState else None
        if ended is not None and ended.exitCode != 0:
            yield _ending(_attempt(pod, status, status.restartCount), ended)
        if before is not None and before.exitCode != 0 and status.restartCount > 0:
            yield _ending(_attempt(pod, status, status.restartCount - 1), before)


def deleted(pod: Pod, now: datetime) -> Iterator[Ending]:
    """Containers of a pod that is gone whose end nobody has seen."""
    for status in _statuses(pod):
        if status.state is not None and status.state.running is not None:
            yield Ending(
                attempt=_attempt(pod, status, status.restartCount),
                started=status.state.running.startedAt,
                finished=now,
                exit_code=None,
                reason="Deleted",
                message="the pod was deleted before its end was known",
            )


def _statuses(pod: Pod) -> list[ContainerStatus]:
    return list((pod.status and pod.status.containerStatuses) or [])


def _attempt(pod: Pod, status: ContainerStatus, restarts: int) -> Attempt:
    metadata = pod.metadata
    uid, name = (metadata.uid, metadata.name) if metadata else (None, None)
    return Attempt(uid or "", name or "", status.name, restarts)


def _ending(attempt: Attempt, ended: ContainerStateTerminated) -> Ending:
    return Ending(
        attempt=attempt,
        started=ended.startedAt,
        finished=ended.finishedAt,
        exit_code=ended.exitCode,
        signal=ended.signal,
        reason=ended.reason or "",
        message=ended.message or "",
    )
