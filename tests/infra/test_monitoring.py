"""Configuration of Prometheus with and without its operator."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.manifests import Manifest
from infra.monitoring import MonitoringArgs, manifests, targets
from infra.settings.monitoring import MonitoringSettings
from tests.infra.observability.promtool import promtool
from tests.infra.test_pods import NODES


def built(**settings: Any) -> dict[str, Manifest]:
    """Return the objects by kind and name."""
    found = manifests(args(**settings))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def args(*, isolated: bool = True, **settings: Any) -> MonitoringArgs:
    return MonitoringArgs(
        monitoring=MonitoringSettings.model_validate(settings),
        namespace="ml",
        volcano_namespace="volcano-system",
        gpu_nodes=NODES,
        ports=(8080, 9090),
        isolated=isolated,
    )


def test_nothing_is_created_by_default() -> None:
    assert built() == {}


def test_operator_objects_have_the_labels_that_it_selects() -> None:
    found = built(prometheus="operator", labels={"release": "mine"})
    assert list(found) == [
        "Namespace/gpu-metrics",
        "ResourceQuota/critical-pods",
        "NetworkPolicy/dcgm-exporter",
        "DaemonSet/dcgm-exporter",
        "NetworkPolicy/allow-prometheus",
        "PodMonitor/training",
        "PodMonitor/inference",
        "ServiceMonitor/volcano",
        "ServiceMonitor/volcano-controllers",
        "PodMonitor/gpus",
        "PrometheusRule/gpu-platform",
    ]
    for name, each in found.items():
        if name.startswith(("PodMonitor", "ServiceMonitor", "PrometheusRule")):
            assert each["metadata"]["labels"]["release"] == "mine"


def test_training_series_are_labeled_with_run_and_queue() -> None:
    (endpoint,) = built(prometheus="operator")["PodMonitor/training"]["spec"]["podMetricsEndpoints"]
    named = [(each["targetLabel"], *each["sourceLabels"]) for each in endpoint["relabelings"]]
    assert named == [
        ("run", "__meta_kubernetes_pod_label_gpu_platform_dev_run"),
        ("queue", "__meta_kubernetes_pod_annotation_scheduling_volcano_sh_queue_name"),
        ("queue", "__meta_kubernetes_pod_label_volcano_sh_queue_name"),
    ]


def test_model_servers_with_tls_are_scraped_over_https(files: Path) -> None:
    label = "__meta_kubernetes_pod_annotation_prometheus_io_scheme"
    (endpoint,) = built(prometheus="operator")["PodMonitor/inference"]["spec"][
        "podMetricsEndpoints"
    ]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    expected = {"sourceLabels": [label], "targetLabel": "__scheme__", "regex": "(https)"}
    assert expected in endpoint["relabelings"]
    jobs = yaml.safe_load((files / "scrape.yaml").read_text())["scrape_configs"]
    (job,) = (job for job in jobs if job["job_name"] == "gpu-platform-inference")
    assert job["tls_config"] == {"insecure_skip_verify": True}
    expected = {"source_labels": [label], "target_label": "__scheme__", "regex": "(https)"}
    assert expected in job["relabel_configs"]


def test_gpu_series_are_never_labeled_with_the_exporter_pod() -> None:
    (endpoint,) = built(prometheus="operator")["PodMonitor/gpus"]["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    dropped = {"regex": "namespace|pod|container", "action": "labeldrop"}
    assert endpoint["relabelings"] == [dropped]
    files = built(prometheus="plain")["ConfigMap/gpu-platform-prometheus"]["data"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(files["scrape.yaml"])["scrape_configs"]}
    assert _scrape_labels(jobs["gpu-platform-gpus"]) == set()
    assert _scrape_labels(jobs["gpu-platform-training"]) >= {"namespace", "pod", "run"}


def _scrape_labels(job: dict[str, Any]) -> set[str]:
    """Return the labels that a scrape job sets on its targets."""
    return {each["target_label"] for each in job["relabel_configs"] if "target_label" in each}


def test_exporter_runs_on_gpu_nodes() -> None:
    pod = built(prometheus="operator")["DaemonSet/dcgm-exporter"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == NODES.node_selector
    assert pod["tolerations"] == list(NODES.tolerations)
    assert pod["runtimeClassName"] == "nvidia"
    (container,) = pod["containers"]
    (node,) = [each for each in container["env"] if each["name"] == "NODE_NAME"]
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_exporter_finds_driver_and_pods_on_gke() -> None:
    """Compare with examples/nvidia-dcgm/exporter.yaml in Google's prometheus-engine."""

    def exporter_settings(
        **exporter: bool,
    ) -> tuple[Manifest, dict[str, Any], dict[str, Any], dict[str, Any]]:
        daemon_set = built(prometheus="operator", dcgm_exporter=exporter)["DaemonSet/dcgm-exporter"]
        pod = daemon_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        return container["securityContext"], env, volumes, mounts

    security, env, volumes, mounts = exporter_settings(gke=True)
    # GKE has no container runtime that exposes GPUs to containers without GPU requests.
    assert security == {"runAsNonRoot": False, "runAsUser": 0, "privileged": True}
    assert volumes["driver"] == "/home/kubernetes/bin/nvidia"
    assert env["LD_LIBRARY_PATH"] == f"{mounts['driver']['mountPath']}/lib64"
    assert env["DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE"] == "device-name"
    assert all(mount["readOnly"] for mount in mounts.values())
    assert volumes.keys() == mounts.keys()
    default_security, default_env, *default_volumes = exporter_settings()
    assert default_security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in default_security
    assert not {"LD_LIBRARY_PATH", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE"} & default_env.keys()
    assert all(each.keys() == {"pod-resources"} for each in default_volumes)


def test_exporter_is_not_created_with_install_false() -> None:
    found = built(prometheus="operator", dcgm_exporter={"install": False})
    assert not any("gpus" in name or "dcgm" in name for name in found)


def test_an_isolated_network_admits_prometheus() -> None:
    policy = built(prometheus="plain", scraped_from=["watching"])["NetworkPolicy/allow-prometheus"]
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8080, 9090]
    (selector_expression,) = rule["from"][0]["namespaceSelector"]["matchExpressions"]
    assert selector_expression["values"] == ["watching"]
    assert manifests(args(isolated=False, prometheus="plain"))[-1]["kind"] == "ConfigMap"
    assert len(manifests(args(isolated=False, prometheus="plain"))) == 4


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with the files for a Prometheus without its operator."""
    for name, text in built(prometheus="plain")["ConfigMap/gpu-platform-prometheus"][
        "data"
    ].items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_promtool_accepts_the_files_of_a_plain_prometheus(files: Path) -> None:
    scraped = yaml.safe_load((files / "scrape.yaml").read_text())
    for job in scraped["scrape_configs"]:
        (discovery,) = job.pop("kubernetes_sd_configs")  # Debian's promtool does not support it
        assert discovery["namespaces"]["names"]
        job["static_configs"] = [{"targets": ["127.0.0.1:9"]}]
    # promtool before 2.43 cannot read `scrape_config_files`, so everything is in one file.
    (files / "prometheus.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], **scraped}))
    command = [str(promtool()), "check", "config", "prometheus.yml"]
    completed = subprocess.run(command, cwd=files, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_operator_and_scrape_file_have_the_same_targets(files: Path) -> None:
    jobs = yaml.safe_load((files / "scrape.yaml").read_text())["scrape_configs"]
    names = {job["job_name"].removeprefix("gpu-platform-") for job in jobs}
    assert names == {target.name for target in targets(args(prometheus="operator"))}


def test_exporter_of_the_gpu_operator_is_selected_by_its_labels() -> None:
    found = built(prometheus="operator", dcgm_exporter={"install": False, "existing": {}})
    spec = found["PodMonitor/gpus"]["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["gpu-operator"]}
    assert spec["selector"] == {"matchLabels": {"app": "nvidia-dcgm-exporter"}}
    assert spec["podMetricsEndpoints"][0]["honorLabels"] is True
    assert "DaemonSet/dcgm-exporter" not in found


@pytest.mark.parametrize(("exporter", "expected"), [({}, True), ({"install": False}, False)])
def test_alert_expects_gpu_series_only_with_an_exporter(
    exporter: dict[str, Any], expected: bool
) -> None:
    rules = built(prometheus="operator", dcgm_exporter=exporter)["PrometheusRule/gpu-platform"]
    groups = {group["name"]: group["rules"] for group in rules["spec"]["groups"]}
    (missing,) = groups["gpu-platform-monitoring"]
    assert ("DCGM_FI_DEV_GPU_UTIL" in missing["expr"]) is expected


@pytest.mark.parametrize("names", [("a", "b"), ()])
def test_only_prometheus_can_connect_to_an_isolated_exporter(names: tuple[str, ...]) -> None:
    found = built(prometheus="plain", scraped_from=names)
    spec = found["NetworkPolicy/dcgm-exporter"]["spec"]
    labels = found["DaemonSet/dcgm-exporter"]["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    assert "egress" not in spec
    if names:
        (rule,) = spec["ingress"]
        assert rule["ports"] == [{"port": 9400, "protocol": "TCP"}]
        (selector,) = rule["from"]
        (selector_expression,) = selector["namespaceSelector"]["matchExpressions"]
        assert selector_expression["values"] == ["a", "b"]
    else:
        assert "ingress" not in spec
        assert "NetworkPolicy/allow-prometheus" not in found
