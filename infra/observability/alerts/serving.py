"""Model servers that are slow, fail, refuse, or disagree."""

from infra.observability.rule import NOT_ENDED, Alert
from infra.settings.monitoring import Thresholds

_SERVICE = "{{ $labels.namespace }}/{{ $labels.service }}"
_BY = "by (namespace, service)"
_PODS = (
    'label_replace(kube_pod_labels{label_gpu_platform_dev_service!=""}, '
    '"service", "$1", "label_gpu_platform_dev_service", "(.*)")'
)


def alerts(limits: Thresholds) -> list[Alert]:
    """The alerts."""
    return [
        Alert(
            name="InferenceSlow",
            expr="histogram_quantile(0.99, sum by (namespace, service, le) "
            "(rate(inference_request_seconds_bucket[5m]))) "
            f"> {limits.latency_seconds:g}",
            minutes=limits.serving_minutes,
            severity="warning",
            summary=f"1 of 100 requests to {_SERVICE} takes longer than "
            f"{limits.latency_seconds:g} s",
            does="See where the time goes (queue or model), then add replicas or a larger batch.",
        ),
        Alert(
            name="InferenceErrors",
            expr=f'sum {_BY} (rate(inference_requests_total{{code=~"5.."}}[5m])) '
            f"/ sum {_BY} (rate(inference_requests_total[5m])) > {limits.error_share:g}",
            minutes=limits.serving_minutes,
            severity="critical",
            summary=f"{{{{ $value | humanizePercentage }}}} of requests to {_SERVICE} fail",
            does="Read the servers' logs: workers that die, or a model that does not load.",
        ),
        Alert(
            name="InferenceQueueFull",
            expr=f'sum {_BY} (rate(inference_requests_total{{code="429"}}[5m])) '
            f"/ sum {_BY} (rate(inference_requests_total[5m])) > {limits.refused_share:g}",
            minutes=limits.serving_minutes,
            severity="warning",
            summary=f"{_SERVICE} refuses {{{{ $value | humanizePercentage }}}} of its requests",
            does="It has more to do than it can: add replicas, or let the autoscaler.",
        ),
        Alert(
            name="InferenceNotReady",
            # Pods that cannot start tell nothing; a service of no pods is scaled to zero.
            expr=f"(count {_BY} ({_PODS} * {NOT_ENDED}) or count {_BY} (inference_ready)) "
            f"unless on (namespace, service) max {_BY} (inference_ready == 1)",
            minutes=limits.serving_minutes,
            severity="critical",
            summary=f"No server of {_SERVICE} is ready",
            does="Its /v2/health/ready says why; where nothing answers, kubectl describe pod does.",
        ),
        Alert(
            name="AutoscalerAtMaximum",
            expr="kube_horizontalpodautoscaler_status_current_replicas "
            ">= on (namespace, horizontalpodautoscaler) "
            "kube_horizontalpodautoscaler_spec_max_replicas",
            minutes=limits.scaled_out_minutes,
            severity="info",
            summary="{{ $labels.namespace }}/{{ $labels.horizontalpodautoscaler }} cannot grow "
            "any further",
            does="Raise autoscaling.max where the queue has room.",
        ),
        Alert(
            name="ModelVersionMismatch",
            # A canary is a service of its own here.
            expr=f"count {_BY} (count by (namespace, service, version) (inference_model_info)) > 1",
            minutes=limits.rollout_minutes,
            severity="warning",
            summary=f"Servers of {_SERVICE} answer with different versions of the model",
            does="Restart those that stayed behind: kubectl rollout restart deployment.",
        ),
    ]
