"""Runtimes: each server's command and settings, and rejected mistakes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.observability.alerts import server_groups
from infra.observability.scraping import monitor, scrape_config, workloads
from infra.serving.autoscaling import autoscaler
from infra.serving.runtimes import RUNTIMES, read
from infra.settings import validate
from infra.settings.amounts import update_surge
from tests.infra.examples import DIGEST, changed, good, problems
from tests.infra.observability.promtool import promtool
from tests.infra.serving.examples import (
    GATEWAY,
    canary_objects,
    container,
    environment,
    objects,
    pod,
    service_problems,
    serving,
)
from tests.policies.harness import evaluate_rule

REVISION = "a" * 40
HUB = {"hub": {"model": "meta/llama", "revision": REVISION, "cache": "checkpoints"}}
LLM = {"job": None, "runtime": "vllm", "source": HUB, "gpus": 2, "shm": "1Gi"}
TRITON = {"job": None, "runtime": "triton", "source": {"claim": {"name": "checkpoints"}}}
CUSTOM = {
    "job": None,
    "runtime": "custom",
    "source": {"image": True},
    "server": {"command": ["python3", "-m", "server", "--port", "$(PORT)"]},
}


def test_vllm_serves_a_hub_model_on_all_gpus_of_the_pod() -> None:
    found = container(serving(**LLM, server={"max_model_len": 4096}))
    assert found["command"][:3] == ["vllm", "serve", "meta/llama"]
    assert {
        "--served-model-name=digits",
        "--port=8080",
        "--tensor-parallel-size=2",
        f"--revision={REVISION}",
        "--shutdown-timeout=20",
        "--max-model-len=4096",
    } <= set(found["command"])
    assert environment(found)["HF_HOME"] == "/models"
    (mount,) = (each for each in found["volumeMounts"] if each["name"] == "models")
    assert "readOnly" not in mount


def test_vllm_serves_the_hugging_face_export_of_a_run() -> None:
    found = container(serving(job=None, run="digits-0123abcd", runtime="vllm"))
    assert found["command"][2] == "/models/digits-0123abcd/export/huggingface"


def test_vllm_uses_its_own_health_endpoint_and_shutdown_timeout() -> None:
    found = container(serving(**LLM))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert "takes up to 42 seconds" in service_problems({**LLM, "server": {"shutdown_timeout": 40}})


def test_arguments_become_flags_lists_and_json() -> None:
    server = {
        "enable_prefix_caching": True,
        "enforce_eager": False,
        "lora_modules": ["a=/a", "b=/b"],
        "speculative_config": {"model": "small"},
        "unchecked": ["--of-next-release"],
    }
    command = container(serving(**LLM, server=server))["command"]
    assert {"--enable-prefix-caching", "--no-enforce-eager", "--of-next-release"} <= set(command)
    first = command.index("--lora-modules")
    assert command[first + 1 : first + 3] == ["a=/a", "b=/b"]
    assert f"--speculative-config={json.dumps({'model': 'small'})}" in command


def test_triton_repeats_an_option_for_each_value() -> None:
    server = {"load_model": ["a", "b"], "strict_readiness": True}
    command = container(serving(**TRITON, server=server))["command"]
    assert command[:2] == ["tritonserver", "--model-repository=/models"]
    assert command[-3:] == ["--load-model=a", "--load-model=b", "--strict-readiness=true"]


def test_triton_reads_an_object_store_without_a_download() -> None:
    found = pod(objects(serving(job=None, runtime="triton", url="s3://models/all"))["Deployment"])
    assert "--model-repository=s3://models/all" in found["containers"][0]["command"]
    assert "initContainers" not in found


def test_mlserver_writes_only_to_its_temporary_directory() -> None:
    found = container(serving(runtime="mlserver", server={"implementation": "mine.Model"}))
    env = environment(found)
    assert found["command"] == ["mlserver", "start", "/models/digits-0123abcd/export"]
    assert env["MLSERVER_MODEL_IMPLEMENTATION"] == "mine.Model"
    assert env["MLSERVER_METRICS_DIR"].startswith("/tmp/")


def test_custom_server_gets_port_and_model_as_variables() -> None:
    found = container(serving(**CUSTOM))
    assert found["command"][-1] == "$(PORT)"
    env = environment(found)
    assert (env["PORT"], env["MODEL_NAME"]) == ("8080", "digits")


def test_an_artifact_is_mounted_by_its_digest() -> None:
    image = f"registry.example.com/models/llama@sha256:{DIGEST}"
    args = serving(**{**LLM, "source": {"artifact": image}})
    spec = pod(objects(args)["Deployment"])
    (volume,) = (each for each in spec["volumes"] if each["name"] == "export")
    assert volume["image"] == {"reference": image, "pullPolicy": "IfNotPresent"}
    assert spec["containers"][0]["command"][2] == "/models"


def test_artifact_is_downloaded_if_configured() -> None:
    artifact = f"registry.example.com/models/digits@sha256:{DIGEST}"
    found = serving(job=None, source={"artifact": artifact, "download": True})
    spec = pod(objects(found)["Deployment"])
    (fetch,) = spec["initContainers"]
    assert fetch["command"][2:] == ["inference.fetch", f"oci://{artifact}", "/models/export"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "export")
    assert "emptyDir" in volume
    assert environment(spec["containers"][0])["INFERENCE_MODEL_PATH"] == "/models/export"


@pytest.mark.parametrize(
    ("runtime", "source", "reason"),
    [
        ("torch", {"artifact": f"a.b/c:v1@sha256:{DIGEST}", "download": True}, "without a tag"),
        ("torch", {"claim": {"name": "checkpoints"}, "download": True}, "no artifact to download"),
        ("vllm", {"artifact": f"a.b/c@sha256:{DIGEST}", "download": True}, "use an image volume"),
    ],
)
def test_invalid_download_is_rejected(runtime: str, source: dict[str, Any], reason: str) -> None:
    values = changed(
        "inference.services.digits",
        {"cpu": 1, "memory": "2Gi"} | {"runtime": runtime, "source": source},
    )
    assert any(reason in problem for problem in problems(values))


ARTIFACT = f"registry.example.com/models/digits@sha256:{DIGEST}"
CACHED = {
    "job": None,
    "source": {"artifact": ARTIFACT, "download": True},
    "fetch": {"cache": {"claim": "datasets", "size": "1Gi"}},
}


def test_only_the_download_mounts_the_cache() -> None:
    spec = pod(objects(serving(**CACHED))["Deployment"])
    (fetch,), (server,) = spec["initContainers"], spec["containers"]
    assert fetch["command"][3:] == [
        f"oci://{ARTIFACT}",
        "/models/export",
        "--cache=/model-cache",
        f"--cache-bytes={2**30}",
    ]
    assert {"name": "model-cache", "mountPath": "/model-cache"} in fetch["volumeMounts"]
    assert "model-cache" not in {mount["name"] for mount in server["volumeMounts"]}
    (volume,) = (each for each in spec["volumes"] if each["name"] == "model-cache")
    assert volume == {"name": "model-cache", "persistentVolumeClaim": {"claimName": "data"}}


def test_cache_and_server_share_one_volume_for_the_same_claim() -> None:
    volumes = {"samples": {"claim": "datasets", "path": "/samples"}}
    spec = pod(objects(serving(**CACHED, volumes=volumes))["Deployment"])
    claims = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    assert [volume["name"] for volume in claims] == ["samples"]
    mounts = spec["initContainers"][0]["volumeMounts"]
    assert {"name": "samples", "mountPath": "/model-cache"} in mounts


@pytest.mark.parametrize(
    ("service", "claim", "reason"),
    [
        (
            {"replicas": 2},
            {"access_modes": ["ReadWriteOnce"]},
            "up to 2 pods mount it and may write to it: the claim needs ReadWriteMany.",
        ),
        ({}, {"size": "1Mi"}, "fetch.cache.size is 1Gi, more than the 1Mi of claim 'copies'"),
        (
            {"runtime": "triton", "url": "s3://models/all"},
            {},
            "sets fetch.cache with the triton runtime",
        ),
        ({"fetch": {"cache": {"claim": "none", "size": "1Gi"}}}, {}, "fetch.cache.claim is 'none'"),
    ],
)
def test_invalid_cache_is_rejected(
    service: dict[str, Any], claim: dict[str, Any], reason: str
) -> None:
    values = good()
    values["storage"]["claims"]["copies"] = {
        **values["storage"]["claims"]["datasets"],
        "size": "1Gi",
        **claim,
    }
    values["inference"]["services"]["digits"] = {
        "cpu": 1,
        "memory": "2Gi",
        "url": f"https://models.example.com/{DIGEST}",
        "fetch": {"cache": {"claim": "copies", "size": "1Gi"}},
        **service,
    }
    assert any(reason in problem for problem in problems(values)), problems(values)


CACHE_MOUNT = {"name": "model-cache", "mountPath": "/model-cache"}
MISUSES: dict[str, Callable[[dict[str, Any]], object]] = {
    "the server mounts the cache": lambda spec: spec["containers"][0]["volumeMounts"].append(
        CACHE_MOUNT
    ),
    "the cache is mounted as the model": lambda spec: spec["initContainers"][0][
        "volumeMounts"
    ].append({**CACHE_MOUNT, "mountPath": "/models"}),
    "another directory of the cache is mounted": lambda spec: spec["initContainers"][0][
        "volumeMounts"
    ][-1].update(subPath="other"),
    "the cache is attached as a block device": lambda spec: spec["containers"][0].update(
        volumeDevices=[{"name": "model-cache", "devicePath": "/models/export/model.safetensors"}]
    ),
}


@pytest.mark.parametrize("misuse", [None, *MISUSES])
def test_policies_accept_a_cache_only_for_downloads(misuse: str | None) -> None:
    found = objects(serving(**CACHED))["Deployment"]
    config = {"repositories": ["registry.example.com/models/*"], "images": ["image"]}
    if misuse is not None:
        MISUSES[misuse](pod(found))
    assert bool(evaluate_rule("model-signed", found, config=config)) is (misuse is not None)


@pytest.mark.parametrize("digest", [None, DIGEST])
@pytest.mark.parametrize("download", [True, False])
def test_policies_accept_pods_that_use_an_artifact(download: bool, digest: str | None) -> None:
    artifact = f"registry.example.com/models/digits@sha256:{DIGEST}"
    secret = {"secret": "registry", "key": "password"}
    found = serving(
        job=None,
        source={"artifact": artifact, "download": download},
        digest=digest,
        tls={"secret": "digits-tls"},
        **({"fetch": {"env_from": {"OCI_PASSWORD": secret}}} if download else {}),
    )
    image = pod(objects(found)["Deployment"])["containers"][0]["image"]
    config = {"repositories": ["registry.example.com/models/*"], "images": [image]}
    assert evaluate_rule("model-signed", objects(found)["Deployment"], config=config) == []
    assert evaluate_rule("model-signed", objects(serving())["Deployment"], config=config)


def test_canary_can_override_arguments_and_model() -> None:
    other_model = {"hub": {"model": "meta/other", "revision": "b" * 40}}
    canary = {"weight": 10, "source": other_model, "server": {"max_model_len": 8192}}
    args = serving(**LLM, route=GATEWAY, canary=canary, server={"seed": 1})
    spec = pod(canary_objects(args)["Deployment"])
    command = spec["containers"][0]["command"]
    assert command[2] == "meta/other"
    assert {"--seed=1", "--max-model-len=8192"} <= set(command)
    (volume,) = (each for each in spec["volumes"] if each["name"] == "export")
    assert volume["emptyDir"] == {"sizeLimit": "2Gi"}


def test_grpc_calls_are_split_by_the_canary_weight() -> None:
    route = {**GATEWAY, "hostnames": ["a.example.com"], "grpc_hostnames": ["g.example.com"]}
    canary = {"weight": 25, "server": {"log_verbose": 1}}
    args = serving(**TRITON, route=route, canary=canary)
    found = objects(args)
    (rule,) = found["GRPCRoute"]["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"name": "digits", "port": 8001, "weight": 75},
        {"name": "digits-canary", "port": 8001, "weight": 25},
    ]
    port = found["Service"]["spec"]["ports"][1]
    assert (port["name"], port["appProtocol"]) == ("grpc", "kubernetes.io/h2c")


def test_keda_queries_the_runtimes_request_metrics() -> None:
    keda = {"prometheus": "http://prometheus:9090"}
    args = serving(**LLM, autoscaling={"max": 4, "requests_in_flight": 2, "keda": keda})
    (trigger,) = autoscaler(args)["spec"]["triggers"]
    series = 'sum({__name__=~"vllm:num_requests_(running|waiting)",namespace="ml",'
    assert series in trigger["metadata"]["query"]


@pytest.mark.parametrize(
    ("rollout", "strategy"),
    [
        ({"surge": 0}, {"maxUnavailable": 1, "maxSurge": 0}),
        ({"surge": 2}, {"maxUnavailable": 0, "maxSurge": 2}),
        ({"recreate": True}, None),
    ],
)
def test_an_update_adds_as_many_pods_as_configured(
    rollout: dict[str, Any], strategy: dict[str, int] | None
) -> None:
    spec = objects(serving(rollout=rollout))["Deployment"]["spec"]["strategy"]
    assert spec.get("rollingUpdate") == strategy
    assert spec["type"] == ("Recreate" if strategy is None else "RollingUpdate")


def test_update_without_surge_fits_a_full_quota() -> None:
    service = good()["inference"]["services"]["digits"] | {"gpus": 32}
    problems_with_surge = problems(changed("inference.services.digits", service))
    assert "because it adds a pod before it removes one" in "\n".join(problems_with_surge)
    without_surge = changed("inference.services.digits", {**service, "rollout": {"surge": 0}})
    assert problems(without_surge) == []
    settings = validate(without_surge)
    assert set(update_surge(settings.inference, settings.gpu).values()) == {0}


MISTAKES = {
    "a misspelled argument": ({**LLM, "server": {"max_model_length": 1}}, "mean 'max_model_len'?"),
    "an option of another release": ({**TRITON, "server": {"x_y": 1}}, "such as --x-y"),
    "a flag with a value": ({**LLM, "server": {"enforce_eager": "yes"}}, "set true or false"),
    "an argument that the stack sets": (
        {**LLM, "server": {"port": 1}},
        "server.port, which the stack",
    ),
    "GPUs that are not used": ({**LLM, "server": {"tensor_parallel_size": 1}}, "= 1 GPUs"),
    "too little shared memory": ({**LLM, "shm": "64Mi"}, "set at least 1Gi"),
    "a run without a repository": ({"runtime": "triton"}, "supports only artifact, claim, url"),
    "a digest that is not checked": ({**LLM, "digest": "d" * 64}, "which does not check it"),
    "TLS that is not configured": ({**LLM, "tls": {"secret": "x"}}, "use a gateway instead"),
    "a port that is used twice": ({**TRITON, "port": 8001}, "set another port"),
    "a runtime without a gRPC API": (
        {**LLM, "route": {**GATEWAY, "hostnames": ["a.b"], "grpc_hostnames": ["c.d"]}},
        "has no gRPC API",
    ),
    "a gRPC hostname next to all HTTP hostnames": (
        {**TRITON, "route": {**GATEWAY, "grpc_hostnames": ["c.d"]}},
        "set hostnames",
    ),
    "a canary without the gRPC API of its route": (
        {
            **CUSTOM,
            "server": {**CUSTOM["server"], "grpc_port": 9001},
            "route": {**GATEWAY, "hostnames": ["a.b"], "grpc_hostnames": ["c.d"]},
            "canary": {"weight": 10, "server": {"grpc_port": None}},
        },
        "no gRPC API with the settings in `canary.server`",
    ),
    "a port that a canary uses twice": (
        {**CUSTOM, "route": GATEWAY, "canary": {"weight": 10, "server": {"metrics_port": 8080}}},
        "uses port 8080 twice in `canary.server`, but the HTTP, gRPC and metrics ports of the",
    ),
    "a service port that is also a canary's admin port": (
        {"port": 9000, "route": GATEWAY, "canary": {"weight": 10, "server": {"admin_port": 9000}}},
        "port and admin_port are both 9000",
    ),
    "autoscaling without a metric for requests": (
        {**CUSTOM, "autoscaling": {"max": 2, "requests_in_flight": 1}},
        "set server.requests_in_flight",
    ),
    "no command": ({**CUSTOM, "server": {}}, "server.command is missing"),
    "a model that vLLM cannot load": ({"runtime": "vllm"}, "digits-net. vLLM cannot load it"),
    "a store that Triton cannot read": (
        {"job": None, "runtime": "triton", "url": "https://example.com/models"},
        "only s3:// and gs://",
    ),
    "two sources": (
        {**LLM, "source": {**HUB, "image": True}},
        "exactly one of claim, hub, artifact and image",
    ),
    "a revision that is not a commit": (
        {**LLM, "source": {"hub": {"model": "a/b", "revision": "main"}}},
        "source.hub.revision",
    ),
    "an unknown claim": (
        {**TRITON, "source": {"claim": {"name": "nowhere"}}},
        "not declared under gpu-platform:storage.claims",
    ),
    "two rollout strategies": ({"rollout": {"surge": 0, "recreate": True}}, "keep one of them"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_rejected(mistake: str) -> None:
    service, sentence = MISTAKES[mistake]
    assert sentence in service_problems(service)


def test_prometheus_scrapes_a_separate_metrics_port() -> None:
    args = serving(**TRITON)
    metadata = objects(args)["Deployment"]["spec"]["template"]["metadata"]
    assert metadata["annotations"]["prometheus.io/port"] == "8002"
    unscraped = serving(**{**CUSTOM, "server": {**CUSTOM["server"], "metrics": None}})
    metadata = objects(unscraped)["Deployment"]["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {"prometheus.io/scrape": "false"}
    _, target = workloads("ml")
    rules = scrape_config(target, 15)["relabel_configs"]
    port_annotation = "__meta_kubernetes_pod_annotation_prometheus_io_port"
    assert {"source_labels", "target_label"} <= rules[-2].keys()
    assert port_annotation in rules[-2]["source_labels"]
    (endpoint,) = monitor(target, {}, 15)["spec"]["podMetricsEndpoints"]
    assert port_annotation in endpoint["relabelings"][-2]["sourceLabels"]


def test_runtime_metrics_are_recorded_under_the_names_used_by_alerts() -> None:
    values = changed("inference.services.llm", {**good_llm(), "route": GATEWAY})
    settings = validate(values)
    (group,) = server_groups(settings.inference.other_servers, 15)
    recorded = {rule["record"] for rule in group["rules"]}
    assert recorded == {
        "inference_queue_depth",
        "inference_requests_in_flight",
        "inference_requests_total",
        "inference_request_seconds_bucket",
        "inference_ready",
    }
    assert server_groups(validate(good()).inference.other_servers, 15) == []


def test_prometheus_accepts_the_recording_rules(tmp_path: Path) -> None:
    servers = {name: read(name, SERVERS.get(name, {})) for name in RUNTIMES}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": server_groups(servers, 15)}))
    command = [promtool(), "check", "rules", file]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


SERVERS = {"custom": {"command": ["serve"], "requests_in_flight": "ongoing"}}


def good_llm() -> dict[str, Any]:
    service_settings = good()["inference"]["services"]["digits"] | LLM
    return {name: value for name, value in service_settings.items() if value is not None}


def test_canary_with_conditions_compares_exports_before_it_starts() -> None:
    promote_if = {"accuracy": ">= incumbent - 0.002"}
    canary = {"weight": 10, "run": "digits-4567cdef", "promote_if": promote_if}
    args = serving(route=GATEWAY, canary=canary)
    (gate,) = pod(canary_objects(args)["Deployment"])["initContainers"]
    assert gate["command"][2:] == [
        "inference.promote",
        "/models/digits-4567cdef/export",
        "/models/digits-0123abcd/export",
        "accuracy >= incumbent - 0.002",
    ]
    assert {"name": "models", "mountPath": "/models"} in gate["volumeMounts"]
    assert "initContainers" not in pod(objects(args)["Deployment"])


def test_invalid_promotion_conditions_are_rejected() -> None:
    canary = {"weight": 10, "run": "digits-4567cdef", "promote_if": {"accuracy": "better"}}
    assert "must compare with a number" in service_problems({"route": GATEWAY, "canary": canary})
    canary = {"weight": 10, "server": {"workers": 2}, "promote_if": {"accuracy": ">= 0.9"}}
    assert "needs runtime torch, canary.run" in service_problems(
        {"route": GATEWAY, "canary": canary}
    )


def test_service_port_can_swap_with_the_default_admin_port() -> None:
    assert service_problems({"port": 9000, "server": {"admin_port": 8080}}) == ""


def test_ports_of_a_canary_are_reachable() -> None:
    server = {**CUSTOM["server"], "grpc_port": 9001, "metrics_port": 9002}
    canary = {"weight": 10, "server": {"grpc_port": 9101, "metrics_port": 9102}}
    service = {**CUSTOM, "server": server, "route": GATEWAY, "canary": canary}
    values = good()["inference"]["services"]["digits"] | service
    chosen = {name: value for name, value in values.items() if value is not None}
    settings = validate(changed("inference.services.digits", chosen))
    assert settings.inference.ports == (8080, 9001, 9002, 9101, 9102)
    assert settings.metrics_ports == (9002, 9102)


@pytest.mark.parametrize(
    ("series", "is_recorded"),
    [("inference_requests_in_flight", False), ("my_inference_requests_in_flight", True)],
)
def test_metric_is_not_recorded_under_its_own_name(series: str, is_recorded: bool) -> None:
    runtime = read("custom", {"command": ["serve"], "requests_in_flight": series})
    assert runtime.exports_in_flight is not is_recorded
    (recorded,) = server_groups({"digits": runtime}, 30)
    names = [rule["record"] for rule in recorded["rules"]]
    assert ("inference_requests_in_flight" in names) is is_recorded
