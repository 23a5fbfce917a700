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
        return self._send(
            "POST", self._collection(manifest, namespace), params=options, json=manifest
        )

    def apply(self, manifest: Manifest) -> Response:
        """Create or change an object, as `kubectl apply --server-side` does."""
        metadata = manifest["metadata"]
        return self._send(
            "PATCH",
            f"{self._collection(manifest, metadata.get('namespace', ''))}/{metadata['name']}",
            params={"fieldManager": "kubectl", "fieldValidation": "Strict"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=json.dumps(manifest),
        )

    def objects(self, kind: str, namespace: str = "") -> list[Manifest]:
        """Return all objects of a kind, such as `pods` or `jobs.batch`, in a namespace.

        Polling with kubectl would take most of the CPU time of some tests.
        """
        answer = self._client.get(self.path(kind, namespace), headers=self._headers)
        return list(answer.raise_for_status().json()["items"])

    def path(self, kind: str, namespace: str = "") -> str:
        """Return the path of a kind, such as `pods` or `jobs.batch`, in a namespace."""
        name, _, group = kind.partition(".")
        root = f"/apis/{self._versions[group]}" if group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{name}" if namespace else f"{root}/{name}"

    def _collection(self, manifest: Manifest, namespace: str) -> str:
        """Return the path of the objects with a manifest's kind."""
        version = manifest["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if root not in self._resources:
            found = self._client.get(root).raise_for_status().json()["resources"]
            self._resources[root] = {
                each["kind"]: each for each in found if "/" not in each["name"]
            }
        resource = self._resources[root][manifest["kind"]]
        scope = f"/namespaces/{namespace}" if resource["namespaced"] else ""
        return f"{root}{scope}/{resource['name']}"

    @cached_property
    def _resources(self) -> dict[str, dict[str, Manifest]]:
        """Resources by kind, for each version of an API group that has been used."""
        return {}

    @cached_property
    def _versions(self) -> dict[str, str]:
        groups = self._client.get("/apis").raise_for_status().json()["groups"]
        return {group["name"]: group["preferredVersion"]["groupVersion"] for group in groups}

    def get(self, path: str) -> Manifest:
        """Return an object or a list."""
        return self._send("GET", path).body

    def delete(self, path: str) -> Response:
        """Delete an object or all objects under a path, without a grace period."""
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        return self._send("DELETE", path, params=options)

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
