from dataclasses import replace
from typing import Any

import pytest

from infra.inference_service import build_canary
from infra.pods import GpuNodes
from infra.serving.description import InferenceServiceArgs
from tests.infra.serving.examples import (
    CANARY,
    DIGEST,
    GATEWAY,
    canary_objects,
    container,
    environment,
    objects,
    pod,
    serving,
)
from tests.policies.harness import evaluate_rule


def test_service_consists_of_deployment_service_and_disruption_budget() -> None:
    assert set(objects(serving())) == {"Deployment", "Service", "PodDisruptionBudget"}


def test_selectors_of_all_objects_match_the_pods() -> None:
    found = objects(serving())
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels


def test_pulumi_does_not_wait_for_a_model_in_training() -> None:
    for kind in ("Deployment", "Service"):
        annotations = objects(serving())[kind]["metadata"]["annotations"]
        assert annotations == {"pulumi.com/skipAwait": "true"}


def test_probes_use_the_live_and_ready_endpoints() -> None:
    found = container(serving())
    assert found["startupProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "metrics"}
    assert found["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "metrics"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "metrics"}


def test_probe_paths_can_contain_braces() -> None:
    paths = {"live": "/live/{0}", "ready": "/ready/{}/{model}"}
    custom = {"runtime": "custom", "server": {"command": ["serve"], **paths}}
    found = container(serving(**custom))
    assert found["livenessProbe"]["httpGet"]["path"] == "/live/{0}"
    assert found["readinessProbe"]["httpGet"]["path"] == "/ready/{}/digits"


def test_startup_probe_allows_the_configured_time() -> None:
    probe = container(serving(startup_seconds=301))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 302


@pytest.mark.parametrize(
    ("changes", "deadline"),
    [
        ({}, 600),
        ({"startup_seconds": 1800}, 2255),
        ({"startup_seconds": 1800, "min_ready_seconds": 3600}, 5850),
        ({"startup_seconds": 1800, "progress_deadline_seconds": 90}, 90),
    ],
)
def test_default_progress_deadline_exceeds_the_startup_time(
    changes: dict[str, Any], deadline: int
) -> None:
    args = serving(route=GATEWAY, canary=CANARY, **changes)
    assert objects(args)["Deployment"]["spec"]["progressDeadlineSeconds"] == deadline
    for manifest in build_canary(args):
        annotations = manifest["metadata"]["annotations"]
        assert annotations["pulumi.com/timeoutSeconds"] == str(deadline)


@pytest.mark.parametrize(
    ("replicas", "changes", "deadline"),
    [
        (1, {}, 2255),
        (3, {}, 2255 + 2 * 1805),
        (3, {"rollout": {"surge": 0}}, 2255 + 2 * 1805),
        (3, {"rollout": {"surge": 2}}, 2255 + 1805),
        (3, {"rollout": {"recreate": True}}, 2255),
        (3, {"progress_deadline_seconds": 90}, 90),
    ],
)
def test_default_deadline_of_a_canary_suffices_to_replace_its_replicas_one_by_one(
    replicas: int, changes: dict[str, Any], deadline: int
) -> None:
    canary = {**CANARY, "replicas": replicas}
    args = serving(route=GATEWAY, canary=canary, startup_seconds=1800, **changes)
    deployment = build_canary(args)[0]
    assert deployment["metadata"]["annotations"]["pulumi.com/timeoutSeconds"] == str(deadline)


def test_server_gets_the_model_name_and_export_path() -> None:
    found = container(serving(server={"max_body_bytes": 4096}, digest=DIGEST))
    env = environment(found)
    assert env["INFERENCE_MODEL_NAME"] == "digits"
    assert env["INFERENCE_MODEL_PATH"] == "/models/digits-0123abcd/export"
    assert env["INFERENCE_MODEL_SHA256"] == DIGEST
    assert env["INFERENCE_PORT"] == "8080"
    assert env["INFERENCE_MAX_BODY_BYTES"] == "4096"
    mount = next(mount for mount in found["volumeMounts"] if mount["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}


def test_rolling_update_keeps_the_serving_capacity() -> None:
    spec = objects(serving())["Deployment"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["minReadySeconds"] == 5


def test_a_terminating_pod_pauses_before_sigterm_and_has_time_to_drain() -> None:
    spec = pod(objects(serving(pre_stop_seconds=4, grace_seconds=40))["Deployment"])
    assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 4}}}
    assert spec["terminationGracePeriodSeconds"] == 40


def test_pre_stop_hook_is_omitted_without_a_pause() -> None:
    assert "lifecycle" not in container(serving(pre_stop_seconds=0))


def test_replicas_are_fixed_without_an_autoscaler() -> None:
    assert objects(serving())["Deployment"]["spec"]["replicas"] == 1
    assert objects(serving(replicas=3))["Deployment"]["spec"]["replicas"] == 3


def test_service_tolerations_are_added_to_those_for_gpu_nodes() -> None:
    spot = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    nodes = GpuNodes(resource="nvidia.com/gpu", tolerations=[taint])
    tolerated = {"tolerations": [{"key": "spot"}], "canary": CANARY, "route": GATEWAY}

    def tolerations(**changed: Any) -> list[Any]:
        args = replace(serving(**changed), gpu_nodes=nodes)
        found = [objects(args)["Deployment"]]
        if "canary" in changed:
            found.append(canary_objects(args)["Deployment"])
        return [pod(each).get("tolerations") for each in found]

    assert tolerations(gpus=1, **tolerated) == [[taint, spot], [taint, spot]]
    assert tolerations(gpus=0, **tolerated) == [[spot], [spot]]
    assert tolerations(gpus=0) == [None]


def test_gpus_are_requested_only_if_configured() -> None:
    assert "nvidia.com/gpu" not in container(serving())["resources"]["limits"]
    assert container(serving(gpus=1))["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_ephemeral_storage_is_limited_only_if_configured() -> None:
    assert "ephemeral-storage" not in container(serving())["resources"]["limits"]
    resources = container(serving(ephemeral_storage="20Gi"))["resources"]
    assert resources["requests"]["ephemeral-storage"] == "20Gi"


def test_url_contains_service_namespace_and_port() -> None:
    assert serving().url == "http://digits.ml.svc.cluster.local:8080"


def test_pods_prefer_different_nodes() -> None:
    spec = pod(objects(serving())["Deployment"])
    assert spec["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "ScheduleAnyway"


def test_tls_certificate_is_mounted_and_probes_use_https() -> None:
    args = serving(tls={"secret": "digits-tls"})
    spec = pod(objects(args)["Deployment"])
    source = _volume(spec, "tls")["secret"]
    assert source == {"secretName": "digits-tls", "defaultMode": 0o440}
    env = environment(spec["containers"][0])
    assert env["INFERENCE_TLS_CERTIFICATE"] == "/secrets/tls/tls.crt"
    assert env["INFERENCE_TLS_KEY"] == "/secrets/tls/tls.key"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert spec["containers"][0][probe]["httpGet"]["scheme"] == "HTTPS"
    assert args.url.startswith("https://")


def test_pods_with_tls_are_annotated_with_the_https_scheme() -> None:
    def scheme_annotation(args: InferenceServiceArgs) -> Any:
        metadata = objects(args)["Deployment"]["spec"]["template"]["metadata"]
        return metadata.get("annotations", {}).get("prometheus.io/scheme")

    assert scheme_annotation(serving(tls={"secret": "digits-tls"})) == "https"
    assert scheme_annotation(serving()) is None


def test_api_keys_are_mounted_from_a_secret() -> None:
    spec = pod(objects(serving(api_keys={"secret": "callers", "key": "list"}))["Deployment"])
    assert _volume(spec, "api-keys")["secret"]["secretName"] == "callers"
    env = environment(spec["containers"][0])
    assert env["INFERENCE_API_KEYS_FILE"] == "/secrets/api-keys/list"


def test_a_custom_handler_is_mounted_and_its_secrets_are_references() -> None:
    args = serving(
        volumes={"handlers": {"path": "/handlers", "config_map": "handlers"}},
        env={"PYTHONPATH": "/handlers"},
        env_from={"TOKEN": {"secret": "hub", "key": "token"}},
        server={"handler": "mine:Handler"},
    )
    spec = pod(objects(args)["Deployment"])
    assert _volume(spec, "handlers")["configMap"] == {"name": "handlers"}
    env = environment(spec["containers"][0])
    assert env["TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["INFERENCE_HANDLER"] == "mine:Handler"


def _volume(spec: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (volume for volume in spec["volumes"] if volume["name"] == name)
    return dict(found)


URL = "s3://models/digits-1a2b3c4d/export"


def test_an_export_at_a_url_is_downloaded_before_the_server_starts() -> None:
    spec = pod(objects(serving(job=None, url=URL, digest=DIGEST))["Deployment"])
    (fetch,) = spec["initContainers"]
    assert fetch["image"] == spec["containers"][0]["image"]
    assert fetch["command"] == [
        "python3",
        "-m",
        "inference.fetch",
        URL,
        "/models/export",
        f"--sha256={DIGEST}",
    ]
    env = environment(spec["containers"][0])
    assert env["INFERENCE_MODEL_PATH"] == "/models/export"
    assert env["INFERENCE_MODEL_SHA256"] == DIGEST
    assert "RUN_NAME" not in env


def test_server_mounts_the_downloaded_export_read_only() -> None:
    spec = pod(objects(serving(job=None, url=URL, fetch={"size": "4Gi"}))["Deployment"])
    (volume,) = (each for each in spec["volumes"] if each["name"] == "export")
    assert volume == {"name": "export", "emptyDir": {"sizeLimit": "4Gi"}}
    written, read = (
        next(mount for mount in each["volumeMounts"] if mount["name"] == "export")
        for each in (spec["initContainers"][0], spec["containers"][0])
    )
    assert written == {"name": "export", "mountPath": "/models"}
    assert read == {"name": "export", "mountPath": "/models", "readOnly": True}


def test_only_the_download_container_has_the_object_store_keys() -> None:
    secret = {"secret": "store", "key": "access-key"}
    fetch = {"env": {"AWS_REGION": "eu-west-1"}, "env_from": {"AWS_ACCESS_KEY_ID": secret}}
    spec = pod(objects(serving(job=None, url=URL, fetch=fetch))["Deployment"])
    env = environment(spec["initContainers"][0])
    assert env["AWS_REGION"] == "eu-west-1"
    assert env["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "store", "key": "access-key"}}
    assert "AWS_ACCESS_KEY_ID" not in environment(spec["containers"][0])


def test_export_of_a_stacks_run_is_read_from_its_claim() -> None:
    spec = pod(objects(serving())["Deployment"])
    assert "initContainers" not in spec
    (volume,) = (each for each in spec["volumes"] if each["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "ckpt", "readOnly": True}


def test_download_fetches_the_artifact_for_the_backend() -> None:
    (fetch,) = pod(objects(serving(job=None, url=URL, server={"backend": "int8"}))["Deployment"])[
        "initContainers"
    ]
    assert fetch["command"][-1] == "--artifact=int8"


def test_threads_are_the_cpu_request_divided_by_the_workers() -> None:
    for cpu, server, threads in (
        ("500m", {}, "1"),
        ("1500m", {}, "2"),
        ("8", {"workers": 3}, "2"),
        ("1", {"workers": 2}, "1"),
        ("8", {"threads": 5}, "5"),
    ):
        env = environment(container(serving(cpu=cpu, server=server)))
        assert env["INFERENCE_THREADS"] == threads, (cpu, server)


def test_single_replica_does_not_block_draining_its_node() -> None:
    budget = objects(serving(replicas=1))["PodDisruptionBudget"]["spec"]
    # With minAvailable 1 or maxUnavailable 0, a drain would never finish.
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


@pytest.mark.parametrize(("replicas", "limit"), [(2, 1), (3, 2), (8, 3)])
def test_drained_nodes_leave_a_replica_of_the_canary(replicas: int, limit: int) -> None:
    canary = {**CANARY, "replicas": replicas}
    args = serving(replicas=4, max_unavailable=3, route=GATEWAY, canary=canary)
    budget = canary_objects(args)["PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == limit
    assert evaluate_rule("inference-disruption-budget", *build_canary(args)) == []
