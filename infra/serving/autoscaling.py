"""Autoscaling: a HorizontalPodAutoscaler or KEDA's ScaledObject."""

from typing import Final

from infra.manifests import NOT_AWAITED, Manifest
from infra.serving.description import InferenceServiceArgs, metadata
from infra.serving.runtimes.runtime import IN_FLIGHT
from infra.settings.inference.scaling import AutoscalingSettings, KedaSettings
from kube.names import KEDA_GROUP

LAST_MINUTE: Final = "[1m:5s]"
"""Subquery for averages over one minute. With instantaneous values, the number of replicas would
drop at every short pause between requests."""


def autoscaler(args: InferenceServiceArgs) -> Manifest:
    """Return the autoscaler; raise ValueError if the service has no autoscaling."""
    scaling = args.service.autoscaling
    if scaling is None:
        raise ValueError(f"service {args.key!r} has no autoscaling")
    if scaling.keda is not None:
        return _scaled_object(args, scaling, scaling.keda)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(args, args.stable, NOT_AWAITED),
        "spec": {
            "minReplicas": scaling.min,
            "maxReplicas": scaling.max,
            "scaleTargetRef": _target(args),
            "metrics": _metrics(scaling),
        },
    }


def _target(args: InferenceServiceArgs) -> Manifest:
    return {**args.stable.workload, "name": args.stable.name}


def _metrics(scaling: AutoscalingSettings) -> list[Manifest]:
    """Return the metrics. The autoscaler follows the metric that requires the most replicas."""
    metrics: list[Manifest] = []
    if scaling.cpu_target is not None:
        target = {"type": "Utilization", "averageUtilization": scaling.cpu_target}
        metrics.append({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    if scaling.requests_in_flight is not None:
        target = {"type": "AverageValue", "averageValue": str(scaling.requests_in_flight)}
        # The `torch` runtime exports this series. Recording rules create it for the other runtimes.
        metrics.append({"type": "Pods", "pods": {"metric": {"name": IN_FLIGHT}, "target": target}})
    return metrics


def _scaled_object(
    args: InferenceServiceArgs, scaling: AutoscalingSettings, keda: KedaSettings
) -> Manifest:
    return {
        "apiVersion": f"{KEDA_GROUP}/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(args, args.stable),
        "spec": {
            "scaleTargetRef": _target(args),
            "minReplicaCount": scaling.min,
            "maxReplicaCount": scaling.max,
            "cooldownPeriod": keda.cooldown_seconds,
            "triggers": _triggers(args, scaling, keda),
        },
    }


def _triggers(
    args: InferenceServiceArgs, scaling: AutoscalingSettings, keda: KedaSettings
) -> list[Manifest]:
    """Return the triggers. KEDA requires strings as values."""
    runtime = args.stable.runtime
    # The name of a pod consists of the Deployment's name and two more parts. The last part has five
    # characters. Names of canary pods do not match, because they have an additional part. The name
    # of a leader pod is the LeaderWorkerSet's name and a number.
    pods = f"{args.stable.name}-{'[0-9]+' if runtime.nodes > 1 else '[a-z0-9]+-[a-z0-9]{5}'}"
    in_flight = runtime.in_flight(f'namespace="{args.namespace}",pod=~"{pods}"')
    # Average the sum, instead of adding up averages, so that pods count only until they terminate.
    average = f"avg_over_time(sum({in_flight}){LAST_MINUTE})"
    triggers = [_prometheus(keda, average, str(scaling.requests_in_flight))]
    if keda.activation_query is not None:
        # This query starts the first pod. Requests in flight then determine the number of pods.
        triggers.append(_prometheus(keda, f"({keda.activation_query}) > bool 0", "1"))
    if scaling.cpu_target is not None:
        cpu_metadata = {"value": str(scaling.cpu_target)}
        triggers.append({"type": "cpu", "metricType": "Utilization", "metadata": cpu_metadata})
    return triggers


def _prometheus(keda: KedaSettings, query: str, threshold: str) -> Manifest:
    return {
        "type": "prometheus",
        "metadata": {"serverAddress": keda.prometheus, "query": query, "threshold": threshold},
    }
