"""Test cases that violate each rule."""

from tests.policies import manifests
from tests.policies.harness import (
    LIMITS,
    MAIN,
    POD,
    REMOVED,
    REQUESTS,
    SERVER,
    Case,
    Manifest,
    changed,
    job,
)
from tests.policies.security_cases import SECURITY_CASES

DIGEST = "0123456789abcdef" * 4


def promoted_service() -> Manifest:
    """Return a server with a promoted model as an image volume."""
    model = f"registry.example.com/models/digits@sha256:{DIGEST}"
    return changed(
        manifests.deployment(),
        # Other servers in the stack serve models that have not been promoted.
        ("spec/template/metadata/labels/example.com~role", "inference"),
        (f"{SERVER}/image", f"registry.example.com/ml/inference@sha256:{DIGEST}"),
        (f"{SERVER}/command", ["python3", "-m", "inference"]),
        (f"{SERVER}/volumeMounts", [{"name": "model", "mountPath": "/models"}]),
        ("spec/template/spec/volumes", [{"name": "model", "image": {"reference": model}}]),
    )


def promoted_models() -> Manifest:
    metadata = {"name": "promoted-models", "namespace": "gpu-platform-models"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def claim_template() -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": "training"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def sweep_template() -> Manifest:
    """Return the job template for the trials of a sweep."""
    job = manifests.volcano_job()
    bounds = {"parallel": "2", "trials": "24", "gpu-hours": "12"}
    annotations = {f"gpu-platform.dev/sweep-{name}": value for name, value in bounds.items()}
    kind = {"apiVersion": "flow.volcano.sh/v1alpha1", "kind": "JobTemplate"}
    return {**job, **kind, "metadata": {**job["metadata"], "annotations": annotations}}


CASES = [
    job("manifest-readable", (f"{MAIN}/volumeMounts", "none"), reports=("volumeMounts", '"none"')),
    job("manifest-readable", (f"{POD}/containers", [None]), reports=("containers[0]", "an object")),
    job(
        "kind-known",
        ("kind", "Trainer"),
        reports=("an unknown kind", '"kinds": {"Trainer.batch.volcano.sh"'),
    ),
    job(
        "gpu-limit-present",
        (f"{LIMITS}/nvidia.com~gpu", REMOVED),
        (f"{REQUESTS}/nvidia.com~gpu", REMOVED),
        reports=("resources.limits", "no GPU limit", "nvidia.com/gpu"),
    ),
    job(
        "gpu-requests-equal-limits",
        (f"{LIMITS}/nvidia.com~gpu", REMOVED),
        reports=('limits["nvidia.com/gpu"]: not set', 'write "1"', "is only in requests"),
    ),
    job(
        "gpu-requests-equal-limits",
        (f"{REQUESTS}/nvidia.com~gpu", 2),
        reports=('requests["nvidia.com/gpu"]: found 2', 'write "1"'),
    ),
    job(
        "gpu-counts-whole",
        (f"{LIMITS}/nvidia.com~gpu", 0),
        reports=("found 0", "an integer such as 1"),
    ),
    job("gpu-counts-whole", (f"{LIMITS}/nvidia.com~gpu", 1.5), reports=("found 1.5",)),
    job("gpu-memory-guaranteed", (f"{LIMITS}/memory", REMOVED), reports=("limits.memory", "16Gi")),
    job(
        "gpu-memory-guaranteed",
        (f"{REQUESTS}/memory", "2Gi"),
        reports=('requests.memory: found "2Gi"', '"4Gi"'),
    ),
    job("gpu-cpu-requested", (f"{REQUESTS}/cpu", REMOVED), reports=("requests.cpu: not set",)),
    job("gpu-cpu-requested", (f"{REQUESTS}/cpu", "0"), reports=('found "0"',)),
    job("gpu-toleration", (f"{POD}/tolerations", []), reports=("tolerations: found []", "Exists")),
    job(
        "gpu-toleration",
        (f"{POD}/tolerations/0/key", "other"),
        reports=("tolerations", "nvidia.com/gpu"),
    ),
    job(
        "gpu-whole-nodes",
        config={"gpusPerNode": 8},
        reports=(
            'limits["nvidia.com/gpu"]: found "1"',
            "write 8 nvidia.com/gpu per pod, all GPUs of a node",
        ),
    ),
    job(
        "gpu-not-shared",
        (f"{LIMITS}/nvidia.com~gpu.shared", 2),
        reports=('limits["nvidia.com/gpu.shared"]: found 2', "write 1, or whole GPUs"),
    ),
    job(
        "shm-per-gpu",
        (f"{POD}/volumes/0/emptyDir/sizeLimit", "512Mi"),
        reports=('sizeLimit: found "512Mi"', "at least 1Gi, 1Gi per GPU"),
    ),
    job(
        "training-ends",
        (f"{POD}/activeDeadlineSeconds", REMOVED),
        reports=("activeDeadlineSeconds: not set", "in seconds"),
    ),
    Case(
        "priority-class-known",
        manifests.priority_class,
        reports=('priorityClassName: found "training"', "a priority class of this stack"),
        removed=True,
    ),
    job(
        "shm-mounted",
        (f"{MAIN}/volumeMounts/0", REMOVED),
        reports=("volumeMounts", '["/checkpoints"]', "/dev/shm", "sizeLimit"),
    ),
    job(
        "shm-bounded-memory",
        (f"{POD}/volumes/0/emptyDir/medium", REMOVED),
        reports=("volumes[0].emptyDir.medium: not set", '"Memory"'),
    ),
    job(
        "shm-bounded-memory",
        (f"{POD}/volumes/0/emptyDir/sizeLimit", REMOVED),
        reports=("volumes[0].emptyDir.sizeLimit", "1Gi"),
    ),
    job(
        "shm-fits-memory",
        (f"{POD}/volumes/0/emptyDir/sizeLimit", "8Gi"),
        reports=("8Gi", "at most 3276Mi", '"4Gi"'),
    ),
    job(
        "shm-not-from-host",
        (f"{POD}/volumes/0", {"name": "shm", "hostPath": {"path": "/dev/shm"}}),
        reports=("volumes[0].hostPath", "emptyDir"),
    ),
    job("training-scheduler", ("spec/schedulerName", REMOVED), reports=('"volcano"',)),
    job(
        "training-scheduler",
        (f"{POD}/schedulerName", "default-scheduler"),
        reports=('found "default-scheduler"',),
    ),
    job("training-queue-named", ("spec/queue", REMOVED), reports=("spec.queue: not set",)),
    job("training-queue-declared", ("spec/queue", "typo"), reports=('found "typo"', "research")),
    job("training-gang-whole", ("spec/minAvailable", 1), reports=("found 1", "write 2")),
    job("training-gang-whole", ("spec/minAvailable", REMOVED), reports=("not set", "write 2")),
    Case(
        "training-pod-group-whole",
        manifests.pod_group,
        (("spec/minMember", 1),),
        ("spec.minMember: found 1", "write 2"),
    ),
    Case(
        "training-pod-group-whole",
        manifests.pod_group,
        reports=("group-name", "a PodGroup of this stack"),
        removed=True,
    ),
    job(
        "training-retries-bounded",
        (f"{POD}/restartPolicy", "Always"),
        reports=("restartPolicy", '"Never"'),
    ),
    job(
        "training-retries-bounded",
        ("spec/maxRetry", 100),
        reports=("spec.maxRetry", "from 1 to 10"),
    ),
    Case(
        "gpu-job-not-awaited",
        manifests.batch_job,
        (("metadata/annotations/pulumi.com~skipAwait", REMOVED),),
        ('annotations["pulumi.com/skipAwait"]: not set', '"true"'),
    ),
    job("host-network-dns", (f"{POD}/hostNetwork", True), reports=("dnsPolicy", "WithHostNet")),
    *SECURITY_CASES,
    Case(
        "checkpoints-shared",
        manifests.claim,
        (("spec/accessModes", ["ReadWriteOnce"]),),
        ('spec.accessModes: found ["ReadWriteOnce"]', "ReadWriteMany", '"digits"'),
    ),
    Case(
        "checkpoints-kept",
        manifests.storage_class,
        (("reclaimPolicy", "Delete"),),
        ("reclaimPolicy Retain", "protect"),
    ),
    Case(
        "inference-probes",
        manifests.deployment,
        ((f"{SERVER}/startupProbe", REMOVED),),
        ("startupProbe: not set",),
    ),
    Case(
        "inference-spread",
        manifests.deployment,
        (("spec/template/spec/topologySpreadConstraints", REMOVED),),
        ("topologySpreadConstraints: not set", "kubernetes.io/hostname"),
    ),
    Case(
        "inference-disruption-budget",
        manifests.disruption_budget,
        reports=("a PodDisruptionBudget that selects these pods",),
        removed=True,
    ),
    Case(
        "autoscaled-without-replicas",
        manifests.deployment,
        reports=("spec.replicas: found 2", 'HorizontalPodAutoscaler "server"'),
        others=(manifests.autoscaler,),
    ),
    Case(
        "autoscaled-without-replicas",
        manifests.deployment,
        reports=("spec.replicas: found 2", 'ScaledObject "server"'),
        others=(manifests.scaled_object,),
    ),
    Case(
        "inference-grace-period",
        manifests.deployment,
        (
            ("spec/template/spec/terminationGracePeriodSeconds", 25),
            (f"{SERVER}/lifecycle", {"preStop": {"sleep": {"seconds": 2}}}),
            (
                f"{SERVER}/env",
                [
                    {"name": "INFERENCE_NOTICE_SECONDS", "value": "3"},
                    {"name": "INFERENCE_DRAIN_SECONDS", "value": "20"},
                ],
            ),
        ),
        ("terminationGracePeriodSeconds: found 25", "more than 25 seconds"),
    ),
    Case(
        "inference-rolling-update",
        manifests.deployment,
        (("spec/strategy", {"type": "Recreate"}),),
        ('spec.strategy.type: found "Recreate"', "maxUnavailable 0"),
    ),
    Case(
        "inference-rolling-update",
        manifests.deployment,
        (("spec/strategy", {"rollingUpdate": {"maxUnavailable": "50%"}}),),
        ('maxUnavailable: found "50%"', "remove 1 of the pods"),
    ),
    Case(
        "inference-rolling-update",
        manifests.deployment,
        (("spec/replicas", 8),),
        ("maxUnavailable: not set", "remove 2 of the pods"),
    ),
    Case(
        "route-backends-declared",
        manifests.http_route,
        (("spec/rules/0/backendRefs/0/name", "servre"),),
        ('spec.rules[0].backendRefs[0].name: found "servre"', "Service of this stack"),
    ),
    Case(
        "helm-release-judged",
        manifests.helm_release,
        reports=(
            'spec.chart.spec.chart: found "volcano", a chart whose objects no rule has checked',
            "helm template volcano volcano --repo https://charts.example.com --version 1.15.1",
            "| python -m policies.check -",
        ),
    ),
    job(
        "gpu-budget",
        config={"maxGpus": 6},
        reports=(
            "found 10 GPUs (9 without autoscaling or update surge",
            "in the whole stack",
            "at most 6",
        ),
    ),
    job(
        "gpu-budget",
        config={"maxGpusPerQueue": {"research": 2}},
        reports=("7 GPUs in queue research", "at most 2"),
    ),
    job(
        "gpu-cost",
        config={"hourlyPrices": {"nvidia.com/gpu": 2.5}, "maxHourlyCost": 10},
        reports=("found GPUs that cost 25 an hour", "at most 10"),
    ),
    Case(
        "claim-devices-counted",
        claim_template,
        (("spec/spec/devices/requests/0/exactly/allocationMode", "All"),),
        reports=("allocationMode", '"ExactCount"'),
    ),
    job(
        "claim-declared",
        (f"{POD}/resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": "absent"}]),
        reports=("resourceClaimTemplateName", "the name of a ResourceClaimTemplate of this stack"),
    ),
    job("node-not-chosen", (f"{POD}/nodeName", "gpu-1"), reports=("nodeName", "the scheduler")),
    Case(
        "queue-quota-bounded",
        manifests.queue,
        (("spec/capability", {"nvidia.com/gpu": 1_000_000}),),
        reports=("capability", "at most"),
    ),
    Case(
        "model-signed",
        promoted_service,
        ((f"{SERVER}/image", "registry.example.com/own:1.0.0"),),
        reports=("image", "registry.example.com/own:1.0.0"),
        config={
            "repositories": ["registry.example.com/models/*"],
            "images": ["registry.example.com/ml/inference@sha256:*"],
            "componentLabels": ["example.com/role"],
        },
    ),
    Case(
        "model-lineage-complete",
        promoted_models,
        (("data", {DIGEST: f"registry.example.com/models/digits@sha256:{DIGEST}"}),),
        reports=("data", "`models promote`"),
    ),
    Case(
        "sweep-bounded",
        sweep_template,
        (("metadata/annotations/gpu-platform.dev~sweep-trials", "many"),),
        reports=("sweep-trials", "a number"),
    ),
    Case(
        "sweep-preemptible",
        sweep_template,
        ((f"{POD}/priorityClassName", REMOVED),),
        reports=("priorityClassName", "a priority class of this stack"),
    ),
    job(
        "notebook-token",
        (f"{MAIN}/command", ["jupyter", "lab"]),
        reports=("env", "JUPYTER_TOKEN as valueFrom.secretKeyRef"),
    ),
    job(
        "notebook-token",
        (f"{MAIN}/command", ["jupyter", "lab", "--ServerApp.token=''"]),
        reports=("command", "without the argument that disables the token"),
    ),
    job(
        "notebook-preemptible",
        (f"{MAIN}/command", ["jupyter", "lab"]),
        (f"{POD}/priorityClassName", REMOVED),
        reports=("priorityClassName", "a priority class of this stack"),
    ),
]
