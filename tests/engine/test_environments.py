"""The environments of users' clusters, rendered by the engine and checked by the pack."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from tests.engine.conftest import MakeStack, Manifest

PLACEHOLDER = f"registry.example.com/gpu-platform/workload@sha256:{'0' * 64}"
# Rules only see the values of a release. The device plugin's image has a tag, not a digest.
ADVICE = {"staging": {"image-digest-pinned", "helm-release-judged"}, "prod": set[str]()}
SYSTEM = {
    "staging": {
        "gpu-system/DaemonSet/nvidia-device-plugin",
        "*/Namespace/gpu-system",
        "*/Namespace/volcano-system",
    },
    "prod": {"*/Namespace/volcano-system"},
}


@dataclass(frozen=True)
class Environment:
    """A rendered stack, with the output of the engine and the pack."""

    manifests: list[Manifest]
    outputs: dict[str, Any]
    output: str

    def all(self, kind: str) -> dict[str, Manifest]:
        """Return the manifests of a kind by name, or jobs by the key that starts their name."""
        return {
            re.sub(r"-[0-9a-f]{8}$", "", manifest["metadata"]["name"]): manifest
            for manifest in self.manifests
            if manifest["kind"] == kind
        }

    def gang(self) -> list[Manifest]:
        """The pod specifications of the job `cifar`, one for each pod."""
        return [
            task["template"]["spec"]
            for task in self.all("Job")["cifar"]["spec"]["tasks"]
            for _ in range(task["replicas"])
        ]


def with_existing_images(config: dict[str, Any]) -> None:
    workloads = config["gpu-platform:images"]["workloads"]
    for key, image in workloads.items():
        if "build" in image:
            workloads[key] = {"reference": PLACEHOLDER}


def _pack(name: str) -> tuple[str, ...]:
    return ("--policy-pack", "policies", "--policy-pack-config", f"policies/config/{name}.json")


def _deploy(engine: MakeStack, name: str) -> Environment:
    stack = engine(name, with_existing_images)
    outcome = stack.up(*_pack(name))
    assert outcome.status == 0, outcome.text
    return Environment(stack.manifests(), stack.outputs(), outcome.text)


@pytest.fixture(scope="module")
def staging(engine: MakeStack) -> Environment:
    return _deploy(engine, "staging")


@pytest.fixture(scope="module")
def prod(engine: MakeStack) -> Environment:
    return _deploy(engine, "prod")


@pytest.mark.parametrize("name", ["staging", "prod"])
def test_environment_passes_every_rule(name: str, request: pytest.FixtureRequest) -> None:
    output = request.getfixturevalue(name).output
    assert "[mandatory]" not in output
    assert "itself failed" not in output
    assert "can't run policy" not in output
    advice = set(re.findall(r"\[advisory\].*?\s([a-z-]+) ", output))
    assert advice <= ADVICE[name], output


@pytest.mark.parametrize("name", ["staging", "prod"])
def test_only_system_objects_are_exempt_and_rules_stay_mandatory(name: str) -> None:
    config = json.loads((CHECKOUT / "policies" / "config" / f"{name}.json").read_text())
    trusted = set(config["systemWorkloads"]["workloads"])
    levels = {v if isinstance(v, str) else v.get("enforcementLevel") for v in config.values()}
    assert trusted == SYSTEM[name]
    assert levels <= {None, "mandatory"}
    assert "exemptions" not in config


@pytest.mark.parametrize("name", ["staging", "prod"])
def test_environment_contains_no_secrets_and_only_example_hosts(name: str) -> None:
    text = (CHECKOUT / f"Pulumi.{name}.yaml").read_text()
    hosts = set(re.findall(r"\b(?:[a-z0-9-]+\.)+(?:com|net|org|io)\b(?!/)", text))
    assert all(host.endswith("example.com") for host in hosts - {"csi.storage.k8s.io"}), hosts
    assert "secure:" not in text
    assert "encryptionsalt" not in text


def test_gang_in_prod_has_32_processes_on_four_whole_nodes_in_its_teams_queue(
    prod: Environment,
) -> None:
    job = prod.all("Job")["cifar"]["spec"]
    assert {task["name"]: task["replicas"] for task in job["tasks"]} == {"master": 1, "worker": 3}
    assert job["minAvailable"] == 4
    assert job["queue"] == "vision"
    assert prod.all("Queue")["vision"]["spec"]["capability"] == {"nvidia.com/gpu": "32"}
    processes = 0
    for pod in prod.gang():
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert "--nnodes=4" in container["command"]
        assert "--nproc-per-node=8" in container["command"]
        assert pod["schedulerName"] == "volcano"
        assert pod["priorityClassName"] == "batch"
        processes += int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert processes == 32


def test_gang_in_prod_uses_rdma_without_the_host_network(prod: Environment) -> None:
    for pod in prod.gang():
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["rdma/hca"] == "1"
        capabilities = container["securityContext"]["capabilities"]
        assert capabilities == {"drop": ["ALL"]}
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert env["NCCL_SOCKET_IFNAME"] == "eth0"
        assert env["NCCL_IB_HCA"] == "mlx5"
        assert env["NCCL_NET"] == "IB"
        assert "hostNetwork" not in pod
        assert "dnsPolicy" not in pod
    levels = prod.all("Namespace")["ml-prod"]["metadata"]["labels"]
    assert levels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_gang_in_prod_has_bounded_retries_and_attempts(prod: Environment) -> None:
    job = prod.all("Job")["cifar"]["spec"]
    assert job["maxRetry"] == 10
    assert {pod["activeDeadlineSeconds"] for pod in prod.gang()} == {3 * 24 * 3600}


def test_quota_in_prod_suffices_for_the_gang_and_a_serving_update(
    prod: Environment,
) -> None:
    deployment = prod.all("Deployment")["cifar"]["spec"]
    surge = deployment["strategy"]["rollingUpdate"]["maxSurge"]
    (server,) = deployment["template"]["spec"]["containers"]
    gpus = int(server["resources"]["limits"]["nvidia.com/gpu"])
    serving = (deployment["replicas"] + surge) * gpus
    hard = prod.all("ResourceQuota")["workloads"]["spec"]["hard"]
    assert int(hard["requests.nvidia.com/gpu"]) == 32 + serving


def test_checkpoints_in_prod_are_shared_retained_and_use_the_ceph_class(prod: Environment) -> None:
    storage_class = prod.all("StorageClass")["cephfs-shared"]
    assert storage_class["provisioner"] == "cephfs.csi.ceph.com"
    assert storage_class["reclaimPolicy"] == "Retain"
    assert storage_class["volumeBindingMode"] == "Immediate"
    for name in ("checkpoints", "datasets"):
        claim = prod.all("PersistentVolumeClaim")[name]["spec"]
        assert claim["accessModes"] == ["ReadWriteMany"]
        assert claim["storageClassName"] == "cephfs-shared"


def test_prod_serves_three_replicas_on_a_separate_node_pool(prod: Environment) -> None:
    deployment = prod.all("Deployment")["cifar"]["spec"]
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 3
    assert prod.all("PodDisruptionBudget")["cifar"]["spec"]["maxUnavailable"] == 1
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    product = "nvidia.com/gpu.product"
    assert pod["nodeSelector"][product] != prod.gang()[0]["nodeSelector"][product]
    run = prod.outputs["runs"]["cifar"]["name"]
    env = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert env["INFERENCE_MODEL_PATH"] == f"/models/{run}/export"


def test_every_image_in_prod_is_pinned_by_digest(prod: Environment) -> None:
    images = [pod["containers"][0]["image"] for pod in prod.gang()]
    images += [
        container["image"]
        for deployment in prod.all("Deployment").values()
        for container in deployment["spec"]["template"]["spec"]["containers"]
    ]
    assert len(images) == 6
    assert all(re.fullmatch(r".+@sha256:[0-9a-f]{64}", image) for image in images)
    assert "DaemonSet" not in {manifest["kind"] for manifest in prod.manifests}


def test_staging_trains_on_one_node_in_each_teams_queue(
    staging: Environment,
) -> None:
    (volcano,) = staging.gang()
    indexed = staging.all("Job")["digits"]["spec"]
    pods = {"cifar": volcano, "digits": indexed["template"]["spec"]}
    gpus = {}
    for key, pod in pods.items():
        (container,) = pod["containers"]
        gpus[key] = container["resources"]["limits"]["nvidia.com/gpu"]
        assert {"--nnodes=1", "--standalone"} <= set(container["command"])
        assert "rdma/hca" not in container["resources"]["limits"]
        assert pod["runtimeClassName"] == "nvidia"
    assert gpus == {"cifar": "4", "digits": "2"}
    assert staging.all("Job")["cifar"]["spec"]["queue"] == "staging-vision"
    assert staging.all("PodGroup")["digits"]["spec"]["queue"] == "staging-language"
    assert indexed["activeDeadlineSeconds"] == 24 * 3600


def test_staging_scales_replicas_with_load(staging: Environment) -> None:
    scaler = staging.all("HorizontalPodAutoscaler")["cifar"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 2)
    assert "replicas" not in staging.all("Deployment")["cifar"]["spec"]


def test_staging_installs_the_device_plugin_and_nfs(staging: Environment) -> None:
    assert staging.all("DaemonSet")["nvidia-device-plugin"]
    assert staging.all("RuntimeClass")["nvidia"]["handler"] == "nvidia"
    assert staging.all("StorageClass")["nfs-shared"]["provisioner"] == "nfs.csi.k8s.io"
    assert "release of chart volcano 1.15.1 is not rendered" in staging.output


def test_staging_can_log_in_to_its_registry_with_a_user(engine: MakeStack) -> None:
    def name_a_user(config: dict[str, Any]) -> None:
        with_existing_images(config)
        config["gpu-platform:images"]["username"] = "robot"

    stack = engine("staging", name_a_user)
    outcome = stack.preview()
    assert outcome.status != 0
    assert "gpu-platform:registry_password is missing" in outcome.text


def half_nodes(config: dict[str, Any]) -> None:
    config["gpu-platform:training"]["jobs"]["cifar"]["gpus_per_node"] = 4


def endless_run(config: dict[str, Any]) -> None:
    del config["gpu-platform:training"]["jobs"]["cifar"]["attempt_deadline_seconds"]


def foreign_registry(config: dict[str, Any]) -> None:
    reference = PLACEHOLDER.replace("registry.", "elsewhere.")
    config["gpu-platform:images"]["workloads"]["training"] = {"reference": reference}


def test_policies_in_prod_reject_settings_that_the_schema_accepts(engine: MakeStack) -> None:
    def mistakes(config: dict[str, Any]) -> None:
        half_nodes(config)
        endless_run(config)
        foreign_registry(config)

    outcome = engine("prod", mistakes).preview(*_pack("prod"))
    assert outcome.status != 0
    for rule in ("gpu-whole-nodes", "training-ends", "image-registry-allowed"):
        assert re.search(rf"\[mandatory\].*?\s{rule} ", outcome.text), outcome.text
