"""The objects that serve a model: pure, from a typed description to manifests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference.config import InferenceConfig
from infra.manifests import (
    NOT_AWAITED,
    SERVICE_LABEL,
    WORKLOAD_LABEL,
    Manifest,
    compact,
    standard_labels,
)
from infra.placement import even_spread
from infra.pods import GpuNodes, Mount, Pod, pod_template
from infra.settings.inference import InferenceServiceSettings

MODELS_PATH: Final = "/models"
_STARTUP_PERIOD: Final = 2


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A service and its surroundings. `image` is text or a Pulumi output of it."""

    key: str
    service: InferenceServiceSettings
    run: str
    namespace: str
    image: Any
    gpu_nodes: GpuNodes
    claims: Mapping[str, str]
    domain: str = "cluster.local"
    service_account: str = "inference"

    @property
    def model(self) -> str:
        """The model's name in the protocol."""
        return self.service.model or self.key

    @property
    def url(self) -> str:
        """Where pods of the cluster reach the service."""
        host = f"{self.key}.{self.namespace}.svc.{self.domain}"
        return f"http://{host}:{self.service.port}"

    @property
    def selector(self) -> dict[str, str]:
        """The labels that this service's pods have and no others."""
        return {WORKLOAD_LABEL: "inference", SERVICE_LABEL: self.key}


def build(serving: Serving) -> list[Manifest]:
    """Service, Deployment, PodDisruptionBudget and, where asked for, the autoscaler."""
    built = [service(serving), deployment(serving), disruption_budget(serving)]
    if serving.service.autoscaling is not None:
        built.append(autoscaler(serving))
    return built


def deployment(serving: Serving) -> Manifest:
    """The pods. They are live at once, and ready when the run's export is there."""
    settings = serving.service
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(serving, NOT_AWAITED),
        "spec": compact(
            {
                # The autoscaler owns the number of replicas where there is one.
                "replicas": None if settings.autoscaling else settings.replicas or 1,
                "progressDeadlineSeconds": settings.progress_deadline_seconds,
                "revisionHistoryLimit": 3,
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
                },
                "selector": {"matchLabels": serving.selector},
                "template": pod_template(_pod(serving)),
            }
        ),
    }


def service(serving: Serving) -> Manifest:
    """The stable address of the ready pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving, NOT_AWAITED),
        "spec": {
            "type": serving.service.service_type,
            "selector": serving.selector,
            "ports": [
                {
                    "name": "http",
                    "port": serving.service.port,
                    "targetPort": "http",
                    "protocol": "TCP",
                }
            ],
        },
    }


def disruption_budget(serving: Serving) -> Manifest:
    """How many pods may be missing while nodes are drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(serving),
        "spec": {
            "maxUnavailable": serving.service.max_unavailable,
            "selector": {"matchLabels": serving.selector},
        },
    }


def autoscaler(serving: Serving) -> Manifest:
    """Replicas by CPU use. Only for a service that has `autoscaling`."""
    scaling = serving.service.autoscaling
    if scaling is None:
        raise ValueError(f"service {serving.key!r} has no autoscaling")
    target = {"type": "Utilization", "averageUtilization": scaling.cpu_percent}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(serving, NOT_AWAITED),
        "spec": {
            "minReplicas": scaling.min,
            "maxReplicas": scaling.max,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": serving.key},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _metadata(serving: Serving, annotations: Mapping[str, str] | None = None) -> Manifest:
    return compact(
        {
            "name": serving.key,
            "namespace": serving.namespace,
            "labels": {**standard_labels("inference", serving.key), **serving.selector},
            "annotations": dict(annotations or {}),
        }
    )


def _pod(serving: Serving) -> Pod:
    settings = serving.service
    config = InferenceConfig.model_validate(
        {
            **settings.server,
            "model_name": serving.model,
            "model_path": f"{MODELS_PATH}/{serving.run}/export",
            "port": settings.port,
        }
    )
    nodes = serving.gpu_nodes
    return Pod(
        container="inference",
        image=serving.image,
        command=["python3", "-m", "inference"],
        cpu=settings.cpu,
        memory=settings.memory,
        shm=settings.shm,
        gpus=settings.gpus,
        gpu_nodes=GpuNodes(
            resource=settings.gpu_resource or nodes.resource,
            node_selector=nodes.node_selector,
            tolerations=nodes.tolerations,
            runtime_class=nodes.runtime_class,
        ),
        service_account=serving.service_account,
        grace_seconds=settings.grace_seconds,
        labels={**standard_labels("inference", serving.key), **serving.selector},
        env={"RUN_NAME": serving.run, **config.to_environment(), **settings.env},
        mounts=[
            Mount(
                name="models",
                claim=serving.claims[settings.checkpoints],
                path=MODELS_PATH,
                read_only=True,
            )
        ],
        ports={"http": settings.port},
        probes=_probes(settings.startup_seconds),
        node_selector=settings.node_selector,
        spread=even_spread(serving.selector, strict=False) if settings.spread else (),
        priority_class=settings.priority_class,
    )


def _probes(startup_seconds: int) -> dict[str, Manifest]:
    def probe(path: str, period: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": period,
            "timeoutSeconds": 2,
            "failureThreshold": failures,
        }

    startup_failures = math.ceil(startup_seconds / _STARTUP_PERIOD)
    return {
        "startupProbe": probe("/v2/health/live", _STARTUP_PERIOD, startup_failures),
        "livenessProbe": probe("/v2/health/live", 10, 3),
        "readinessProbe": probe("/v2/health/ready", 2, 3),
    }
