"""Invalid settings for an inference service, each reported in one sentence."""

import pytest

from tests.infra.examples import Mistake, assert_reported

SERVICE = "inference.services.digits"
MISTAKES: dict[str, Mistake] = {
    "unknown job": (f"{SERVICE}.job", "digit", "use digits"),
    "path that no gateway accepts": (
        f"{SERVICE}.route",
        {"gateway": {"name": "public"}, "path": "/models/../digits"},
        f"{SERVICE}.route.path",
        "without empty, '.' and '..' segments",
    ),
    "IP address as a hostname": (
        f"{SERVICE}.route",
        {"gateway": {"name": "public"}, "hostnames": ["10.0.0.1"]},
        f"{SERVICE}.route.hostnames[0]",
        "not an IP address",
    ),
    "more hostnames than a route allows": (
        f"{SERVICE}.route",
        {"gateway": {"name": "public"}, "hostnames": [f"h{i}.example.com" for i in range(17)]},
        "at most 16",
    ),
    "node port behind a network policy": (
        f"{SERVICE}.service_type",
        "NodePort",
        "tenancy.network.inference_cidrs",
    ),
    "services above the quota": (f"{SERVICE}.gpus", 33, "inference.services", "more than"),
    "replicas and autoscaling": (
        SERVICE,
        {"job": "digits", "cpu": 1, "memory": "1Gi", "replicas": 2, "autoscaling": {"max": 4}},
        "remove one of them",
    ),
    "autoscaling minimum above the maximum": (
        f"{SERVICE}.autoscaling",
        {"min": 4, "max": 2},
        "sets min to 4, more than max (2)",
    ),
    "job and run at once": (f"{SERVICE}.run", "digits-0123abcd", SERVICE, "sets job and run"),
    "run without its hash": (f"{SERVICE}.run", "digits", "full name of a run"),
    "unknown server setting": (
        f"{SERVICE}.server",
        {"drain_second": 1},
        SERVICE,
        "server.drain_second is not a known setting (did you mean 'drain_seconds'?)",
    ),
    "removed server setting": (
        f"{SERVICE}.server",
        {"grpc_port": 9000},
        SERVICE,
        "server.grpc_port, which is no longer supported: remove it; clients use HTTP",
    ),
    "drain longer than the grace period": (
        f"{SERVICE}.grace_seconds",
        5,
        SERVICE,
        "increase grace_seconds",
    ),
    "notice, pause and drain longer than the grace period": (
        f"{SERVICE}.server",
        {"notice_seconds": 5, "drain_seconds": 23},
        SERVICE,
        "takes up to 30 seconds to terminate",
    ),
    "pre-stop pause as long as the grace period": (
        SERVICE,
        {
            "runtime": "mlserver",
            "source": {"claim": {"name": "datasets"}},
            "cpu": 1,
            "memory": "2Gi",
            "pre_stop_seconds": 30,
        },
        "takes up to 30 seconds to terminate (pre_stop_seconds 30), but",
    ),
    "min_ready_seconds not below the progress deadline": (
        SERVICE,
        {
            "job": "digits",
            "cpu": "500m",
            "memory": "2Gi",
            "min_ready_seconds": 600,
            "progress_deadline_seconds": 600,
        },
        "set progress_deadline_seconds to at least 601",
    ),
    "two volumes at the same path": (
        f"{SERVICE}.volumes",
        {"a": {"path": "/x", "scratch": "1Gi"}, "b": {"path": "/x/", "scratch": "1Gi"}},
        SERVICE,
        "has two volumes at /x: use a different path for each",
    ),
    "server port that the stack sets": (f"{SERVICE}.server", {"port": 9000}, SERVICE, "set `port`"),
    "server model path that the stack sets": (
        f"{SERVICE}.server",
        {"model_path": "/models/mine"},
        SERVICE,
        "set `job`, `sweep`, `run`, `url` or `source`",
    ),
    "URL with a password": (
        f"{SERVICE}.url",
        "https://me:secret@example.com/export",
        "without credentials",
    ),
    "short digest": (f"{SERVICE}.digest", "36bb", "must be 64 lower-case hexadecimal digits"),
    "download settings without a download": (
        f"{SERVICE}.fetch",
        {"size": "1Gi"},
        SERVICE,
        "but has nothing to download",
    ),
    "canary without a route": (
        f"{SERVICE}.canary",
        {"weight": 20, "run": "digits-0123abcd"},
        SERVICE,
        "no route to split",
    ),
    "canary equal to the service": (
        f"{SERVICE}.canary",
        {"weight": 20},
        "set run, url, source, image or server",
    ),
    "route with both a gateway and an ingress": (
        f"{SERVICE}.route",
        {"gateway": {"name": "public"}, "ingress": {"class_name": "nginx"}},
        "exactly one of gateway and ingress",
    ),
    "duplicate host names": (
        f"{SERVICE}.route",
        {"gateway": {"name": "public"}, "hostnames": ["a.example.com", "a.example.com"]},
        f"{SERVICE}.route.hostnames",
        "lists a.example.com 2 times: list each host name once",
    ),
    "ingress path that is not removed": (
        f"{SERVICE}.route",
        {"ingress": {"class_name": "nginx"}, "path": "/digits"},
        "set hostnames instead",
    ),
    "scale to zero without KEDA": (
        f"{SERVICE}.autoscaling",
        {"min": 0, "max": 2, "requests_in_flight": 8},
        "requires keda.activation_query",
    ),
    "KEDA without requests_in_flight": (
        f"{SERVICE}.autoscaling",
        {"max": 2, "keda": {"prometheus": "http://prometheus:9090"}},
        "sets keda, but not requests_in_flight",
    ),
    "Prometheus URL with a non-numeric port": (
        f"{SERVICE}.canary",
        {"weight": 1, "rollback": {"prometheus": "http://prometheus:9090x"}},
        f"{SERVICE}.canary.rollback.prometheus",
        "optional port from 1 to 65535",
    ),
    "Prometheus URL with an incomplete host": (
        f"{SERVICE}.autoscaling",
        {"max": 2, "requests_in_flight": 8, "keda": {"prometheus": "http://[x"}},
        f"{SERVICE}.autoscaling.keda.prometheus",
        "with a host",
    ),
    "volume that hides the model": (
        f"{SERVICE}.volumes",
        {"mine": {"path": "/models/mine", "scratch": "1Gi"}},
        SERVICE,
        "which is reserved in every pod",
    ),
    "volume with a reserved name": (
        f"{SERVICE}.volumes",
        {"models": {"path": "/mine", "scratch": "1Gi"}},
        SERVICE,
        "a name that is reserved in every pod",
    ),
    "volume with an unknown claim": (
        f"{SERVICE}.volumes",
        {"mine": {"path": "/mine", "claim": "elsewhere"}},
        f"{SERVICE}.volumes.mine.claim",
        "not declared",
    ),
    "quota too small for the additional pod of an update": (
        f"{SERVICE}.gpus",
        32,
        "inference.services",
        "raise the quota to 64",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_key_and_a_remedy(mistake: str) -> None:
    assert_reported(MISTAKES[mistake])
