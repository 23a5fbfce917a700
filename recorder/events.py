"""What the cluster has noted of a pod, its run and its gang. It forgets it after an hour."""

from collections.abc import Iterator
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Event, Pod

from kube.names import GROUP_ANNOTATION
from recorder.pods import run_of

MOST: Final = 50
"""Events that are kept of each failed container, the latest."""


async def events_of(client: AsyncClient, pod: Pod) -> list[dict[str, Any]]:
    """Oldest first. Raises httpx2.HTTPError where the API server does not answer."""
    found: dict[str, Event] = {}
    for name in _names(pod):
        async for event in client.list(Event, fields={"involvedObject.name": name}):
            found[(event.metadata.uid if event.metadata else None) or ""] = event
    told = sorted((_told(event) for event in found.values()), key=lambda each: each["last"])
    return told[-MOST:]


def _names(pod: Pod) -> Iterator[str]:
    """Objects whose events are wanted; the run's job has the run's name."""
    metadata = pod.metadata
    if metadata is not None:
        yield metadata.name or ""
        group = (metadata.annotations or {}).get(GROUP_ANNOTATION)
        if group is not None:
            yield group
    yield run_of(pod)


def _told(event: Event) -> dict[str, Any]:
    last = event.lastTimestamp or event.eventTime or event.firstTimestamp
    about = event.involvedObject
    return {
        "last": "" if last is None else str(last.isoformat()),
        "object": f"{about.kind}/{about.name}",
        "type": event.type or "",
        "reason": event.reason or "",
        "message": event.message or "",
        "count": event.count or 1,
    }
