"""Pods of runs as returned by the API, and a minimal API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import Pod

CONFIG = KubeConfig.from_one(
    # Otherwise, each client would load the certificates of all authorities, which takes 20 ms.
    cluster=Cluster(server="http://api", insecure=True),
    user=User(token="token"),
    namespace="ml",
).get()
RUN = "digits-8c41d09a"
RUNNING = {"running": {"startedAt": "2026-11-21T21:00:00Z"}}


def terminated_state(
    code: int, *, at: str = "2026-11-21T21:16:05Z", message: str = ""
) -> dict[str, Any]:
    """Return the state of a terminated container."""
    terminated = {
        "exitCode": code,
        "reason": "OOMKilled" if code == 137 else "Error",
        "message": message,
        "startedAt": "2026-11-21T21:00:00Z",
        "finishedAt": at,
    }
    return {"terminated": terminated}


def pod_manifest(
    name: str = "worker-0",
    state: dict[str, Any] | None = None,
    *,
    last_state: dict[str, Any] | None = None,
    restarts: int = 0,
    claim: str = "checkpoints",
) -> dict[str, Any]:
    """Return the manifest of a pod in the run."""
    status = {
        "name": "training",
        "restartCount": restarts,
        "state": RUNNING if state is None else state,
        "lastState": last_state or {},
        "image": "training",
        "imageID": "",
        "ready": state is None,
    }
    source = {"claimName": claim}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": {"gpu-platform.dev/run": RUN},
            "annotations": {"scheduling.k8s.io/group-name": f"{RUN}-group"},
        },
        "spec": {
            "nodeName": "gpu-node-0",
            "containers": [{"name": "training"}],
            "volumes": [{"name": "checkpoints", "persistentVolumeClaim": source}],
        },
        "status": {"containerStatuses": [status]},
    }


def pod(*args: Any, **kwargs: Any) -> Pod:
    """Return the same pod as an object of the client library."""
    return cast(Pod, Pod.from_dict(pod_manifest(*args, **kwargs)))


class Api:
    """An API server with pods, watch events and logs provided by the test."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.changes: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.logs: dict[str, list[str]] = {}
        self.endless: dict[str, str] = {}
        """First lines of endless logs."""
        self.requested_logs: set[str] = set()
        """Pods whose endless logs were requested."""
        self.failing_requests = 0
        """Number of requests that fail before the server responds again."""
        self.requested_paths: list[str] = []

    def client(self) -> AsyncClient:
        return AsyncClient(CONFIG, transport=httpx2.MockTransport(self._respond))

    def emit(self, kind: str, manifest: dict[str, Any]) -> None:
        self.changes.put_nowait({"type": kind, "object": manifest})

    async def _respond(self, request: httpx2.Request) -> httpx2.Response:
        self.requested_paths.append(request.url.path)
        if self.failing_requests:
            self.failing_requests -= 1
            raise httpx2.ConnectError("connection refused", request=request)
        path, query = request.url.path, request.url.params
        if path.endswith("/log"):
            pod = path.split("/")[-2]
            if pod in self.endless:
                return httpx2.Response(200, content=self._endless_log(pod))
            lines = self.logs.get(pod)
            if lines is None:
                return httpx2.Response(404, json={"kind": "Status", "message": "pod not found"})
            return httpx2.Response(200, text="".join(f"{line}\n" for line in lines))
        if path.endswith("/events"):
            pod_name = query["fieldSelector"].rpartition("=")[2]
            return httpx2.Response(200, json=_list([_event(pod_name)]))
        if "watch" in query:
            return httpx2.Response(200, content=self._changes())
        return httpx2.Response(200, json=_list(self.pods))

    async def _endless_log(self, pod: str) -> AsyncIterator[bytes]:
        yield f"{self.endless[pod]}\n".encode()
        self.requested_logs.add(pod)
        await asyncio.Event().wait()

    async def _changes(self) -> AsyncIterator[bytes]:
        while (change := await self.changes.get()) is not None:
            yield json.dumps(change).encode() + b"\n"


def rejection(code: int) -> httpx2.Response:
    """Return the API server's response to a rejected request."""
    return httpx2.Response(code, json={"kind": "Status", "code": code, "message": "rejected"})


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": items}


def _event(pod_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod_name}.1", "namespace": "ml", "uid": f"event-{pod_name}"},
        "involvedObject": {"kind": "Pod", "name": pod_name},
        "type": "Warning",
        "reason": "Killing",
        "message": f"event for {pod_name}",
        "lastTimestamp": "2026-11-21T21:16:05Z",
    }
