"""Served models: load, latency, errors, batches."""

from infra.observability.dashboards.page import Page, Panel, Variable
from infra.settings.monitoring import MonitoringSettings

_SERVICE = '{namespace=~"$namespace", service=~"$service"}'


def page(settings: MonitoringSettings) -> Page:
    """The page."""
    del settings
    by_code = f"sum by (service, code) (rate(inference_requests_total{_SERVICE}[5m]))"
    return Page(
        "Inference",
        {
            "Load": [
                Panel("Requests", {"{{service}} {{code}}": by_code}, "reqps", "stack"),
                Panel(
                    "Latency",
                    {f"{{{{service}}}} {share}": _quantile(share) for share in (0.5, 0.95, 0.99)},
                    "s",
                ),
            ],
            "Servers": [
                Panel("Ready", {"{{service}}": f"sum by (service) (inference_ready{_SERVICE})"}),
                Panel(
                    "In flight",
                    {"{{service}}": f"sum by (service) (inference_requests_in_flight{_SERVICE})"},
                ),
                Panel(
                    "Waiting",
                    {"{{service}}": f"sum by (service) (inference_queue_depth{_SERVICE})"},
                ),
                Panel(
                    "Samples",
                    {
                        "{{service}}": "sum by (service) "
                        f"(rate(inference_samples_total{_SERVICE}[5m]))"
                    },
                    "reqps",
                ),
            ],
            "Versions": [
                Panel(
                    "Servers by version of the model",
                    {
                        "{{service}} {{version}}": "count by (service, version) "
                        f"(inference_model_info{_SERVICE})"
                    },
                    shape="stack",
                ),
            ],
        },
        [
            Variable("namespace", "label_values(inference_ready, namespace)"),
            Variable("service", 'label_values(inference_ready{namespace=~"$namespace"}, service)'),
        ],
    )


def _quantile(share: float) -> str:
    buckets = f"sum by (service, le) (rate(inference_request_seconds_bucket{_SERVICE}[5m]))"
    return f"histogram_quantile({share}, {buckets})"
