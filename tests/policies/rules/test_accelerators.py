"""Accelerators: every extended resource, claim or other way in which a pod gets devices."""

from typing import Any

import pytest

from kube.accelerators import Accelerators
from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, judge

POD = "spec/tasks/0/template/spec"
MAIN = f"{POD}/containers/0"
LIMITS = f"{MAIN}/resources/limits"
REQUESTS = f"{MAIN}/resources/requests"
WITHOUT_GPU = (
    (f"{LIMITS}/nvidia.com~gpu", REMOVED),
    (f"{REQUESTS}/nvidia.com~gpu", REMOVED),
)


def job(*edits: tuple[str, Any]) -> Manifest:
    return changed(manifests.volcano_job(), *edits)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "NVIDIA.com/GPU",
        "nvidia.com/gpucores",
        "nvidia.com/GH100_H100_SXM5_80GB",
        "gpu.nvidia.com/h100",
        "volcano.sh/vgpu-number",
        "aliyun.com/gpu-mem",
        "aws.amazon.com/neuron",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "unheard.example.com/chip",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        "notkubernetes.io/gpu",
    ],
)
def test_extended_resources_are_accelerators(name: str) -> None:
    assert Accelerators().includes(name)


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "memory",
        "hugepages-2Mi",
        "ephemeral-storage",
        "kubernetes.io/batch-cpu",
        "scheduling.kubernetes.io/slots",
        "rdma/hca",
        "vpc.amazonaws.com/efa",
        "networking.gke.io/rdma",
        "devices.kubevirt.io/kvm",
        "smarter-devices/fuse",
        "intel.com/intel_sriov_netdevice",
        "nvidia.com/hostdev",
        "deviceclass.resource.kubernetes.io/mrdma.google.com",
    ],
)
def test_other_devices_are_not_accelerators(name: str) -> None:
    assert not Accelerators().includes(name)


def test_the_configuration_adds_other_devices() -> None:
    accelerators = Accelerators(other_devices=("example.com/scanner-*", "scan.example.com"))
    assert not accelerators.includes("example.com/scanner-3d")
    assert not accelerators.includes_class("scan.example.com")
    assert accelerators.includes("example.com/chip")


def template(version: str = "v1", **request: Any) -> Manifest:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaimTemplate",
        "metadata": manifests.metadata("gpus"),
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", **request}]}}},
    }


def exactly(**device: Any) -> dict[str, Any]:
    return {"exactly": {"deviceClassName": "gpu.nvidia.com", **device}}


def claiming(**source: str) -> Manifest:
    """A job of two pods whose GPUs come from a claim."""
    named = source or {"resourceClaimTemplateName": "gpus"}
    return job(
        *WITHOUT_GPU,
        (f"{MAIN}/resources/claims", [{"name": "gpus"}]),
        (f"{POD}/resourceClaims", [{"name": "gpus", **named}]),
    )


def test_a_claim_states_the_gpus_of_a_job() -> None:
    assert judge("gpu-limit-present", claiming()) == []


@pytest.mark.parametrize(
    ("rule", "edits"),
    [
        ("shm-mounted", [(f"{MAIN}/volumeMounts/0", REMOVED)]),
        ("gpu-memory-guaranteed", [(f"{LIMITS}/memory", REMOVED)]),
        ("gpu-toleration", [(f"{POD}/tolerations", [])]),
    ],
)
def test_containers_with_claims_need_what_gpu_containers_need(
    rule: str, edits: list[tuple[str, Any]]
) -> None:
    assert judge(rule, claiming()) == []
    assert judge(rule, changed(claiming(), *edits))
    assert judge(rule, changed(claiming(), *edits), config={"claimDevices": {"*/gpus": 1}})


def test_a_claim_configured_without_accelerators_is_not_a_gpu() -> None:
    manifest = changed(claiming(), (f"{POD}/tolerations", []))
    config = {"claimDevices": {"training/gpus": 0}}
    assert judge("gpu-toleration", manifest, config=config) == []


@pytest.mark.parametrize(
    "request_",
    [
        exactly(count=8),
        {"deviceClassName": "gpu.nvidia.com", "count": 8},
        {
            "firstAvailable": [
                {"name": "big", "deviceClassName": "gpu.nvidia.com", "count": 2},
                {"name": "small", "deviceClassName": "gpu.nvidia.com", "count": 8},
            ]
        },
        {"firstAvailable": [], **exactly(count=8)},
        {"firstAvailable": [], "deviceClassName": "gpu.nvidia.com", "count": 8},
    ],
    ids=["v1", "v1beta1", "alternatives", "v1, no alternatives", "v1beta1, no alternatives"],
)
def test_the_budget_counts_the_devices_of_claims(request_: dict[str, Any]) -> None:
    stack = (template(**request_), claiming())
    assert judge("gpu-budget", *stack, config={"maxGpus": 16}) == []
    (message,) = judge("gpu-budget", *stack, config={"maxGpus": 15})
    assert "found 16 GPUs" in message


@pytest.mark.parametrize(
    "limits",
    [
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 30},
        {"aliyun.com/gpu-mem": 8},
        {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30},
    ],
)
def test_amounts_of_a_gpu_are_not_devices(limits: dict[str, int]) -> None:
    resources = {"requests": {}, "limits": {"cpu": 1, **limits}}
    spec = manifests.pod_spec()
    spec["containers"][0]["resources"] = resources
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": manifests.metadata("a"), "spec": spec}
    assert judge("gpu-budget", pod, config={"maxGpus": 1}) == []
    assert judge("gpu-budget", pod, config={"maxGpus": 0})


def test_the_budget_names_what_an_update_adds() -> None:
    (message,) = judge("gpu-budget", manifests.deployment(), config={"maxGpus": 1})
    assert "found 3 GPUs (2 without updates and autoscalers) in the whole stack" in message


def test_the_budget_counts_all_devices_of_a_node_without_a_limit() -> None:
    stack = (template(**exactly(allocationMode="All")), claiming())
    assert judge("gpu-budget", *stack, config={"maxGpus": 1_000_000})


def test_the_budget_counts_a_shared_claim_once() -> None:
    shared = {
        **template(),
        "kind": "ResourceClaim",
        "spec": {"devices": {"requests": [{"name": "gpus", **exactly(count=4)}]}},
    }
    stack = (shared, claiming(resourceClaimName="gpus"))
    assert judge("gpu-budget", *stack, config={"maxGpus": 4}) == []
    assert judge("gpu-budget", *stack, config={"maxGpus": 3})


def test_the_budget_counts_configured_claims() -> None:
    config = {"maxGpus": 15, "claimDevices": {"training/*": 8}}
    assert "found 16 GPUs" in judge("gpu-budget", claiming(), config=config)[0]


def test_the_cost_of_claimed_devices_is_priced_by_device_class() -> None:
    config = {"hourlyPrices": {"gpu.nvidia.com": 2}, "maxHourlyCost": 3}
    assert judge("gpu-cost", template(**exactly()), claiming(), config=config)


def test_the_cost_of_an_unlimited_number_of_devices_is_named() -> None:
    config = {"hourlyPrices": {"gpu.nvidia.com": 2}, "maxHourlyCost": 3}
    stack = (template(**exactly(allocationMode="All")), claiming())
    (message,) = judge("gpu-cost", *stack, config=config)
    assert "found an unlimited number of GPUs that have a price" in message


@pytest.mark.parametrize(
    ("stack", "found"),
    [
        ((claiming(),), 'resourceClaimTemplateName: found "gpus"'),
        ((template(**exactly()), claiming(resourceClaimName="gpus")), "resourceClaimName: found"),
        ((claiming(source="old"),), "resourceClaimName: found nothing"),
        (
            (
                template(**exactly()),
                changed(claiming(), (f"{MAIN}/resources/claims", REMOVED)),
            ),
            "resourceClaims[0]: found",
        ),
    ],
    ids=["undeclared", "other kind", "no name", "unused"],
)
def test_claims_that_cannot_be_resolved_are_refused(
    stack: tuple[Manifest, ...], found: str
) -> None:
    (message,) = judge("claim-declared", *stack)
    assert found in message


def test_gkes_annotation_may_share_the_gpus_of_a_pod_with_its_sidecar() -> None:
    annotations = {"devices.gke.io/container.tcpxo-daemon": "- path: /dev/nvidia0"}
    edit = ("spec/template/metadata/annotations", annotations)
    assert judge("gpu-limit-present", changed(manifests.deployment(), edit)) == []
    without = changed(
        manifests.deployment(), edit, ("spec/template/spec/containers/0/resources", {})
    )
    assert any("/dev/nvidia0" in message for message in judge("gpu-limit-present", without))


@pytest.mark.parametrize("creation", [UNKNOWN_VALUE, {"devices": UNKNOWN_VALUE}])
def test_an_unknown_claim_of_a_service_is_not_undeclared(creation: Any) -> None:
    service = {
        "apiVersion": "apps.nvidia.com/v1alpha1",
        "kind": "NIMService",
        "metadata": manifests.metadata("nim"),
        "spec": {"draResources": [{"claimCreationSpec": creation}]},
    }
    assert judge("claim-declared", service) == []
    service["spec"] = {"draResources": [{}]}
    assert judge("claim-declared", service)


def test_declared_claims_pass() -> None:
    assert judge("claim-declared", template(**exactly()), claiming()) == []
    assert judge("claim-declared", claiming(), config={"claimDevices": {"training/gpus": 1}}) == []


def test_the_template_of_a_compute_domain_is_declared() -> None:
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": manifests.metadata("imex"),
        "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "gpus"}}},
    }
    assert judge("claim-declared", domain, claiming()) == []


@pytest.mark.parametrize(
    "request_",
    [
        exactly(allocationMode="All"),
        exactly(adminAccess=True),
        exactly(count="8"),
        exactly(count=0),
        {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
        {"firstAvailable": [{"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}]},
        {"firstAvailable": [], **exactly(allocationMode="All")},
        {"firstAvailable": [], "deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
        {"firstAvailable": [{"deviceClassName": "dra.cpu"}], **exactly(allocationMode="All")},
        {"exactly": {"deviceClassName": "dra.cpu", "adminAccess": True}},
    ],
)
def test_uncounted_devices_are_refused(request_: dict[str, Any]) -> None:
    claim = template(**request_)
    assert judge("claim-devices-counted", claim)
    config = {"systemWorkloads": ["training/ResourceClaimTemplate/gpus"]}
    assert judge("claim-devices-counted", claim, config=config) == []


def test_all_devices_of_another_class_pass() -> None:
    claim = template(exactly={"deviceClassName": "mrdma.google.com", "allocationMode": "All"})
    assert judge("claim-devices-counted", claim) == []


def test_claims_of_versions_without_requests_are_refused() -> None:
    claim = template(version="v1alpha2")
    claim["spec"] = {"spec": {"resourceClassName": "gpu.nvidia.com"}}
    assert judge("claim-devices-counted", claim)


@pytest.mark.parametrize(
    ("rule", "resources"),
    [
        ("gpu-memory-guaranteed", {"limits": {"nvidia.com/gpu": 8}}),
        ("gpu-cpu-requested", {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}),
        ("gpu-requests-equal-limits", {"requests": {"nvidia.com/gpu": 8}}),
    ],
)
def test_resources_of_a_train_job_replace_those_of_its_runtime(
    rule: str, resources: dict[str, Any]
) -> None:
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": manifests.metadata("x"),
        "spec": {"trainer": {"resourcesPerNode": resources}},
    }
    assert judge(rule, manifest)
    assert judge(rule, changed(manifest, ("spec/trainer/resourcesPerNode", REMOVED))) == []
