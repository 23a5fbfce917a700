"""All objects of a service, in the three groups that are created one after another."""

from infra.manifests import NOT_AWAITED, Manifest
from infra.serving.address import disruption_budget, service
from infra.serving.autoscaling import autoscaler
from infra.serving.deployment import deployment
from infra.serving.description import Serving
from infra.serving.routing import http_route, ingresses


def build(serving: Serving) -> list[Manifest]:
    """Service, Deployment, PodDisruptionBudget and, where asked for, the autoscaler.

    Pulumi waits for none of them: a model may still be in training.
    """
    stable = serving.stable
    built = [
        service(serving, stable, NOT_AWAITED),
        deployment(serving, stable, NOT_AWAITED),
        disruption_budget(serving, stable),
    ]
    if serving.service.autoscaling is not None:
        built.append(autoscaler(serving))
    return built


def build_canary(serving: Serving) -> list[Manifest]:
    """Deployment and Service of the canary, for which Pulumi waits; empty without a canary.

    The update fails when the canary's pods are not ready within the progress deadline.
    """
    canary = serving.canary
    if canary is None:
        return []
    deadline = {"pulumi.com/timeoutSeconds": str(serving.service.progress_deadline_seconds)}
    built = [deployment(serving, canary, deadline), service(serving, canary, deadline)]
    if canary.replicas != 1:
        built.append(disruption_budget(serving, canary))
    return built


def routes(serving: Serving) -> list[Manifest]:
    """HTTPRoute or Ingresses. They name the canary, and so are made or changed after it."""
    route = serving.service.route
    if route is None:
        return []
    if route.gateway is not None:
        return [http_route(serving, route, route.gateway)]
    return ingresses(serving, route, route.ingress) if route.ingress is not None else []
