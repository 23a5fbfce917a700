"""Program that rolls a canary back to the stable version if the canary exceeds its limits.

    python3 -m recorder rollback '{...}'     in a pod of the service's namespace

The values that are compared with the limits come from Prometheus. A rollback removes the canary
from the backends of the route, sets ROLLED_BACK_ANNOTATION, and creates an Event. The rollback
remains in effect until the route describes a different canary, even if someone restores the
backends.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from httpx2 import Client as HttpClient
from httpx2 import HTTPError, HTTPStatusError, codes
from lightkube import Client
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event
from lightkube.types import PatchType

from kube.names import (
    CANARY_ANNOTATION,
    CANARY_IMAGE_ANNOTATION,
    CANARY_SPAN,
    GATEWAY_GROUP,
    LEADER_WORKER_SET_GROUP,
    ROLLED_BACK_ANNOTATION,
)

FIELD_MANAGER: Final = "canary-rollback"
UNREADY_EVALUATIONS: Final = 2
"""Number of consecutive evaluations without a ready pod after which the canary is rolled back.

A single evaluation without a ready pod may occur while a pod is being replaced.
"""

_IDENTITY_ANNOTATIONS: Final = (CANARY_ANNOTATION, CANARY_IMAGE_ANNOTATION)
_WORKLOADS: Final = {
    kind: create_namespaced_resource(group, "v1", kind, f"{kind.lower()}s")
    for group, kind in (("apps", "Deployment"), (LEADER_WORKER_SET_GROUP, "LeaderWorkerSet"))
}
_ROUTES: Final = {
    kind: create_namespaced_resource(GATEWAY_GROUP, "v1", kind, f"{kind.lower()}s")
    for kind in ("HTTPRoute", "GRPCRoute")
}
_PROMETHEUS_SECONDS: Final = 5.0
_RELEASE_ATTEMPTS: Final = 3
"""Maximum number of attempts per evaluation to release the fields of a route."""
_log = logging.getLogger("rollback")
Object = TypeVar("Object")


@dataclass(frozen=True)
class Limit:
    """A PromQL query over CANARY_SPAN, and the result above which the canary is rolled back.

    If the query returns no result, the limit is not checked.
    """

    name: str
    query: str
    maximum: float


def breach(
    limits: Sequence[Limit], values: Mapping[str, float], unready_evaluations: int = 0
) -> str | None:
    """Return the reason for a rollback of the canary, or None."""
    if unready_evaluations >= UNREADY_EVALUATIONS:
        return "no pod of the canary is ready"
    for limit in limits:
        value = values.get(limit.name)
        if value is not None and value > limit.maximum:
            return f"{limit.name} is {value:.3g}, more than {limit.maximum:g}"
    return None


@dataclass(frozen=True)
class Plan:
    """A canary, its limits, and the backends of its routes after a rollback."""

    service: str
    """Name of the routes and of the stable version."""
    canary: str
    workload: str
    """Kind of the object that runs the canary's pods."""
    prometheus: str
    interval_seconds: float
    window_seconds: float
    limits: tuple[Limit, ...]
    stable: Mapping[str, list[dict[str, Any]]]
    """Maps kinds of routes to their backends without the canary."""

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Parse the plan that the stack wrote.

        Raise ValueError if the plan is incompatible with this version of the program.
        """
        try:
            document = json.loads(text)
            limits = tuple(Limit(**each) for each in document.pop("limits"))
            return cls(**document, limits=limits)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None


class Rollback:
    """Control loop that rolls one canary back if it is not ready or exceeds a limit."""

    def __init__(self, plan: Plan, api: Client, prometheus: HttpClient) -> None:
        self._plan, self._api, self._prometheus = plan, api, prometheus
        self._unready_evaluations = 0
        self._canaries: set[str] = set()
        self._since = 0.0
        """Time when the canaries in `_canaries` were first observed receiving requests."""

    def run(self) -> NoReturn:
        """Evaluate the canary until terminated. Outages of the API server are only logged."""
        while True:
            try:
                self.evaluate(time.monotonic())
            except HTTPError as error:
                _log.warning("%s: %s", type(error).__name__, error)
            time.sleep(self._plan.interval_seconds)

    def evaluate(self, now: float) -> None:
        """Evaluate the canary once, and roll it back if it is not ready or exceeds a limit.

        A canary that was rolled back earlier is rolled back again.
        """
        found = [_get_or_none(partial(self._route, kind)) for kind in self._plan.stable]
        routes = [route for route in found if route is not None]
        for route in routes:
            self._finish_rollback(route)
        served = [route for route in routes if self._serves_canary(route)]
        if not served:
            self._unready_evaluations = 0
            return
        canaries = {_identity(route) for route in served}
        if canaries != self._canaries:
            self._canaries, self._since, self._unready_evaluations = canaries, now, 0
        # The routes of a service describe the same canary, except during an update. The canary may
        # have been rolled back in only one of them, or someone may have restored the backends.
        same = (route for route in routes if _identity(route) in canaries)
        reason = next(filter(None, map(_earlier_reason, same)), None)
        if reason is None:
            # Unlike the limits, readiness is also checked during an outage of Prometheus.
            unready_evaluations = self._count_unready()
            values = self._values(now - self._since)
            reason = breach(self._plan.limits, values, unready_evaluations)
        if reason is not None:
            for route in served:
                self._roll_back(route, reason)

    def _route(self, kind: str) -> GenericNamespacedResource:
        return self._api.get(_ROUTES[kind], self._plan.service)

    def _serves_canary(self, route: GenericNamespacedResource) -> bool:
        # A backend without a weight has weight 1.
        return any(
            backend["name"] == self._plan.canary and backend.get("weight", 1) > 0
            for backend in route["spec"]["rules"][0]["backendRefs"]
        )

    def _values(self, served_seconds: float) -> dict[str, float]:
        """Return the result of each limit's query. Failed and empty queries are omitted."""
        # Series have no version label, so earlier requests may belong to a different canary.
        span = int(min(self._plan.window_seconds, served_seconds))
        if span < 1:
            return {}
        values: dict[str, float] = {}
        url = f"{self._plan.prometheus.rstrip('/')}/api/v1/query"
        for limit in self._plan.limits:
            try:
                query = limit.query.replace(CANARY_SPAN, f"{span}s")
                response = self._prometheus.get(url, params={"query": query})
                response.raise_for_status()
                result = response.json()["data"]["result"]
                if result:
                    values[limit.name] = float(result[0]["value"][1])
            except (HTTPError, ValueError, LookupError, TypeError) as error:
                _log.warning("cannot evaluate %s: %s", limit.name, error)
        return values

    def _count_unready(self) -> int:
        kind = _WORKLOADS[self._plan.workload]
        found = _get_or_none(partial(self._api.get, kind, self._plan.canary))
        ready = bool(((found or {}).get("status") or {}).get("readyReplicas"))
        self._unready_evaluations = 0 if ready else self._unready_evaluations + 1
        return self._unready_evaluations

    def _roll_back(self, route: GenericNamespacedResource, reason: str) -> None:
        """Remove the canary from a route's backends, and record the reason in an annotation."""
        kind, value = str(route["kind"]), f"{_identity(route)} {reason}"
        annotations = (route.metadata.annotations if route.metadata else None) or {}
        changes = [
            # The stack may have written a different canary in the meantime.
            *(
                {"op": "test", "path": _path(name), "value": annotations.get(name)}
                for name in _IDENTITY_ANNOTATIONS
            ),
            {
                "op": "replace",
                "path": "/spec/rules/0/backendRefs",
                "value": self._plan.stable[kind],
            },
            {"op": "add", "path": _path(ROLLED_BACK_ANNOTATION), "value": value},
        ]
        changed = self._api.patch(
            _ROUTES[kind],
            self._plan.service,
            changes,
            patch_type=PatchType.JSON,
            field_manager=FIELD_MANAGER,
        )
        _log.warning("%s %s: rolled back: %s", kind, self._plan.service, reason)
        self._finish_rollback(changed)

    def _finish_rollback(self, route: GenericNamespacedResource) -> None:
        """Report a rollback, and remove this program from the field managers of the route.

        Otherwise, the next server-side apply of the stack would fail with a conflict. The next
        evaluation repeats this method if it was interrupted.
        """
        if not _is_managed(route):
            return
        reason = _earlier_reason(route)
        try:
            if reason is not None:
                self._report(route, reason)
        except HTTPStatusError as error:
            _log.warning("the API server rejected an event: %s", error)
        for _ in range(_RELEASE_ATTEMPTS):
            metadata = route["metadata"]
            others = [
                each for each in metadata["managedFields"] if each.get("manager") != FIELD_MANAGER
            ]
            version = metadata["resourceVersion"]
            try:
                self._api.patch(
                    _ROUTES[str(route["kind"])],
                    self._plan.service,
                    {"metadata": {"managedFields": others, "resourceVersion": version}},
                    patch_type=PatchType.MERGE,
                    field_manager=FIELD_MANAGER,
                )
            except HTTPStatusError as error:
                _log.warning("cannot release the fields of a route: %s", error)
                if error.response.status_code != codes.CONFLICT:
                    return
                # For example, a gateway has updated the route's status.
                route = self._route(str(route["kind"]))
            else:
                return

    def _report(self, route: GenericNamespacedResource, reason: str) -> None:
        metadata, now = route.metadata, datetime.now(UTC)
        assert metadata is not None  # noqa: S101  objects from the API server have metadata
        name = ObjectMeta(generateName=f"{self._plan.canary}-", namespace=metadata.namespace)
        self._api.create(
            Event(
                metadata=name,
                involvedObject=ObjectReference(
                    apiVersion=f"{GATEWAY_GROUP}/v1",
                    kind=str(route["kind"]),
                    name=metadata.name,
                    namespace=metadata.namespace,
                    uid=metadata.uid,
                ),
                type="Warning",
                reason="CanaryRolledBack",
                message=f"{self._plan.canary} receives no requests: {reason}",
                source=EventSource(component=FIELD_MANAGER),
                firstTimestamp=now,
                lastTimestamp=now,
                count=1,
            )
        )


def _get_or_none(get: Callable[[], Object]) -> Object | None:
    """Return an object from the API server, or None if it does not exist."""
    try:
        return get()
    except HTTPStatusError as error:
        if error.response.status_code != codes.NOT_FOUND:
            raise
        return None


def _is_managed(route: GenericNamespacedResource) -> bool:
    """Return whether this program is a field manager of a route."""
    managed = route["metadata"].get("managedFields") or []
    return any(each.get("manager") == FIELD_MANAGER for each in managed)


def _identity(route: GenericNamespacedResource) -> str:
    """Return the identity of a route's canary: its image, and the digest of its pods and limits."""
    annotations = (route.metadata.annotations if route.metadata else None) or {}
    return "@".join(annotations.get(name, "") for name in _IDENTITY_ANNOTATIONS)


def _path(annotation: str) -> str:
    return f"/metadata/annotations/{annotation.replace('/', '~1')}"


def _earlier_reason(route: GenericNamespacedResource) -> str | None:
    """Return the reason for an earlier rollback of this canary, or None."""
    annotations = (route.metadata.annotations if route.metadata else None) or {}
    identity, _, reason = annotations.get(ROLLED_BACK_ANNOTATION, "").partition(" ")
    return reason if reason and identity == _identity(route) else None


def roll_back(text: str) -> NoReturn:
    """Evaluate the canary of a plan until terminated. Exit if the plan cannot be read."""
    try:
        plan = Plan.parse(text)
    except ValueError as error:
        sys.exit(f"the plan cannot be read: {error}; use the image version that matches the stack")
    prometheus = HttpClient(timeout=_PROMETHEUS_SECONDS, trust_env=False)
    Rollback(plan, Client(), prometheus).run()
