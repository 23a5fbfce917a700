"""A real Prometheus and kube-state-metrics in pods, set up as docs/monitoring.md describes."""

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from devcluster.images.catalog import ToolImage
from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import Toolchain, ensure
from devcluster.toolchain.pins import Extra
from tests.cluster.platform import ROOT, Platform, await_
from tests.operators.definitions import GoModule

NAMESPACE = "monitoring"
REGISTRY = "127.0.0.1:5000"
NOBODY = 65532
IMAGES = (
    ToolImage("prometheus:3.10.0", "prometheus", "/prometheus", f"{NOBODY}:{NOBODY}"),
    ToolImage(
        "kube-state-metrics:2.18.0",
        "kube-state-metrics",
        "/kube-state-metrics",
        f"{NOBODY}:{NOBODY}",
    ),
)
OPERATOR = GoModule(
    "github.com/prometheus-operator/prometheus-operator@v0.93.1",
    "h1:4Juk8v93RdG1DSGD/mGp+SeQKPmnlLIj2iq3blLZgFY=",
)
"""The operator's version in the chart that infra/settings/monitoring.py uses."""

WATCHED_RESOURCES = "pods,nodes,resourcequotas,horizontalpodautoscalers"
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def push_images(
    state: Path, images: Sequence[ToolImage] = IMAGES, extra: Extra = "prometheus"
) -> Toolchain:
    """Build missing programs, and push them to the cluster's registry."""
    paths = Layout(Layout.of(Kind.REAL).cache, state / "real")
    tools = ensure("real", paths.cache, sys.stderr.write, [extra])
    spec = cluster_spec(Kind.REAL)
    registry = f"{spec.control_plane.address}:{spec.network.registry_port}"
    for image in images:
        layout = image.layout(paths.images, tools.bin)
        layout.push(registry, image.reference, paths.logs / "push.log")
    return tools


def page_block(start: str) -> str:
    """Return the code block of docs/monitoring.md that begins with this text."""
    blocks = re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL)
    return next(str(block) for block in blocks if block.startswith(start))


def configuration(interval_seconds: int, targets: Sequence[str] = ()) -> str:
    """Return the page's prometheus.yml with short intervals and additional targets."""
    document = yaml.safe_load(page_block("global:"))
    every = f"{interval_seconds}s"
    document["global"] = {f"{what}_interval": every for what in ("scrape", "evaluation")}
    document["global"]["scrape_timeout"] = every
    others = {"job_name": "others", "static_configs": [{"targets": list(targets)}]}
    document["scrape_configs"].append(others)
    return yaml.safe_dump(document)


def objects(interval_seconds: int, targets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return all objects except the namespace and the stack's own ConfigMap."""
    account = {"name": "prometheus", "namespace": NAMESPACE}
    flags = page_block("--metric").split()
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {**yaml.safe_load(page_block("apiVersion: rbac")), "metadata": {"name": "prometheus"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "prometheus"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "prometheus",
            },
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "prometheus", "namespace": NAMESPACE},
            "data": {"prometheus.yml": configuration(interval_seconds, targets)},
        },
        *(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
            }
            for name, port in (("kube-state-metrics", 8080), ("prometheus", 9090))
        ),
        _deployment(
            "kube-state-metrics", IMAGES[1], [*flags, f"--resources={WATCHED_RESOURCES}"], 8080, "/"
        ),
        _deployment(
            "prometheus",
            IMAGES[0],
            ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data"],
            9090,
            "/-/ready",
            {"prometheus": "/etc/prometheus", "gpu-platform-prometheus": "/etc/gpu-platform"},
        ),
    ]


def _deployment(
    name: str,
    image: ToolImage,
    arguments: list[str],
    port: int,
    ready: str,
    mounted: dict[str, str] | None = None,
) -> dict[str, Any]:
    mounted = mounted or {}
    volumes = [{"name": each, "configMap": {"name": each}} for each in mounted]
    mounts = [{"name": each, "mountPath": path} for each, path in mounted.items()]
    container = {
        "name": name,
        "image": f"{REGISTRY}/{image.reference}",
        "args": arguments,
        "readinessProbe": {"httpGet": {"port": port, "path": ready}, "periodSeconds": 1},
        "volumeMounts": [*mounts, {"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "serviceAccountName": "prometheus",
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {"fsGroup": NOBODY},
                    "containers": [container],
                    "volumes": [*volumes, {"name": "data", "emptyDir": {}}],
                },
            },
        },
    }


def apply(platform: Platform, manifests: list[dict[str, Any]]) -> None:
    """Apply objects as a user would."""
    file = platform.checkout / "monitoring.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    platform.shell(f"kubectl apply --server-side --filename {file}")


def namespace(platform: Platform) -> None:
    """Create the namespace of the stack's ConfigMap."""
    apply(platform, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])


@dataclass(frozen=True)
class Prometheus:
    """Client of Prometheus' HTTP API."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}"
        answer = httpx.get(url, params=parameters, timeout=30, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def query_series(self, query: str) -> list[dict[str, Any]]:
        """Return the current series of a query."""
        return list(self.get("query", query=query)["result"])

    def numbers(self, query: str) -> list[float]:
        """Return the current values of a query, without NaN."""
        found = (float(each["value"][1]) for each in self.query_series(query))
        return [number for number in found if not math.isnan(number)]

    def firing(self) -> Iterator[dict[str, str]]:
        """Yield the labels of the firing alerts."""
        for alert in self.get("alerts")["alerts"]:
            if alert["state"] == "firing":
                yield alert["labels"]

    def fired(self) -> Iterator[dict[str, str]]:
        """Yield the labels of the alerts that are firing or have fired."""
        for series in self.query_series('last_over_time(ALERTS{alertstate="firing"}[1h])'):
            yield series["metric"]


def start(platform: Platform, interval_seconds: int, targets: Sequence[str] = ()) -> Prometheus:
    """Start Prometheus and kube-state-metrics, and wait until Prometheus has data."""
    apply(platform, objects(interval_seconds, targets))
    platform.shell(
        f"kubectl wait --for=condition=Available deployment --all -n {NAMESPACE} --timeout=600s"
    )
    (pod,) = platform.kubectl("get", "pods", "-n", NAMESPACE, "-l", "app=prometheus")["items"]
    found = Prometheus(f"http://{pod['status']['podIP']}:9090")
    await_(lambda: bool(found.query_series("up")), "the first scrape of Prometheus")
    return found


def stop(platform: Platform) -> None:
    """Remove everything."""
    platform.shell(
        f"kubectl delete namespace {NAMESPACE} --ignore-not-found --wait=false && "
        "kubectl delete clusterrole,clusterrolebinding prometheus --ignore-not-found"
    )
