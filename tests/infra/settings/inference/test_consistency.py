"""Consistency checks for the settings of an inference service."""

from typing import Any

import pytest

from inference.metrics import SECONDS
from tests.infra.serving.examples import environment, objects, pod, service_problems, serving


@pytest.mark.parametrize("name", ["Digits", "team/digits", "d" * 64])
def test_model_name_that_the_model_server_rejects_is_reported(name: str) -> None:
    assert f"model is {name!r}" in service_problems({"model": name})


def test_custom_servers_accept_any_model_name() -> None:
    server = {"command": ["serve"]}
    custom = {"job": None, "runtime": "custom", "source": {"image": True}, "server": server}
    args = serving(**custom, model="team/Digits")
    (container,) = pod(objects(args)["Deployment"])["containers"]
    assert environment(container)["MODEL_NAME"] == "team/Digits"


HUB = {"hub": {"model": "meta/llama", "revision": "a" * 40, "cache": "checkpoints"}}


@pytest.mark.parametrize(
    "model", [{"runtime": "vllm", "source": HUB}, {"runtime": "triton", "url": "s3://models/all"}]
)
@pytest.mark.parametrize(
    ("key", "variables"),
    [
        ("env", {"AWS_REGION": "eu-west-1"}),
        ("env_from", {"HF_TOKEN": {"secret": "hugging-face", "key": "token"}}),
    ],
)
def test_download_variables_without_a_download_are_rejected(
    model: dict[str, Any], key: str, variables: dict[str, Any]
) -> None:
    found = service_problems({"job": None, **model, "fetch": {key: variables}})
    assert f"sets fetch.{key} with the {model['runtime']} runtime" in found
    assert f"set {key} instead" in found
    assert service_problems({"job": None, **model, key: variables}) == ""


SETTINGS: dict[str, Any] = {"digest": "a" * 64, "api_keys": {"secret": "keys"}}


@pytest.mark.parametrize("name", ["env", "env_from"])
@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("PORT", "port"),
        ("MODEL_SHA256", "digest"),
        ("MODEL_NAME", "model"),
        ("MODEL_PATH", "job`, `sweep`, `run`, `url` or `source"),
        ("TLS_KEY", "tls"),
        ("API_KEYS_FILE", "api_keys"),
    ],
)
def test_variables_set_by_other_settings_are_rejected(name: str, variable: str, key: str) -> None:
    value, value_text = (
        ("x", " to 'x'") if name == "env" else ({"secret": "settings", "key": "x"}, "")
    )
    settings = {name: {f"INFERENCE_{variable}": value}}
    found = service_problems({**settings, **({key: SETTINGS[key]} if key in SETTINGS else {})})
    assert f"sets {name}.INFERENCE_{variable}{value_text}" in found
    assert f"remove {name}.INFERENCE_{variable}, and set `{key}`" in found
    # Without these settings, the stack sets no variable that would be overridden.
    assert (service_problems(settings) == "") == (key in SETTINGS)


def test_variable_cannot_be_in_both_env_and_env_from() -> None:
    reference = {"secret": "settings", "key": "x"}
    assert "sets X in both env and env_from" in service_problems(
        {"env": {"X": "1"}, "env_from": {"X": reference}}
    )
    assert service_problems({"env": {"X": "1"}, "env_from": {"Y": reference}}) == ""


@pytest.mark.parametrize("backend", ["pt2", "int8"])
def test_cpu_backend_is_rejected_on_a_gpu(backend: str) -> None:
    found = service_problems({"gpus": 1, "server": {"backend": backend}})
    assert f"has an invalid `server`: it sets backend to {backend}" in found
    canary = {"weight": 10, "server": {"backend": backend}}
    route = {"gateway": {"name": "public"}}
    found = service_problems({"gpus": 1, "route": route, "canary": canary})
    assert "has an invalid `canary.server`" in found
    for valid_settings in (
        {"gpus": 1, "server": {"backend": backend, "device": "cpu"}},
        {"gpus": 0},
    ):
        assert service_problems({"server": {"backend": backend}, **valid_settings}) == ""


def test_cuda_device_is_rejected_without_gpus() -> None:
    server = {"device": "cuda"}
    assert "it sets device to cuda, but gpus is 0" in service_problems(
        {"gpus": 0, "server": server}
    )
    assert service_problems({"gpus": 1, "server": server}) == ""


def test_latency_limit_above_the_largest_histogram_bucket_is_rejected() -> None:
    def problems_with_latency(seconds: float) -> str:
        rollback = {
            "prometheus": "http://prometheus:9090",
            "image": "inference",
            "latency_seconds": seconds,
        }
        canary = {"weight": 10, "server": {"workers": 2}, "rollback": rollback}
        return service_problems({"route": {"gateway": {"name": "public"}}, "canary": canary})

    longest = SECONDS[-1]
    assert f"canary.rollback.latency_seconds to {longest}" in problems_with_latency(longest)
    assert problems_with_latency(longest - 1) == ""


def test_model_name_that_mlserver_cannot_find_is_rejected() -> None:
    mlserver = {"job": None, "run": "digits-0123abcd", "runtime": "mlserver"}
    assert "model is 'team/digits'" in service_problems({**mlserver, "model": "team/digits"})
    assert service_problems({**mlserver, "model": "Digits_1"}) == ""
    assert "set `model`" in service_problems({**mlserver, "server": {"model_name": "digits"}})


@pytest.mark.parametrize(
    ("sizes", "accepted"),
    [
        ({"replicas": 1}, 1),
        ({"replicas": 4}, 3),
        ({"autoscaling": {"min": 1, "max": 8}}, 1),
        ({"autoscaling": {"min": 4, "max": 8}}, 3),
    ],
)
def test_max_unavailable_leaves_a_replica_of_the_minimum(
    sizes: dict[str, Any], accepted: int
) -> None:
    assert service_problems({**sizes, "max_unavailable": accepted}) == ""
    assert f"max_unavailable to {accepted + 1}, but" in service_problems(
        {**sizes, "max_unavailable": accepted + 1}
    )
