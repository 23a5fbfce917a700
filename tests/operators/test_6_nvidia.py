"""NVIDIA's device plugin and GPU feature discovery on real nodes, with a simulated driver.

The stack installs the plugin from an image that contains it. The kubelets, Node Feature Discovery,
Volcano and the controller of node health read what NVIDIA's programs report.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from infra.gpu_stack import PLUGIN
from infra.settings.cluster import GpuSettings
from tests.cluster.platform import UPDATE, Platform, await_
from tests.operators import nvidia

GOOD, FAULTY = NODES = "gpu-node-0", "gpu-node-1"
GPU = "nvidia.com/gpu"
NAMESPACE = GpuSettings().namespace
SPEC = cluster_spec(Kind.REAL)
UUIDS = {node.name: node.gpu_uuids for node in SPEC.real_nodes}


@pytest.fixture(scope="module")
def platform(real: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The stack with NVIDIA's device plugin, GPU feature discovery and node health."""
    folder = tmp_path_factory.mktemp("nvidia")
    real.reset()
    real.make("up")
    before, labels = real.stack_file.read_text(), {node: labels_of(real, node) for node in NODES}
    image = nvidia.push_image(real.state, folder)
    objects = folder / "feature-discovery.yaml"
    objects.write_text(yaml.safe_dump_all(nvidia.feature_discovery(image, PLUGIN)))
    master = nvidia.node_feature_discovery(image, folder)
    try:
        real.edit(lambda config: configure(config, image))
        real.shell(UPDATE)
        real.shell(f"kubectl apply --server-side --kustomize {master}")
        real.shell(f"kubectl apply --server-side --filename {objects}")
        yield real
    finally:
        real.shell(
            f"kubectl delete --kustomize {master} --ignore-not-found && "
            f"kubectl delete --filename {objects} --ignore-not-found && kubectl uncordon {FAULTY}"
        )
        for node, old in labels.items():
            patch = dict.fromkeys(labels_of(real, node)) | old
            text = json.dumps({"metadata": {"labels": patch}})
            real.shell(f"kubectl patch node {node} --patch='{text}'")
        real.stack_file.write_text(before)
        real.shell(UPDATE)


def configure(config: dict[str, Any], image: str) -> None:
    config["gpu-platform:tenancy"]["groups"] = {"members": ["researchers"]}
    health = {"fault_seconds": 10, "settle_seconds": 5}
    config["gpu-platform:gpu"] |= {"image": image, "node_health": health}


def labels_of(platform: Platform, node: str) -> dict[str, str]:
    return dict(platform.kubectl("get", "node", node)["metadata"]["labels"])


def gpus(platform: Platform, node: str, resource: str = GPU) -> tuple[int, int]:
    """Return a node's GPU capacity and allocatable GPUs, as reported by its kubelet."""
    status = platform.kubectl("get", "node", node)["status"]
    return int(status["capacity"].get(resource, 0)), int(status["allocatable"].get(resource, 0))


def health(platform: Platform, node: str) -> tuple[bool, str, str]:
    """Return whether a node is cordoned, with the reason and message of its condition."""
    found = platform.kubectl("get", "node", node)
    conditions = {each["type"]: each for each in found["status"]["conditions"]}
    condition = conditions.get("GpuUnhealthy", {})
    cordoned = found["spec"].get("unschedulable", False)
    return cordoned, condition.get("reason", ""), condition.get("message", "")


def plugin_pod(platform: Platform, node: str) -> str:
    selector = f"--selector=app.kubernetes.io/name={PLUGIN}"
    options = (selector, f"--field-selector=spec.nodeName={node}")
    (pod,) = platform.kubectl("get", "pods", "-n", NAMESPACE, *options)["items"]
    return str(pod["metadata"]["name"])


def submitted(platform: Platform) -> str:
    """Submit a gang of two pods for nodes as GPU feature discovery labels them; return its name."""
    digits = yaml.safe_load(platform.stack_file.read_text())["config"]["gpu-platform:training"]
    job = digits["jobs"]["digits"] | {
        "strict_spread": False,
        "gpu_product": SPEC.gpu_product,
        "node_gpus": 4,
    }
    job["hyperparameters"] = job["hyperparameters"] | {"epochs": 500, "step_delay": 0.1}
    file = platform.checkout / "moving.yaml"
    file.write_text(yaml.safe_dump({"moving": job}))
    platform.shell(f"python -m gpu_platform run {file} --namespace {platform.namespace}")
    runs = platform.kubectl("get", "jobs.batch.volcano.sh", "-n", platform.namespace)["items"]
    (name,) = (each["metadata"]["name"] for each in runs if "moving-" in each["metadata"]["name"])
    return str(name)


def trains_on(platform: Platform, run: str, node: str) -> bool:
    """Return whether both pods of the gang are on a node, and it has made a step there."""
    pods = platform.pods(run)
    placed = [str(pod["spec"].get("nodeName")) for pod in pods]
    return placed == [node] * 2 and any(each.get("event") == "epoch" for each in platform.logs(run))


def gpu_of(platform: Platform, pod: str) -> str:
    """Return the UUID of the GPU that the device plugin gave a pod."""
    command = f"kubectl exec -n {platform.namespace} {pod} -- printenv NVIDIA_VISIBLE_DEVICES"
    return platform.shell(command).strip()


def test_kubelets_advertise_the_gpus_of_nvidias_plugin(platform: Platform) -> None:
    await_(lambda: all(gpus(platform, node) == (4, 4) for node in NODES), "4 GPUs per node")
    for node in NODES:
        log = platform.shell(f"kubectl logs -n {NAMESPACE} {plugin_pod(platform, node)}")
        assert f'"Starting NVIDIA Device Plugin" version="{nvidia.VERSION}"' in log
        assert f"Registered device plugin for '{GPU}' with Kubelet" in log


def test_gpu_feature_discovery_labels_the_nodes(platform: Platform) -> None:
    found = {
        "product": SPEC.gpu_product,
        "count": "4",
        "memory": str(SPEC.gpu_memory_mib),
        "family": "ampere",
        "replicas": "1",
    }
    wanted = {f"{GPU}.{key}": value for key, value in found.items()}

    def labeled(node: str) -> bool:
        return labels_of(platform, node).items() >= wanted.items()

    await_(lambda: all(map(labeled, NODES)), f"{wanted} of each node")


def test_gang_leaves_a_node_with_an_xid_error_until_the_plugin_is_restarted(
    platform: Platform,
) -> None:
    platform.shell(f"kubectl cordon {GOOD}")
    try:
        run = submitted(platform)
        await_(lambda: trains_on(platform, run, FAULTY), f"the gang on {FAULTY}")
    finally:
        platform.shell(f"kubectl uncordon {GOOD}")
    sockets = Layout(Path(), platform.state / "real").node(FAULTY) / "kubelet" / "device-plugins"
    with (sockets / nvidia.XIDS).open("a") as file:
        file.write(f"{UUIDS[FAULTY].index(gpu_of(platform, f'{run}-master-0'))} 79\n")
    await_(lambda: gpus(platform, FAULTY) == (4, 3), "a GPU is not offered")
    cordoned = (True, "DevicesUnhealthy", "the device plugin offers 3 of 4 GPUs")
    await_(lambda: health(platform, FAULTY) == cordoned, f"{FAULTY} is cordoned")
    await_(lambda: trains_on(platform, run, GOOD), f"the gang on {GOOD}")
    # The plugin does not detect that a GPU is healthy again.
    assert gpus(platform, FAULTY) == (4, 3)
    assert health(platform, FAULTY) == cordoned
    platform.shell(f"kubectl delete pod -n {NAMESPACE} {plugin_pod(platform, FAULTY)}")
    await_(lambda: gpus(platform, FAULTY) == (4, 4), "all GPUs are offered")
    healthy = (False, "GpusHealthy", "")
    await_(lambda: health(platform, FAULTY) == healthy, f"{FAULTY} has returned")
    platform.shell(f"kubectl delete jobs.batch.volcano.sh -n {platform.namespace} {run}")


def test_runs_and_models_share_gpus_through_time_slicing(platform: Platform) -> None:
    """Run this test last: for minutes, the kubelet still reports GPUs that no longer exist."""
    shares = f"{GPU}.shared"

    def change(config: dict[str, Any]) -> None:
        del config["gpu-platform:gpu"]["node_health"]
        config["gpu-platform:gpu"]["time_slicing"] = {"replicas": 2}
        for workload in (
            config["gpu-platform:training"]["jobs"]["digits"],
            config["gpu-platform:inference"]["services"]["digits"],
        ):
            workload["gpu_resource"] = shares

    platform.edit(change)
    platform.shell(UPDATE)
    platform.shell(f"kubectl rollout restart -n {NAMESPACE} daemonset/gpu-feature-discovery")
    wanted = {f"{GPU}.replicas": "2", f"{GPU}.sharing-strategy": "time-slicing"}

    def done(node: str) -> bool:
        offered = gpus(platform, node, shares), gpus(platform, node)[1]
        return offered == ((8, 8), 0) and labels_of(platform, node).items() >= wanted.items()

    await_(lambda: all(map(done, NODES)), "8 shares of each node")
    served = f"kubectl rollout status -n {platform.namespace} deployment/digits --timeout=600s"
    platform.shell(served)
    pods = platform.kubectl(
        "get", "pods", "-n", platform.namespace, "-l", "gpu-platform.dev/service=digits"
    )["items"]
    (server,) = (pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    assert server["spec"]["containers"][0]["resources"]["limits"][shares] == "1"
    gpu = gpu_of(platform, server["metadata"]["name"])
    assert gpu in UUIDS[server["spec"]["nodeName"]]
