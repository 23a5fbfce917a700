"""Checks that no two routes from outside the cluster receive the same requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from infra.settings.inference import GatewaySettings, InferenceSettings
from infra.settings.problems import job_key, service_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training.settings import TrainingSettings


@dataclass(frozen=True)
class _Route:
    """A setting, where its requests arrive, and which of them it receives."""

    path: str
    entrance: str
    listener: str | None
    """None if the route receives requests from all listeners."""
    hosts: frozenset[str]
    """Host names. Empty if the route accepts every host name."""
    prefix: str
    protocol: Literal["HTTP", "gRPC"] = "HTTP"

    def overlap(self, other: "_Route") -> str | None:
        """Return the requests for which neither route is more specific, or None."""
        listeners = {self.listener, other.listener}
        if self.entrance != other.entrance or (len(listeners) > 1 and None not in listeners):
            return None
        every = not self.hosts and not other.hosts
        if self.protocol != other.protocol:
            # For a host name, a listener accepts either HTTPRoutes or GRPCRoutes (Gateway API v1).
            every = not self.hosts or not other.hosts
        elif self.prefix != other.prefix:
            return None
        both = sorted(self.hosts & other.hosts)
        if not every and not both:
            return None
        hosts = "every host name" if every else both[0]
        return hosts if self.protocol != other.protocol else f"path {self.prefix} of {hosts}"


def routes_differ(
    training: TrainingSettings, inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that no two routes receive the same requests, which only the older one would get."""
    routes = _routes(training, inference, tenancy.namespace)
    for first, second in combinations(routes, 2):
        if (requests := first.overlap(second)) is not None:
            remedy = "hostnames" if first.protocol != second.protocol else "hostnames or paths"
            if first.entrance.startswith("Ingress"):
                remedy = "hostnames"
            yield (
                f"{second.path} receives the requests to {requests} from {first.entrance}, as does "
                f"{first.path}: use different {remedy}."
            )


def _routes(
    training: TrainingSettings, inference: InferenceSettings, namespace: str
) -> Iterator[_Route]:
    for key, service in inference.services.items():
        path, route = service_key(key, "route"), service.route
        if route is None:
            continue
        hosts, prefix = frozenset(route.hostnames), _prefix(route.path)
        if route.ingress is not None:
            entrance = f"Ingress class {route.ingress.class_name}"
            yield _Route(path, entrance, None, hosts, prefix)
        if route.gateway is not None:
            entrance, listener = _entrance(route.gateway, namespace)
            yield _Route(path, entrance, listener, hosts, prefix)
            if route.grpc_hostnames:
                hosts = frozenset(route.grpc_hostnames)
                yield _Route(f"{path}.grpc_hostnames", entrance, listener, hosts, "/", "gRPC")
    for key, job in training.jobs.items():
        notebook = job.notebook.route if job.notebook is not None else None
        if notebook is not None:
            entrance, listener = _entrance(notebook.gateway, namespace)
            hosts, prefix = frozenset(notebook.hostnames), _prefix(notebook.path)
            yield _Route(job_key(key, "notebook", "route"), entrance, listener, hosts, prefix)


def _entrance(gateway: GatewaySettings, namespace: str) -> tuple[str, str | None]:
    return f"Gateway {gateway.namespace or namespace}/{gateway.name}", gateway.section


def _prefix(path: str) -> str:
    """Return a path prefix in the form in which prefixes that match the same paths are equal."""
    return path.rstrip("/") or "/"
