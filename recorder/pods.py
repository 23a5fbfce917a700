"""Information about pods: their run, claim, containers, terminations and events."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.models.core_v1 import ContainerStateTerminated, ContainerStatus
from lightkube.resources.core_v1 import Event, Pod

from kube.names import CHECKPOINTS_VOLUME, GROUP_ANNOTATION, RUN_LABEL

MAX_EVENTS: Final = 50
"""Maximum number of events to keep for each failed container."""


@dataclass(frozen=True)
class Attempt:
    """One execution of a container, after `restarts` restarts."""

    uid: str
    pod: str
    container: str
    restarts: int


@dataclass(frozen=True, kw_only=True)
class Termination:
    """Termination of a container. If it was not observed, `exit_code` is None."""

    attempt: Attempt
    started: datetime | None
    finished: datetime | None
    exit_code: int | None
    signal: int | None = None
    reason: str
    message: str = ""
    restarted: bool = False
    """True if the container has restarted since."""


def run_of(pod: Pod) -> str:
    """Return the name of the run that a pod belongs to, or an empty string."""
    labels = (pod.metadata and pod.metadata.labels) or {}
    return str(labels.get(RUN_LABEL, ""))


def claim_of(pod: Pod) -> str | None:
    """Return the name of the claim with the pod's checkpoints, if any."""
    volumes = (pod.spec and pod.spec.volumes) or []
    for volume in volumes:
        if volume.name == CHECKPOINTS_VOLUME and volume.persistentVolumeClaim is not None:
            return volume.persistentVolumeClaim.claimName
    return None


def running_containers(pod: Pod) -> Iterator[Attempt]:
    """Yield the running containers."""
    for status in _statuses(pod):
        if status.state is not None and status.state.running is not None:
            yield _attempt(pod, status, status.restartCount)


def failed_containers(pod: Pod) -> Iterator[Termination]:
    """Yield the terminations of failed containers, including those that have restarted since."""
    for status in _statuses(pod):
        terminated = status.state.terminated if status.state else None
        before = status.lastState.terminated if status.lastState else None
        if terminated is not None and terminated.exitCode != 0:
            yield _termination(_attempt(pod, status, status.restartCount), terminated)
        waiting = status.state.waiting if status.state else None
        # While a failed container waits for its next restart, its restart count is unchanged.
        is_backing_off = waiting is not None and waiting.reason == "CrashLoopBackOff"
        restarts = status.restartCount - (0 if is_backing_off else 1)
        if before is not None and before.exitCode != 0 and restarts >= 0:
            attempt = _attempt(pod, status, restarts)
            yield replace(_termination(attempt, before), restarted=True)


def succeeded_containers(pod: Pod) -> Iterator[Attempt]:
    """Yield the containers that have succeeded."""
    for status in _statuses(pod):
        terminated = status.state.terminated if status.state else None
        if terminated is not None and terminated.exitCode == 0:
            yield _attempt(pod, status, status.restartCount)


def unobserved_terminations(pod: Pod, now: datetime) -> Iterator[Termination]:
    """Yield a termination for each container that was running when a deleted pod was last seen."""
    for status in _statuses(pod):
        if status.state is not None and status.state.running is not None:
            yield Termination(
                attempt=_attempt(pod, status, status.restartCount),
                started=status.state.running.startedAt,
                finished=now,
                exit_code=None,
                reason="Deleted",
                message="the pod was deleted before the termination of its container was observed",
            )


async def events_of(client: AsyncClient, pod: Pod) -> list[dict[str, Any]]:
    """Return the last events of a pod, its run and its gang, oldest first.

    By default, the API server deletes events after an hour.

    Raises:
        httpx2.HTTPError: If the request fails.
    """
    found: dict[str, Event] = {}
    for name in _object_names(pod):
        async for event in client.list(Event, fields={"involvedObject.name": name}):
            found[(event.metadata.uid if event.metadata else None) or ""] = event
    events = sorted((_event_as_json(event) for event in found.values()), key=lambda e: e["last"])
    return events[-MAX_EVENTS:]


def _object_names(pod: Pod) -> Iterator[str]:
    """Yield the names of the objects whose events belong to a pod: pod, PodGroup, and run."""
    metadata = pod.metadata
    if metadata is not None:
        yield metadata.name or ""
        group = (metadata.annotations or {}).get(GROUP_ANNOTATION)
        if group is not None:
            yield group
    yield run_of(pod)


def _event_as_json(event: Event) -> dict[str, Any]:
    # Events of the newer API, such as those of kube-scheduler, count repetitions in `series`.
    series = event.series
    last = (series and series.lastObservedTime) or event.lastTimestamp
    last = last or event.eventTime or event.firstTimestamp
    target = event.involvedObject
    return {
        "last": "" if last is None else str(last.isoformat()),
        "object": f"{target.kind}/{target.name}",
        "type": event.type or "",
        "reason": event.reason or "",
        "message": event.message or "",
        "count": (series and series.count) or event.count or 1,
    }


def _statuses(pod: Pod) -> list[ContainerStatus]:
    """Return the statuses of all containers whose failure makes the run fail.

    Sidecars are not included, because Kubernetes stops them when the other containers have ended.
    """
    status = pod.status
    containers = (pod.spec and pod.spec.initContainers) or []
    sidecars = {each.name for each in containers if each.restartPolicy == "Always"}
    init = (status and status.initContainerStatuses) or []
    return [
        *(each for each in init if each.name not in sidecars),
        *((status and status.containerStatuses) or []),
    ]


def _attempt(pod: Pod, status: ContainerStatus, restarts: int) -> Attempt:
    metadata = pod.metadata
    uid, name = (metadata.uid, metadata.name) if metadata else (None, None)
    return Attempt(uid or "", name or "", status.name, restarts)


def _termination(attempt: Attempt, terminated: ContainerStateTerminated) -> Termination:
    return Termination(
        attempt=attempt,
        started=terminated.startedAt,
        finished=terminated.finishedAt,
        exit_code=terminated.exitCode,
        signal=terminated.signal,
        reason=terminated.reason or "",
        message=terminated.message or "",
    )
