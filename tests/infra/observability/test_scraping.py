"""The chart with Prometheus and Grafana: its values, and rejected settings."""

import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from devcluster.paths import CHECKOUT
from infra.observability.scraping import chart_values
from infra.settings.monitoring import MonitoringSettings
from tests.infra.conftest import Provision
from tests.infra.examples import changed

RELEASE = "kubernetes:helm.sh/v3:Release"
INSTALLED = {
    "prometheus": "operator",
    "grafana": {"dashboards": True},
    "kube_prometheus_stack": {"install": True},
}


def values(**settings: Any) -> dict[str, Any]:
    parsed = MonitoringSettings.model_validate({**INSTALLED, **settings})
    return chart_values(parsed.kube_prometheus_stack, parsed.grafana)


def test_kube_state_metrics_exports_the_documented_labels() -> None:
    flags = values()["kube-state-metrics"]
    page = (CHECKOUT / "docs" / "monitoring.md").read_text()
    allowlists = dict(
        re.findall(r"^--metric-(labels|annotations)-allowlist=(\S+)$", page, re.MULTILINE)
    )
    assert ",".join(flags["metricLabelsAllowlist"]) == allowlists["labels"]
    assert ",".join(flags["metricAnnotationsAllowList"]) == allowlists["annotations"]


def test_grafana_sidecar_selects_dashboards_by_label() -> None:
    found = values(grafana={"dashboards": True, "labels": {"boards": "yes"}})
    sidecar = found["grafana"]["sidecar"]["dashboards"]
    assert (sidecar["label"], sidecar["labelValue"]) == ("boards", "yes")
    assert sidecar["searchNamespace"] == "ALL"
    assert values(grafana={})["grafana"] == {}


def test_custom_chart_values_override_the_stacks_values() -> None:
    custom_values = {
        "kube-state-metrics": {"replicas": 2, "metricLabelsAllowlist": ["pods=[*]"]},
        "alertmanager": {"enabled": False},
    }
    found = values(kube_prometheus_stack={"install": True, "values": custom_values})
    assert found["alertmanager"] == {"enabled": False}
    assert found["kube-state-metrics"]["metricLabelsAllowlist"] == ["pods=[*]"]
    assert found["kube-state-metrics"]["replicas"] == 2
    assert found["kube-state-metrics"]["metricAnnotationsAllowList"]


def test_chart_can_upgrade_its_custom_resource_definitions(provision: Provision) -> None:
    (text,) = re.findall(
        r"`values: (\{crds: .*\})`", (CHECKOUT / "docs" / "monitoring.md").read_text()
    )
    # Keys in kube-prometheus-stack's values.yaml; Helm itself never updates CRDs.
    upgrade = {"crds": {"upgradeJob": {"enabled": True, "forceConflicts": True}}}
    assert yaml.safe_load(text) == upgrade
    chart = {"install": True, "values": upgrade}
    plan = provision(changed("monitoring", {**INSTALLED, "kube_prometheus_stack": chart}))
    found = plan.inputs("monitoring-release")
    assert found["values"]["crds"] == upgrade["crds"]
    assert not found.get("skipCrds")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prometheus": "plain"}, "prometheus is plain: set prometheus to operator"),
        ({"labels": {"team": "ml"}}, "add release: kube-prometheus-stack to labels"),
        ({"scraped_from": ["watching"]}, "the chart's namespace monitoring: add it"),
        (
            {"grafana": {"dashboards": True, "labels": {"a": "1", "b": "2"}}},
            "grafana.labels has 2 labels, and",
        ),
        ({"kube_prometheus_stack": {"install": True, "version": "latest"}}, "exact version"),
    ],
)
def test_settings_that_do_not_fit_the_chart_are_rejected(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        MonitoringSettings.model_validate({**INSTALLED, **settings})


def test_release_is_created_before_the_objects_that_its_operator_reads(
    provision: Provision,
) -> None:
    plan = provision(changed("monitoring", INSTALLED))
    found = plan.inputs("monitoring-release")
    assert found["chart"] == "kube-prometheus-stack"
    assert found["version"] == "88.5.3"
    assert found["repositoryOpts"] == {"repo": "https://prometheus-community.github.io/helm-charts"}
    assert "monitoring-namespace" in plan.dependencies("monitoring-release")
    for name in ("monitoring-podmonitor-training", "monitoring-prometheusrule-gpu-platform"):
        assert "monitoring-release" in plan.dependencies(name)
        assert plan.inputs(name)["metadata"]["labels"]["release"] == found["name"]


def test_the_chart_is_not_installed_by_default(provision: Provision) -> None:
    plan = provision(changed("monitoring", {"prometheus": "operator"}))
    assert "monitoring-release" not in plan.names(RELEASE)


def test_metrics_of_the_model_server_are_scraped_at_its_admin_port(provision: Provision) -> None:
    plan = provision(changed("monitoring", {"prometheus": "operator"}))
    pods = plan.inputs("inference-digits-deployment")["spec"]["template"]["metadata"]
    assert pods["annotations"]["prometheus.io/port"] == "8081"
    (endpoint,) = plan.inputs("monitoring-podmonitor-inference")["spec"]["podMetricsEndpoints"]
    port_annotation = "__meta_kubernetes_pod_annotation_prometheus_io_port"
    assert any(port_annotation in rule["sourceLabels"] for rule in endpoint["relabelings"])
