"""Model servers that are slow, fail, refuse, or disagree."""

from infra.observability.rule import Alert
from infra.settings.monitoring import Thresholds

_SERVICE = "{{ $labels.namespace }}/{{ $labels.service }}"
_BY = "by (namespace, service)"


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
            expr=f"max {_BY} (inference_ready) == 0",
            minutes=limits.serving_minutes,
            severity="critical",
            summary=f"No server of {_SERVICE} is ready",
            does="Its /v2/health/ready says why.",
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
            expr=f"count {_BY} (count by (namespace, service, version) "
            '(inference_model_info{track!="canary"})) > 1',
            minutes=limits.rollout_minutes,
            severity="warning",
            summary=f"Servers of {_SERVICE} answer with different versions of the model",
            does="Restart those that stayed behind: kubectl rollout restart deployment.",
        ),
    ]
