from typing import Any

import pytest

from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.serving import Serving, autoscaler, build
from tests.infra.examples import settings

SERVICE = "inference.services.digits"


def serving(path: str | None = None, value: Any = None) -> Serving:
    return Serving(
        key="digits",
        service=settings(path, value).inference.services["digits"],
        run="digits-0123abcd",
        namespace="ml",
        image="image",
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        claims={"checkpoints": "ckpt"},
    )


def objects(described: Serving) -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for manifest in build(described)}


def container(described: Serving) -> Manifest:
    spec = objects(described)["Deployment"]["spec"]["template"]["spec"]
    found: Manifest = spec["containers"][0]
    return found


def test_a_service_is_a_deployment_an_address_and_a_budget() -> None:
    assert set(objects(serving())) == {"Deployment", "Service", "PodDisruptionBudget"}


def test_the_selectors_of_all_objects_find_the_pods() -> None:
    found = objects(serving())
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels


def test_pulumi_does_not_wait_for_a_model_that_is_still_trained() -> None:
    for kind in ("Deployment", "Service"):
        annotations = objects(serving())[kind]["metadata"]["annotations"]
        assert annotations == {"pulumi.com/skipAwait": "true"}


def test_the_server_is_live_at_once_and_ready_with_the_export() -> None:
    found = container(serving())
    assert found["startupProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    assert found["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}


def test_the_startup_probe_waits_as_long_as_configured() -> None:
    probe = container(serving(f"{SERVICE}.startup_seconds", 301))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 302


def test_the_server_is_told_the_model_and_the_place_of_the_export() -> None:
    found = container(serving(f"{SERVICE}.server", {"max_body_bytes": 4096}))
    env = {variable["name"]: variable["value"] for variable in found["env"]}
    assert env["INFERENCE_MODEL_NAME"] == "digits"
    assert env["INFERENCE_MODEL_PATH"] == "/models/digits-0123abcd/export"
    assert env["INFERENCE_PORT"] == "8080"
    assert env["INFERENCE_MAX_BODY_BYTES"] == "4096"
    mount = next(mount for mount in found["volumeMounts"] if mount["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_an_update_takes_no_capacity_away() -> None:
    strategy = objects(serving())["Deployment"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_without_an_autoscaler_the_replicas_are_fixed() -> None:
    assert objects(serving())["Deployment"]["spec"]["replicas"] == 1
    many = serving(f"{SERVICE}.replicas", 3)
    assert objects(many)["Deployment"]["spec"]["replicas"] == 3


def test_an_autoscaler_owns_the_number_of_replicas() -> None:
    found = objects(serving(f"{SERVICE}.autoscaling", {"min": 2, "max": 5, "cpu_percent": 60}))
    assert "replicas" not in found["Deployment"]["spec"]
    spec = found["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert spec["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 60


def test_a_service_without_autoscaling_has_no_autoscaler() -> None:
    with pytest.raises(ValueError, match="'digits' has no autoscaling"):
        autoscaler(serving())


def test_gpus_are_asked_for_only_where_they_are_wanted() -> None:
    assert "nvidia.com/gpu" not in container(serving())["resources"]["limits"]
    limits = container(serving(f"{SERVICE}.gpus", 1))["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"


def test_the_address_names_service_namespace_and_port() -> None:
    assert serving().url == "http://digits.ml.svc.cluster.local:8080"


def test_pods_prefer_different_nodes() -> None:
    spec = objects(serving())["Deployment"]["spec"]["template"]["spec"]
    assert spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"
