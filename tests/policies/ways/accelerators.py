"""Ways to use an accelerator that is not recognized as one."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.roles import SERVER, without_probes
from tests.policies.ways.way import Way, way

NAMES = [
    *("amd.com/mi300x", "aws.amazon.com/neuroncore", "cambricon.com/mlu370", "enflame.com/gcu"),
    *("furiosa.ai/rngd", "google.com/tpu", "habana.ai/gaudi2", "huawei.com/Ascend910"),
    *("hygon.com/dcunum", "iluvatar.ai/vgpu", "intel.com/xe", "metax-tech.com/gpu"),
    *("nvidia.com/GH200_480GB", "qualcomm.com/qaic", "rebellions.ai/ATOM", "team.example.com/x"),
    *("tencent.com/vcuda-core", "volcano.sh/vgpu-number", "xilinx.com/fpga-u250"),
]
TEMPLATE = "0/spec/spec/devices/requests/0"
CLAIMING = "1/spec/template/spec"
CLAIMED = without_probes(f"{CLAIMING}/containers/0")
WEB = "0/spec/template"
WEB_SERVER = f"{WEB}/spec/containers/0"


def _named(name: str) -> Way:
    resources = {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi", name: 4}}
    edits = ((f"{SERVER}/resources", resources), *without_probes())
    return way(f"{name} without probes", "vllm_tensor_parallel", "inference-probes", *edits)


def _visible(variable: dict[str, Any], description: str) -> Way:
    edit = (f"{WEB_SERVER}/env", [{"name": "NVIDIA_VISIBLE_DEVICES", **variable}])
    return way(f"NVIDIA_VISIBLE_DEVICES {description}", "ordinary_web_application", "", edit)


WAYS = [
    *map(_named, NAMES),
    _visible({"value": "all"}, "with all GPUs"),
    _visible({"value": "0,1"}, "by index"),
    _visible({"value": "GPU-8c9a5b4e-0000-0000-0000-000000000000"}, "by UUID"),
    _visible({"value": "nvidia.com/gpu=all"}, "by CDI name"),
    _visible({"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}, "from a ConfigMap"),
    *(
        way(
            f"variables with the prefix {prefix}",
            "ordinary_web_application",
            "gpu-limit-present",
            (f"{WEB_SERVER}/envFrom", [{"prefix": prefix, "configMapRef": {"name": "a"}}]),
        )
        for prefix in ("NVIDIA_", "NVIDIA_VISIBLE_DEV", "A")
    ),
    way(
        "the NVIDIA runtime class without a GPU",
        "ordinary_web_application",
        "",
        (f"{WEB}/spec/runtimeClassName", "nvidia"),
    ),
    way(
        "a CDI annotation",
        "ordinary_web_application",
        "",
        (f"{WEB}/metadata/annotations", {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}),
    ),
    way(
        "a GPU fraction through a KAI annotation",
        "ordinary_web_application",
        "",
        (f"{WEB}/metadata/annotations", {"gpu-fraction": "0.5"}),
    ),
    way(
        "GPU memory through a KAI annotation",
        "ordinary_web_application",
        "",
        (f"{WEB}/metadata/annotations", {"gpu-memory": "40000"}),
    ),
    way(
        "the device file of a GPU",
        "ordinary_web_application",
        "no-host-path",
        (f"{WEB}/spec/volumes", [{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]),
    ),
    way("a GPU through DRA without probes", "dra_resource_claim", "inference-probes", *CLAIMED),
    way(
        "a training Job with a GPU through DRA but without shared memory",
        "dra_resource_claim",
        "",
        ("1/kind", "Job"),
        ("1/apiVersion", "batch/v1"),
        (f"{CLAIMING}/restartPolicy", "Never"),
    ),
    way(
        "a claim declared outside the stack",
        "dra_resource_claim",
        "inference-probes",
        ("0/metadata/name", "another"),
        *CLAIMED,
    ),
    way(
        "a claim instead of a claim template",
        "dra_resource_claim",
        "inference-probes",
        ("0/kind", "ResourceClaim"),
        (
            "0/spec",
            {
                "devices": {
                    "requests": [
                        {
                            "name": "gpu",
                            "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8},
                        }
                    ]
                }
            },
        ),
        (f"{CLAIMING}/resourceClaims", [{"name": "gpu", "resourceClaimName": "gpu"}]),
        *CLAIMED,
    ),
    way(
        "eight GPUs through DRA with a budget of two",
        "dra_resource_claim",
        "gpu-budget",
        (f"{TEMPLATE}/exactly/count", 8),
        gpu_budget={"maxGpus": 3},
    ),
    way(
        "all GPUs of a node through DRA",
        "dra_resource_claim",
        "gpu-budget claim-devices-counted",
        (f"{TEMPLATE}/exactly/allocationMode", "All"),
        gpu_budget={"maxGpus": 3},
    ),
    way(
        "one or eight GPUs through DRA with firstAvailable",
        "dra_resource_claim",
        "gpu-budget",
        (
            TEMPLATE,
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "small", "deviceClassName": "gpu.nvidia.com", "count": 1},
                    {"name": "large", "deviceClassName": "gpu.nvidia.com", "count": 8},
                ],
            },
        ),
        gpu_budget={"maxGpus": 3},
    ),
    way(
        "all GPUs of a node through DRA with an empty firstAvailable",
        "dra_resource_claim",
        "claim-devices-counted",
        (f"{TEMPLATE}/firstAvailable", []),
        (f"{TEMPLATE}/exactly/allocationMode", "All"),
    ),
    way(
        "eight GPUs through DRA in v1beta1 format",
        "dra_resource_claim",
        "gpu-budget",
        ("0/apiVersion", "resource.k8s.io/v1beta1"),
        (TEMPLATE, {"name": "gpu", "deviceClassName": "gpu.nvidia.com", "count": 8}),
        gpu_budget={"maxGpus": 3},
    ),
    way(
        "admin access to all GPUs through DRA",
        "dra_resource_claim",
        "",
        (f"{TEMPLATE}/exactly/adminAccess", True),
    ),
    way(
        "unhealthy GPUs through DRA",
        "dra_resource_claim",
        "claim-devices-counted",
        (f"{TEMPLATE}/exactly/tolerations", [{"operator": "Exists"}]),
    ),
    way(
        "a GPU only in an init container",
        "ordinary_web_application",
        "gpu-toleration",
        (
            f"{WEB}/spec/initContainers",
            [
                {
                    "name": "train",
                    "image": "ghcr.io/team/train:1.0",
                    "resources": {
                        "limits": {"nvidia.com/gpu": 8, "memory": "64Gi"},
                        "requests": {"cpu": "8"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        ),
    ),
    way(
        "a sidecar GPU beyond the budget",
        "vllm_tensor_parallel",
        "gpu-budget",
        (
            "0/spec/template/spec/initContainers",
            [
                {
                    "name": "side",
                    "image": "ghcr.io/team/side:1.0",
                    "restartPolicy": "Always",
                    "resources": {
                        "limits": {"nvidia.com/gpu": 4, "memory": "64Gi"},
                        "requests": {"cpu": "8"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        ),
        gpu_budget={"maxGpus": 12},
    ),
    way(
        "a GPU request without a limit",
        "vllm_tensor_parallel",
        "gpu-requests-equal-limits",
        (f"{SERVER}/resources/limits/nvidia.com~gpu", REMOVED),
    ),
    way(
        "a GPU from another vendor without a price",
        "vllm_tensor_parallel",
        "gpu-cost",
        (
            f"{SERVER}/resources",
            {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi", "amd.com/gpu": 4}},
        ),
        gpu_cost={"hourlyPrices": {"nvidia.com/gpu": 2}, "maxHourlyCost": 24},
    ),
    way(
        "Spark executor GPUs with another resource name",
        "spark_application",
        "",
        ("0/spec/executor/gpu", {"name": "team.example.com/x", "quantity": 8}),
        gpu_budget={"maxGpus": 12},
    ),
    way(
        "GPUs of Dynamo's services",
        "dynamo_services",
        "gpu-budget",
        ("0/spec/services/decode/resources/limits/gpu", "8"),
        gpu_budget={"maxGpus": 8},
    ),
]

OTHER_DEVICES = [
    *("rdma/hca", "rdma/roce_gdr", "vpc.amazonaws.com/efa", "networking.gke.io.networks/rdma-0"),
    *("devices.kubevirt.io/kvm", "hugepages-2Mi", "smarter-devices/fuse", "nvidia.com/hostdev"),
    *("openshift.io/mlx5_vf", "vpc.amazonaws.com/pod-eni", "nvidia.com/rdma_shared_device_a"),
]
"""Extended and native resources that are not accelerators."""

HARMLESS = [
    way(
        "variables with an application prefix",
        "ordinary_web_application",
        "",
        (
            f"{WEB_SERVER}/envFrom",
            [
                {"prefix": "NVIDIA_API_", "secretRef": {"name": "a"}},
                {"prefix": "", "configMapRef": {"name": "a"}},
            ],
        ),
    ),
    way(
        "NVIDIA_VISIBLE_DEVICES set to none",
        "ordinary_web_application",
        "",
        (f"{WEB_SERVER}/env", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]),
    ),
    way(
        "NVIDIA_VISIBLE_DEVICES set to void",
        "ordinary_web_application",
        "",
        (f"{WEB_SERVER}/env", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]),
    ),
    way(
        "a memory request in another notation than the limit",
        "g01_vllm_deployment",
        "",
        (f"{WEB_SERVER}/resources/requests/memory", 64 * 2**30),
    ),
    *(
        way(
            f"{name} without probes",
            "ordinary_web_application",
            "",
            (f"{WEB_SERVER}/resources/limits/{name.replace('/', '~')}", 1),
            (f"{WEB_SERVER}/resources/requests/{name.replace('/', '~')}", 1),
            *without_probes(WEB_SERVER),
        )
        for name in OTHER_DEVICES
    ),
]
"""Edits that look like accelerators but do not use any."""
