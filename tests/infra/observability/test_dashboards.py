"""Dashboards: the files for Grafana, and queries that return data."""

import json
import re
from pathlib import Path
from typing import Any

from infra.manifests import Manifest
from infra.observability.dashboards import config_maps, dashboards
from infra.settings.monitoring import MonitoringSettings
from tests.infra.observability.promtool import check, expression_test, promtool

SETTINGS = MonitoringSettings(prometheus="operator", gpu_prices={"NVIDIA-L4": 0.75})
VARIABLE_VALUES = {"$__range": "1h", "$namespace": "ml", "$run": "a", "$service": "digits"}
RUN = 'namespace="ml", pod="a-0", run="a"'
SERVICE = 'namespace="ml", pod="s-0", service="digits"'
POD = 'namespace="ml", pod="a-0"'
GPU = f'{POD}, gpu="0", Hostname="n"'

# One series for each external metric, labeled as its exporter labels it.
SERIES = {
    'kube_node_status_allocatable{node="n", resource="nvidia_com_gpu"}': "8x130",
    'kube_node_status_capacity{node="n", resource="nvidia_com_gpu"}': "8x130",
    'kube_node_labels{node="n", label_nvidia_com_gpu_product="NVIDIA-L4"}': "1x130",
    f'kube_pod_container_resource_requests{{{POD}, node="n", resource="nvidia_com_gpu"}}': "8x130",
    f'kube_pod_status_phase{{{POD}, phase="Running"}}': "1x130",
    f"kube_pod_created{{{POD}}}": "1x130",
    f"kube_pod_status_scheduled_time{{{POD}}}": "31x130",
    f'kube_pod_labels{{{POD}, label_gpu_platform_dev_run="a", '
    'label_volcano_sh_queue_name="vision"}': "1x130",
    **{
        f"DCGM_FI_DEV_{name}{{{GPU}}}": "1x130"
        for name in ("GPU_UTIL", "FB_USED", "FB_FREE", "POWER_USAGE")
    },
    f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "0x125 79x5",  # so that an alert fires
    'volcano_unschedule_task_count{job_id="b"}': "2x130",
    'volcano_e2e_job_scheduling_start_time{job_name="b", job_namespace="ml", queue="vision"}': (
        "60x130"
    ),
    **{
        f'volcano_queue_{name}{{queue_name="vision"}}': "1x130"
        for name in (
            "pod_group_running_count",
            "pod_group_pending_count",
            "pod_group_inqueue_count",
            "share",
        )
    },
    **{
        f"training_{name}{{{RUN}}}": "1+1x130"
        for name in (
            "step",
            "epoch",
            "accuracy",
            "loss",
            "held_out_loss",
            "gradient_norm",
            "learning_rate",
            "samples_per_second",
            "checkpoint_step",
            "shm_used_bytes",
            "shm_size_bytes",
            "info",
        )
    },
    f'training_step_seconds_bucket{{{RUN}, le="1"}}': "0+5x130",
    f'training_step_seconds_bucket{{{RUN}, le="+Inf"}}': "0+5x130",
    f'training_seconds_total{{{RUN}, activity="step"}}': "0+50x130",
    **{
        f"inference_{name}{{{SERVICE}}}": "1x130"
        for name in ("ready", "requests_in_flight", "queue_depth")
    },
    f"inference_samples_total{{{SERVICE}}}": "0+9x130",
    f'inference_model_info{{{SERVICE}, version="1"}}': "1x130",
    f'inference_requests_total{{{SERVICE}, code="200"}}': "0+9x130",
    f'inference_request_seconds_bucket{{{SERVICE}, le="1"}}': "0+9x130",
    f'inference_request_seconds_bucket{{{SERVICE}, le="+Inf"}}': "0+9x130",
}


def queries(name: str) -> list[str]:
    """Return the queries of a dashboard, with a value for each variable."""
    found = [
        query
        for panels in dashboards(SETTINGS)[name].rows.values()
        for panel in panels
        for query in panel.queries.values()
    ]
    return [re.sub(r"\$\w+", lambda match: VARIABLE_VALUES[match[0]], query) for query in found]


def test_every_dashboard_query_returns_data(tmp_path: Path) -> None:
    expressions = [query for name in dashboards(SETTINGS) for query in queries(name)]
    assert check(promtool(), tmp_path, has_data(*expressions), alerts=["GpuXidError"]) == ""


def test_alerts_of_other_applications_are_not_counted(tmp_path: Path) -> None:
    (count,) = [query for query in queries("cluster") if query.startswith("count(ALERTS")]
    alert = {'ALERTS{alertname="Watchdog", alertstate="firing"}': "1x10"}
    test = expression_test(alert, 5, count, {"labels": "{}", "value": 0})
    assert check(promtool(), tmp_path, test) == ""


def test_a_query_without_data_is_detected(tmp_path: Path) -> None:
    assert "no_such_series" in check(promtool(), tmp_path, has_data("no_such_series"))


def has_data(*expressions: str) -> dict[str, Any]:
    """Return a promtool test that requires each query to return data."""
    test = expression_test(SERIES, 128, "vector(1)", {"labels": "{}", "value": 1})
    test["promql_expr_test"] = [
        {
            "expr": f"count({query}) > bool 0 or vector(0)",
            "eval_time": "128m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in expressions
    ]
    return test


def dashboard_files() -> dict[str, dict[str, Any]]:
    def metadata(name: str) -> Manifest:
        return {"name": name, "labels": {"app.kubernetes.io/name": "monitoring"}}

    return {
        name: json.loads(text)
        for config_map in config_maps(SETTINGS, metadata)
        for name, text in config_map["data"].items()
    }


def test_config_maps_contain_a_file_for_every_dashboard() -> None:
    found = dashboard_files()
    assert set(found) == {f"gpu-platform-{name}.json" for name in dashboards(SETTINGS)}
    for name, dashboard in found.items():
        assert dashboard["uid"] == name.removesuffix(".json")
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        assert panels
        for panel in panels:
            assert {t["refId"] for t in panel["targets"]} == set("ABC"[: len(panel["targets"])])
            assert panel["datasource"]["uid"] == "${source}"


def test_variables_in_queries_are_defined_in_the_dashboard() -> None:
    for name, dashboard in dashboard_files().items():
        variables = set(re.findall(r"\$(?:\{(\w+)\}|(\w+))", json.dumps(dashboard["panels"])))
        names = {first or second for first, second in variables} - {"__range"}
        assert names <= {each["name"] for each in dashboard["templating"]["list"]}, name


def test_cost_dashboard_shows_only_gpu_hours_without_prices() -> None:
    free = MonitoringSettings(prometheus="operator")
    assert not any("cost" in title.lower() for title in dashboards(free)["cost"].rows)
