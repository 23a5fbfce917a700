"""Accelerator detection: extended resources, claims and other ways to request devices."""

from typing import Any

import pytest

from kube.accelerators import Accelerators
from tests.policies import manifests
from tests.policies.harness import REMOVED, UNKNOWN_VALUE, Manifest, changed, evaluate_rule

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


def test_other_devices_can_be_added_by_configuration() -> None:
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


def exact_request(**device: Any) -> dict[str, Any]:
    return {"exactly": {"deviceClassName": "gpu.nvidia.com", **device}}


def claiming_job(**source: str) -> Manifest:
    """Return a job with two pods whose GPUs come from a claim."""
    named = source or {"resourceClaimTemplateName": "gpus"}
    return job(
        *WITHOUT_GPU,
        (f"{MAIN}/resources/claims", [{"name": "gpus"}]),
        (f"{POD}/resourceClaims", [{"name": "gpus", **named}]),
    )


def test_claims_count_as_the_gpus_of_a_job() -> None:
    assert evaluate_rule("gpu-limit-present", claiming_job()) == []


@pytest.mark.parametrize(
    ("rule", "edits"),
    [
        ("shm-mounted", [(f"{MAIN}/volumeMounts/0", REMOVED)]),
        ("gpu-memory-guaranteed", [(f"{LIMITS}/memory", REMOVED)]),
        ("gpu-toleration", [(f"{POD}/tolerations", [])]),
    ],
)
def test_gpu_rules_apply_to_containers_with_claims(rule: str, edits: list[tuple[str, Any]]) -> None:
    assert evaluate_rule(rule, claiming_job()) == []
    assert evaluate_rule(rule, changed(claiming_job(), *edits))
    assert evaluate_rule(
        rule, changed(claiming_job(), *edits), config={"claimDevices": {"*/gpus": 1}}
    )


def test_claim_configured_with_zero_devices_is_not_a_gpu() -> None:
    manifest = changed(claiming_job(), (f"{POD}/tolerations", []))
    config = {"claimDevices": {"training/gpus": 0}}
    assert evaluate_rule("gpu-toleration", manifest, config=config) == []


@pytest.mark.parametrize(
    "request_",
    [
        exact_request(count=8),
        {"deviceClassName": "gpu.nvidia.com", "count": 8},
        {
            "firstAvailable": [
                {"name": "big", "deviceClassName": "gpu.nvidia.com", "count": 2},
                {"name": "small", "deviceClassName": "gpu.nvidia.com", "count": 8},
            ]
        },
        {"firstAvailable": [], **exact_request(count=8)},
        {"firstAvailable": [], "deviceClassName": "gpu.nvidia.com", "count": 8},
    ],
    ids=[
        "v1 format",
        "v1beta1 format",
        "alternatives",
        "v1 format with empty alternatives",
        "v1beta1 format with empty alternatives",
    ],
)
def test_budget_counts_the_devices_in_claims(request_: dict[str, Any]) -> None:
    stack = (template(**request_), claiming_job())
    assert evaluate_rule("gpu-budget", *stack, config={"maxGpus": 16}) == []
    (message,) = evaluate_rule("gpu-budget", *stack, config={"maxGpus": 15})
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
def test_gpu_memory_and_core_amounts_are_not_counted_as_devices(limits: dict[str, int]) -> None:
    resources = {"requests": {}, "limits": {"cpu": 1, **limits}}
    spec = manifests.pod_spec()
    spec["containers"][0]["resources"] = resources
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": manifests.metadata("a"), "spec": spec}
    assert evaluate_rule("gpu-budget", pod, config={"maxGpus": 1}) == []
    assert evaluate_rule("gpu-budget", pod, config={"maxGpus": 0})


def test_budget_message_states_the_gpus_without_update_surge() -> None:
    (message,) = evaluate_rule("gpu-budget", manifests.deployment(), config={"maxGpus": 1})
    assert "found 3 GPUs (2 without autoscaling or update surge) in the whole stack" in message


def test_claim_for_all_devices_of_a_node_exceeds_any_budget() -> None:
    stack = (template(**exact_request(allocationMode="All")), claiming_job())
    assert evaluate_rule("gpu-budget", *stack, config={"maxGpus": 1_000_000})


def test_budget_counts_each_request_of_a_shared_claim_once() -> None:
    requests = [{"name": name, **exact_request(count=2)} for name in ("first", "second")]
    claim = {**template(), "kind": "ResourceClaim", "spec": {"devices": {"requests": requests}}}
    stack = (claim, claiming_job(resourceClaimName="gpus"))
    assert evaluate_rule("gpu-budget", *stack, config={"maxGpus": 4}) == []
    assert evaluate_rule("gpu-budget", *stack, config={"maxGpus": 3})


def test_budget_counts_the_configured_devices_of_external_claims() -> None:
    config = {"maxGpus": 15, "claimDevices": {"training/*": 8}}
    assert "found 16 GPUs" in evaluate_rule("gpu-budget", claiming_job(), config=config)[0]


def test_claimed_devices_are_priced_by_device_class() -> None:
    config = {"hourlyPrices": {"gpu.nvidia.com": 2}, "maxHourlyCost": 3}
    assert evaluate_rule("gpu-cost", template(**exact_request()), claiming_job(), config=config)


def test_unlimited_number_of_priced_devices_is_reported() -> None:
    config = {"hourlyPrices": {"gpu.nvidia.com": 2}, "maxHourlyCost": 3}
    stack = (template(**exact_request(allocationMode="All")), claiming_job())
    (message,) = evaluate_rule("gpu-cost", *stack, config=config)
    assert "found an unlimited number of priced GPUs" in message


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ((claiming_job(),), 'resourceClaimTemplateName: found "gpus"'),
        (
            (template(**exact_request()), claiming_job(resourceClaimName="gpus")),
            "resourceClaimName: found",
        ),
        ((claiming_job(source="old"),), "resourceClaimName: not set"),
        (
            (
                template(**exact_request()),
                changed(claiming_job(), (f"{MAIN}/resources/claims", REMOVED)),
            ),
            "resourceClaims[0]: found",
        ),
    ],
    ids=[
        "undeclared template",
        "template referenced as a claim",
        "reference without a name",
        "claim not used by a container",
    ],
)
def test_claims_that_cannot_be_resolved_are_rejected(
    stack: tuple[Manifest, ...], expected: str
) -> None:
    (message,) = evaluate_rule("claim-declared", *stack)
    assert expected in message


def test_gke_annotation_may_share_the_gpus_of_a_pod_with_a_sidecar() -> None:
    annotations = {"devices.gke.io/container.tcpxo-daemon": "- path: /dev/nvidia0"}
    edit = ("spec/template/metadata/annotations", annotations)
    assert evaluate_rule("gpu-limit-present", changed(manifests.deployment(), edit)) == []
    without_gpus = changed(
        manifests.deployment(), edit, ("spec/template/spec/containers/0/resources", {})
    )
    assert any(
        "/dev/nvidia0" in message for message in evaluate_rule("gpu-limit-present", without_gpus)
    )


@pytest.mark.parametrize("creation", [UNKNOWN_VALUE, {"devices": UNKNOWN_VALUE}])
def test_claim_of_a_nim_service_with_unknown_fields_is_not_reported_as_undeclared(
    creation: Any,
) -> None:
    service = {
        "apiVersion": "apps.nvidia.com/v1alpha1",
        "kind": "NIMService",
        "metadata": manifests.metadata("nim"),
        "spec": {"draResources": [{"claimCreationSpec": creation}]},
    }
    assert evaluate_rule("claim-declared", service) == []
    service["spec"] = {"draResources": [{}]}
    assert evaluate_rule("claim-declared", service)


def test_declared_claims_pass() -> None:
    assert evaluate_rule("claim-declared", template(**exact_request()), claiming_job()) == []
    assert (
        evaluate_rule(
            "claim-declared", claiming_job(), config={"claimDevices": {"training/gpus": 1}}
        )
        == []
    )


def test_claim_template_created_by_a_compute_domain_counts_as_declared() -> None:
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": manifests.metadata("imex"),
        "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "gpus"}}},
    }
    assert evaluate_rule("claim-declared", domain, claiming_job()) == []


@pytest.mark.parametrize(
    "request_",
    [
        exact_request(allocationMode="All"),
        exact_request(adminAccess=True),
        exact_request(count="8"),
        exact_request(count=0),
        {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
        {"firstAvailable": [{"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}]},
        {"firstAvailable": [], **exact_request(allocationMode="All")},
        {"firstAvailable": [], "deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
        {"firstAvailable": [{"deviceClassName": "dra.cpu"}], **exact_request(allocationMode="All")},
        {"exactly": {"deviceClassName": "dra.cpu", "adminAccess": True}},
    ],
)
def test_claims_for_an_uncounted_number_of_devices_are_rejected(request_: dict[str, Any]) -> None:
    claim = template(**request_)
    assert evaluate_rule("claim-devices-counted", claim)
    config = {"systemWorkloads": ["training/ResourceClaimTemplate/gpus"]}
    assert evaluate_rule("claim-devices-counted", claim, config=config) == []


def test_claims_for_all_devices_of_a_non_gpu_class_pass() -> None:
    claim = template(exact_request={"deviceClassName": "mrdma.google.com", "allocationMode": "All"})
    assert evaluate_rule("claim-devices-counted", claim) == []


def test_claims_of_api_versions_without_requests_are_rejected() -> None:
    claim = template(version="v1alpha2")
    claim["spec"] = {"spec": {"resourceClassName": "gpu.nvidia.com"}}
    assert evaluate_rule("claim-devices-counted", claim)


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
    assert evaluate_rule(rule, manifest)
    assert evaluate_rule(rule, changed(manifest, ("spec/trainer/resourcesPerNode", REMOVED))) == []
