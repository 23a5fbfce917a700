"""Rollback of a canary: the program that evaluates the limits, and the route's annotations."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from infra.api_client import ApiClient
from infra.manifests import Manifest
from infra.pods import Pod
from infra.serving.deployment import pods, workload
from infra.serving.description import InferenceServiceArgs
from infra.serving.runtimes.runtime import LATENCY, REQUESTS
from infra.settings.inference.scaling import RollbackSettings
from kube.names import CANARY_ANNOTATION, CANARY_IMAGE_ANNOTATION, CANARY_SPAN, GATEWAY_GROUP

_PROGRAM: Final = "canary-rollback"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def limits_of(args: InferenceServiceArgs) -> RollbackSettings | None:
    """Return the limits of the service's canary, or None if there are none."""
    return args.service.canary.rollback if args.service.canary is not None else None


def identity(args: InferenceServiceArgs) -> dict[str, Any]:
    """Return the route annotations that identify the service's canary.

    Return {} if the service has no canary, or if the canary has no limits. A canary with the same
    annotations as a canary that was rolled back gets no requests.
    """
    limits, canary = limits_of(args), args.canary
    if limits is None or canary is None:
        return {}
    # The digest does not cover the image, which may be unknown until it is built.
    without_images = replace(args, image="", canary_image="")
    version = replace(canary, image="")
    template = pods(workload(without_images, version, {}))
    content = json.dumps([template, limits.model_dump(mode="json")], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return {CANARY_ANNOTATION: digest, CANARY_IMAGE_ANNOTATION: canary.image}


def rollback_objects(
    args: InferenceServiceArgs, stable: Mapping[str, list[Manifest]]
) -> list[Manifest]:
    """Return the Deployment of the rollback program and the objects that grant its permissions.

    If `isolated`, a NetworkPolicy is included. Return [] if the canary has no limits. `stable`
    maps each kind of route to its backends without the canary.
    """
    limits = limits_of(args)
    if limits is None:
        return []
    name = f"{args.key}-rollback"
    client = ApiClient(name=name, namespace=args.namespace, program=_PROGRAM, awaited=True)
    url = urlsplit(limits.prometheus)
    ports = [*limits.api_ports, url.port or _DEFAULT_PORTS[url.scheme]]
    deadline = {"pulumi.com/timeoutSeconds": str(args.service.progress_deadline)}
    deployment = client.deployment(_pod(client, args, limits, stable))
    return [
        client.account(args.pull_secret),
        client.role(_rules(args, stable)),
        client.binding(),
        *([client.allow_ports(ports)] if args.isolated else []),
        {**deployment, "metadata": {**client.metadata, "annotations": deadline}},
    ]


def _rules(args: InferenceServiceArgs, routes: Mapping[str, Any]) -> list[dict[str, Any]]:
    plurals = [f"{kind.lower()}s" for kind in routes]
    canary = (args.canary or args.stable).workload
    return [
        {
            "apiGroups": [GATEWAY_GROUP],
            "resources": plurals,
            "resourceNames": [args.key],
            "verbs": ["get", "patch"],
        },
        {
            "apiGroups": [canary["apiVersion"].partition("/")[0]],
            "resources": [f"{canary['kind'].lower()}s"],
            "resourceNames": [f"{args.key}-canary"],
            "verbs": ["get"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]


def _pod(
    client: ApiClient,
    args: InferenceServiceArgs,
    limits: RollbackSettings,
    stable: Mapping[str, list[Manifest]],
) -> Pod:
    plan = {
        "service": args.key,
        "canary": f"{args.key}-canary",
        "workload": (args.canary or args.stable).workload["kind"],
        "prometheus": limits.prometheus,
        "interval_seconds": limits.interval_seconds,
        "window_seconds": limits.window_seconds,
        "limits": queries(limits, args.namespace, args.key),
        "stable": stable,
    }
    return client.pod(
        "rollback",
        args.gpu_nodes,
        image=args.rollback_image,
        cpu=limits.cpu,
        memory=limits.memory,
        command=["python3", "-m", "recorder", "rollback", json.dumps(plan)],
        grace_seconds=5,
    )


def queries(limits: RollbackSettings, namespace: str, key: str) -> list[dict[str, Any]]:
    """Return the canary's limits, each with the PromQL query for the limited value.

    The program replaces CANARY_SPAN with the time span to evaluate. A query has no result while
    there are too few requests. Responses with status 400 (or 4xx, if a server reports only status
    classes) count as failed, because a failing model can also cause them. Responses to invalid
    requests cancel out, because both versions receive the same share of invalid requests.
    """
    span = f"[{CANARY_SPAN}]"

    def requests(service: str, codes: str = "") -> str:
        selector = f'namespace="{namespace}", service="{service}"{codes}'
        return f"sum(increase({REQUESTS}{{{selector}}}{span}))"

    canary, failed = f"{key}-canary", ', code=~"5.*|400|4xx"'
    has_min_requests = f"and {requests(canary)} >= {limits.min_requests}"
    canary_share = f"{requests(canary, failed)} / {requests(canary)}"
    stable_share = f"({requests(key, failed)} / ({requests(key)} > 0) or vector(0))"
    limited_values = [
        {
            "name": "the share of failed requests minus that of the stable version",
            "query": f"{canary_share} - {stable_share} {has_min_requests}",
            "maximum": limits.error_share,
        }
    ]
    if limits.latency_seconds is not None:
        selector = f'namespace="{namespace}", service="{canary}"'
        buckets = f"sum by (le) (rate({LATENCY}{{{selector}}}{span}))"
        limited_values.append(
            {
                "name": "the p99 latency (s)",
                "query": f"histogram_quantile(0.99, {buckets}) {has_min_requests}",
                "maximum": limits.latency_seconds,
            }
        )
    return limited_values
