"""Ways to make controllers add more to a workload than its manifest states."""

from typing import Any

from tests.policies.ways.demand import over_budget
from tests.policies.ways.kinds import WEB
from tests.policies.ways.way import Way, way

ANNOTATIONS = "0/spec/template/metadata/annotations"
PREDICTOR = "0/spec/predictor"
MODE = "0/metadata/annotations/serving.kserve.io~deploymentMode"
REVISIONS = "0/spec/template/metadata/annotations/autoscaling.knative.dev~max-scale"
BATCH = {"app.kubernetes.io/component": "batch"}
NODE = "0/spec/template/spec/replicatedJobs/0/template/spec/template"
TRAINER = {"numNodes": 8}


def annotated(key: str, value: str = "true") -> Way:
    """Return an edit that annotates the pods of a model server."""
    edit = (ANNOTATIONS, {key: value})
    return way(f"the annotation {key}", "g01_vllm_deployment", "annotations-bounded", edit)


def added(description: str, version: str, kind: str, rules: str, **fields: Any) -> Way:
    """Return an edit that adds a cluster-scoped object."""
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": "added"}, **fields}
    return way(description, WEB, rules, ("1", manifest))


def runtime(*edits: tuple[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return a one-GPU runtime labeled as batch, without a queue, gang and scheduler."""
    return (("0/metadata/labels", BATCH), (f"{NODE}/metadata", {"labels": BATCH}), *edits)


FLAVOR = "kueue.x-k8s.io/v1beta1"
EVERY_TAINT = [{"operator": "Exists"}]

WAYS = [
    # update surges of Deployments created by operators
    over_budget(
        "the update surge of a NIMService", "nim_service", 3, ("0/spec/scale/hpa/maxReplicas", 3)
    ),
    over_budget(
        "the update surge of an InferenceService",
        "kserve_custom_predictor",
        4,
        (f"{PREDICTOR}/maxReplicas", 4),
    ),
    over_budget(
        "the explicit update surge of an InferenceService",
        "kserve_custom_predictor",
        4,
        (f"{PREDICTOR}/deploymentStrategy", {"rollingUpdate": {"maxSurge": "300%"}}),
    ),
    over_budget(
        "the old revision of an InferenceService", "kserve_custom_predictor", 4, (MODE, "Knative")
    ),
    over_budget("the old revision of a Knative Service", "knative_gpu", 4, (REVISIONS, "3")),
    over_budget(
        "the update surge of an LLMInferenceService",
        "llmisvc_single_gpu",
        4,
        ("0/spec/replicas", 4),
    ),
    over_budget(
        "the update surge of Dynamo's workers",
        "dynamo_components",
        3,
        ("0/spec/components/1/replicas", 3),
    ),
    # runtimes whose number of pods is set in another object
    way(
        "a multi-node runtime labeled as batch",
        "train_job_with_runtime",
        "training-queue-named training-scheduler",
        *runtime(
            (f"{NODE}/spec/schedulerName", "default-scheduler"),
            (f"{NODE}/spec/containers/0/resources/limits/nvidia.com~gpu", 1),
            ("0/spec/mlPolicy/numNodes", 1),
            ("2/spec/trainer", TRAINER),
        ),
    ),
    # annotations read by runtimes, sandboxes, networks and sidecars
    *map(
        annotated,
        [
            "io.katacontainers.config.hypervisor.path",
            "io.kubernetes.cri-o.TrustedSandbox",
            "io.kubernetes.cri-o.userns-mode",
            "run.oci.hooks.stdout",
            "dev.gvisor.flag.network",
            "io.containerd.runc.v2.group",
            "mounts.nri.containerd.io/main",
            "ulimits.noderesource.dev/container.main",
            "k8s.v1.cni.cncf.io/networks",
            "v1.multus-cni.io/default-network",
            "iam.amazonaws.com/role",
            "proxy.istio.io/overrides",
            "vault.hashicorp.com/agent-json-patch",
            "vault.hashicorp.com/agent-init-json-patch",
            "vault.hashicorp.com/agent-run-as-user",
            "sidecar.istio.io/userVolume",
            "sidecar.istio.io/proxyImage",
            "config.linkerd.io/proxy-image",
            "vault.hashicorp.com/agent-image",
            "dapr.io/sidecar-image",
            "dapr.io/volume-mounts-rw",
            "cpu-quota.crio.io",
            "seccomp-profile.kubernetes.cri-o.io/main",
            "hooks.kubevirt.io/hookSidecars",
            "cni.projectcalico.org/ipAddrsNoIpam",
            "cni.projectcalico.org/allowedSourcePrefixes",
            "sidecar.istio.io/bootstrapOverride",
            "config.linkerd.io/enable-debug-sidecar",
            "vault.security.banzaicloud.io/vault-env-image",
            "consul.hashicorp.com/consul-sidecar-user-volume",
            "kuma.io/container-patches",
            "appmesh.k8s.aws/volumeMounts",
            "admission.datadoghq.com/python-lib.custom-image",
        ],
    ),
    # objects that extend pods or nodes
    added(
        "devices not published by a driver",
        "resource.k8s.io/v1",
        "ResourceSlice",
        "device-names-kept",
        spec={
            "driver": "gpu.nvidia.com",
            "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 99, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    ),
    added(
        "a CSI driver that receives API server tokens",
        "storage.k8s.io/v1",
        "CSIDriver",
        "api-extensions-trusted",
        spec={"tokenRequests": [{"audience": ""}]},
    ),
    added(
        "a Kueue flavor that tolerates every taint",
        FLAVOR,
        "ResourceFlavor",
        "tolerations-bounded",
        spec={"tolerations": EVERY_TAINT},
    ),
    added(
        "a runtime class that tolerates every taint",
        "node.k8s.io/v1",
        "RuntimeClass",
        "tolerations-bounded",
        handler="gvisor",
        scheduling={"tolerations": EVERY_TAINT},
    ),
]

HARMLESS = [
    *(
        way(
            f"the harmless annotation {name}", "g01_vllm_deployment", "", (ANNOTATIONS, {name: "a"})
        )
        for name in ("cni.projectcalico.org/podIP", "vault.hashicorp.com/role", "kuma.io/mesh")
    ),
    way(
        "an InferenceService that stops old pods before an update",
        "kserve_custom_predictor",
        "",
        (f"{PREDICTOR}/maxReplicas", 4),
        (f"{PREDICTOR}/deploymentStrategy", {"type": "Recreate"}),
        gpu_budget={"maxGpus": 4},
    ),
    way(
        "an annotation allowed by the configuration",
        "g01_vllm_deployment",
        "",
        (ANNOTATIONS, {"k8s.v1.cni.cncf.io/networks": "rdma"}),
        annotations_bounded={"allowedAnnotations": ["k8s.v1.cni.cncf.io/networks"]},
    ),
    way(
        "annotations that do not change pods",
        "g01_vllm_deployment",
        "",
        (
            ANNOTATIONS,
            {
                "prometheus.io/scrape": "true",
                "sidecar.istio.io/inject": "true",
                "vault.hashicorp.com/agent-inject": "true",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "kubectl.kubernetes.io/default-container": "main",
                "client.knative.dev/user-image": "ghcr.io/team/server:1.0",
            },
        ),
    ),
    added(
        "a CSI driver that receives tokens for a cloud",
        "storage.k8s.io/v1",
        "CSIDriver",
        "",
        spec={"tokenRequests": [{"audience": "sts.amazonaws.com"}]},
    ),
    added(
        "a runtime class for nodes with one taint",
        "node.k8s.io/v1",
        "RuntimeClass",
        "",
        handler="gvisor",
        scheduling={"tolerations": [{"key": "sandbox", "operator": "Exists"}]},
    ),
]
"""Additions that no rule rejects."""
