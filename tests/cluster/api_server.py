"""Requests to a platform's API server, including the warnings in the responses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from gitops.forecast.sandbox import connect
from tests.cluster.platform import Platform

Manifest = dict[str, Any]
_RULE = re.compile(r"with binding '[^']+': ([a-z-]+):")
_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodTemplate": "/api/v1/namespaces/{}/podtemplates",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
    "Service": "/api/v1/namespaces/{}/services",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Command": "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
}


@dataclass(frozen=True)
class Response:
    """A response: the stored object, or the Status of an error, and the violated rules."""

    status: int
    body: Manifest
    warnings: tuple[str, ...]

    @property
    def warned(self) -> set[str]:
        """Rules whose policies wrote a warning."""
        return set(_RULE.findall(" ".join(self.warnings)))

    @property
    def denied(self) -> str:
        """Message of a denial; empty if the request was admitted."""
        return str(self.body["message"]) if self.status == 403 else ""


class ApiServer:
    """The API server, as the administrator of the cluster or as another user."""

    def __init__(self, client: httpx.Client, headers: dict[str, str] | None = None) -> None:
        self._client, self._headers = client, headers or {}

    def as_user(self, name: str) -> "ApiServer":
        """Impersonate a user or a service account, which must have its own permissions."""
        return ApiServer(self._client, {"Impersonate-User": name})

    def create(self, manifest: Manifest, namespace: str, *, dry_run: bool = True) -> Response:
        """Create an object, by default without storing it."""
        options = {"fieldValidation": "Ignore", **({"dryRun": "All"} if dry_run else {})}
        path = _PATHS[manifest["kind"]].format(namespace)
        return self._send("POST", path, params=options, json=manifest)

    def objects(self, kind: str, namespace: str) -> list[Manifest]:
        """Return all objects of a kind, such as `pods` or `jobs.batch`, in a namespace.

        Polling with kubectl would take most of the CPU time of some tests.
        """
        name, _, group = kind.partition(".")
        path = f"/apis/{self._versions[group]}" if group else "/api/v1"
        answer = self._client.get(f"{path}/namespaces/{namespace}/{name}", headers=self._headers)
        return list(answer.raise_for_status().json()["items"])

    @cached_property
    def _versions(self) -> dict[str, str]:
        groups = self._client.get("/apis").raise_for_status().json()["groups"]
        return {group["name"]: group["preferredVersion"]["groupVersion"] for group in groups}

    def get(self, path: str) -> Manifest:
        """Return an object or a list."""
        return self._send("GET", path).body

    def delete(self, path: str) -> Response:
        """Delete an object or all objects under a path."""
        return self._send("DELETE", path, params={"gracePeriodSeconds": 0})

    def patch(self, path: str, patch: Manifest) -> Response:
        """Patch an object or a subresource of it."""
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        return self._send("PATCH", path, content=json.dumps(patch), headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """Sum the samples of a metric that have some labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self._client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(name + "{")]
        matching = [line for line in found if all(label in line for label in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in matching)

    def _send(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> Response:
        sent = {**self._headers, **(headers or {})}
        response = self._client.request(method, path, headers=sent, **more)
        warnings = tuple(response.headers.get_list("Warning"))
        return Response(response.status_code, response.json(), warnings)


@contextmanager
def api_server(platform: Platform) -> Iterator[ApiServer]:
    """Connect as the administrator, with the platform's kubeconfig."""
    with connect(Path(platform.shell_environment["KUBECONFIG"])) as client:
        yield ApiServer(client)
