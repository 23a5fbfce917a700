"""Checks that no two routes from outside the cluster receive the same requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from infra.settings.inference import InferenceSettings
from infra.settings.inference.access import GatewaySettings
from infra.settings.problems import job_key, service_key
from infra.settings.tenancy import TenancySettings
from infra.settings.training import TrainingSettings


@dataclass(frozen=True)
class _Route:
    """A route: the setting that configures it, and the requests that it matches."""

    key: str
    """Full key of the setting."""
    origin: str
    """The Gateway or the Ingress class."""
    hosts: frozenset[str]
    """Host names. Empty if the route accepts every host name."""
    listener: str | None = None
    """Listener of the Gateway. None if the route is attached to all listeners."""
    prefix: str | None = None
    """Path prefix. None for a gRPC route or an Ingress, which receives all paths."""

    def ambiguous_requests(self, other: "_Route") -> str | None:
        """Return a description of the requests that both routes match equally well, or None."""
        listeners = {self.listener, other.listener}
        if self.origin != other.origin or (len(listeners) > 1 and None not in listeners):
            return None
        common_hosts = sorted(self.hosts & other.hosts)
        if self.prefix is None and other.prefix is None:
            return common_hosts[0] if common_hosts else None
        if self.prefix is None or other.prefix is None:
            # For a host name, a listener accepts either HTTPRoutes or GRPCRoutes (Gateway API v1).
            ambiguous_hosts = (
                sorted(self.hosts | other.hosts)
                if not (self.hosts and other.hosts)
                else common_hosts
            )
            return ambiguous_hosts[0] if ambiguous_hosts else None
        if self.prefix != other.prefix or not (common_hosts or self.hosts == other.hosts):
            return None
        return f"path {self.prefix} on {common_hosts[0] if common_hosts else 'every host name'}"


def routes_do_not_overlap(
    training: TrainingSettings, inference: InferenceSettings, tenancy: TenancySettings
) -> Iterator[str]:
    """Check that no two routes match the same requests, because only the older one would apply.

    Ingresses without host names are not compared, because some controllers create a separate load
    balancer for each Ingress.
    """
    for first, second in combinations(_routes(training, inference, tenancy.namespace), 2):
        if (requests := first.ambiguous_requests(second)) is not None:
            only_hosts = first.prefix is None or second.prefix is None
            yield (
                f"{first.key} and {second.key} both match the requests to {requests} from "
                f"{first.origin}: use different hostnames{'' if only_hosts else ' or paths'}."
            )


def _routes(
    training: TrainingSettings, inference: InferenceSettings, namespace: str
) -> Iterator[_Route]:
    for key, service in inference.services.items():
        path, route = service_key(key, "route"), service.route
        if route is not None and route.ingress is not None:
            origin = f"Ingress class {route.ingress.class_name}"
            yield _Route(path, origin, frozenset(route.hostnames))
        if route is not None and route.gateway is not None:
            origin, listener = _gateway_name(route.gateway, namespace), route.gateway.section
            hosts = frozenset(route.hostnames)
            yield _Route(path, origin, hosts, listener, _prefix(route.path))
            if route.grpc_hostnames:
                setting, grpc = f"{path}.grpc_hostnames", frozenset(route.grpc_hostnames)
                yield _Route(setting, origin, grpc, listener)
    for key, job in training.jobs.items():
        notebook = job.notebook.route if job.notebook is not None else None
        if notebook is not None:
            path = job_key(key, "notebook", "route")
            origin = _gateway_name(notebook.gateway, namespace)
            hosts, listener = frozenset(notebook.hostnames), notebook.gateway.section
            yield _Route(path, origin, hosts, listener, _prefix(notebook.path))


def _gateway_name(gateway: GatewaySettings, namespace: str) -> str:
    return f"Gateway {gateway.namespace or namespace}/{gateway.name}"


def _prefix(path: str) -> str:
    """Normalize a path prefix, so that prefixes that match the same paths are equal."""
    return path.rstrip("/") or "/"
