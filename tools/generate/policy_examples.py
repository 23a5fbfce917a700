"""A bad and a good example for every rule in docs/policies.md. All examples are tested.

Examples of pod rules are pod specifications. The other examples are shortened manifests.
"""

from __future__ import annotations

from textwrap import dedent

from tools.generate.security_examples import SECURITY, Example, example, with_limits

SETTINGS: dict[str, dict[str, object]] = {
    "gpu-whole-nodes": {"gpusPerNode": 8},
    "image-registry-allowed": {"allowedRegistries": ["registry.example.com/team"]},
    "gpu-budget": {"maxGpus": 12},
    "gpu-cost": {"hourlyPrices": {"nvidia.com/gpu": 2.5}, "maxHourlyCost": 30},
    "model-signed": {
        "repositories": ["registry.example.com/models/*"],
        "images": ["registry.example.com/ml/inference@sha256:*"],
    },
}
"""Settings for the examples of rules that require settings."""


def _sweep(bad: str, good: str, priority: str = "") -> Example:
    """Return sweep templates with these annotations. Only the good one has the priority class."""
    frame = (
        "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobTemplate\nmetadata:\n  name: digits-sweep\n"
        '  annotations:\n    gpu-platform.dev/sweep-parallel: "4"\n'
        '    gpu-platform.dev/sweep-gpu-hours: "12"\n    gpu-platform.dev/{text}\nspec:\n'
        "  queue: research\n{priority}  tasks:\n    - replicas: 2\n      template:\n"
        "        spec:\n{pod}"
        "          containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]"
    )
    line = f"priorityClassName: {priority}\n" if priority else ""
    chosen = {"priority": line and f"  {line}", "pod": line and f"          {line}"}
    return Example(frame.format(text=bad, priority="", pod=""), frame.format(text=good, **chosen))


def _volcano(bad: str, good: str) -> Example:
    """Return Volcano Jobs with two pods and these fields."""
    frame = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: digits}}\nspec:\n"
        "  {text}\n  tasks:\n    - replicas: 2\n      template:\n        spec:\n"
        "          restartPolicy: Never\n          activeDeadlineSeconds: 86400\n"
        "          containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]"
    )
    return Example(frame.format(text=bad), frame.format(text=good))


def _training_pod(bad: str, good: str) -> Example:
    """Return Volcano Jobs whose pods have these fields."""
    frame = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: digits}}\nspec:\n"
        "  tasks:\n    - replicas: 2\n      template:\n        spec:\n          {text}\n"
        "          containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]"
    )
    return Example(frame.format(text=bad), frame.format(text=good))


def _shm(bad: str, good: str) -> Example:
    """Return pods with 16Gi of memory, four GPUs and these volumes at /dev/shm."""
    frame = (
        "containers:\n  - name: main\n"
        "    resources: {{limits: {{memory: 16Gi, nvidia.com/gpu: 4}}}}\n"
        "    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]\n"
        "volumes:\n  - name: shm\n    {text}"
    )
    return Example(frame.format(text=bad), frame.format(text=good))


_GPU_DEPLOYMENT = (
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: server, namespace: ml}\nspec:\n"
    "  replicas: 2\n  template:\n"
    "    metadata: {labels: {app: server, app.kubernetes.io/component: inference}}\n"
    "    spec:\n      containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]"
)
_TRAINING_JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: digits, namespace: ml}
spec:
  queue: research
  tasks:
    - replicas: 2
      template:
        spec:
          priorityClassName: training
          containers:
            - name: main
              resources: {limits: {nvidia.com/gpu: 8}}
              volumeMounts: [{name: checkpoints, mountPath: /checkpoints}]
          volumes:
            - name: checkpoints
              persistentVolumeClaim: {claimName: checkpoints}"""
_POD_WITH_CLAIM = """\
apiVersion: v1
kind: Pod
metadata: {name: notebook, namespace: ml}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]
  containers:
    - name: main
      resources: {claims: [{name: gpu}]}"""
_JOB_IN_GROUP = """\
apiVersion: batch/v1
kind: Job
metadata: {name: digits, namespace: ml}
spec:
  parallelism: 2
  template:
    metadata: {annotations: {scheduling.k8s.io/group-name: digits}}
    spec:
      containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8}}}]"""


def _with_second(manifest: str, bad: str, good: str) -> Example:
    """Return an example that starts with `manifest`, followed by the text for each case.

    If `bad` is empty, the bad example contains only `manifest`.
    """
    good = f"{manifest}\n---\n{dedent(good).strip()}"
    return Example(f"{manifest}\n---\n{dedent(bad).strip()}" if bad else manifest, good)


def _claim(modes: str, storage_class: str) -> str:
    return (
        "apiVersion: v1\nkind: PersistentVolumeClaim\n"
        "metadata: {name: checkpoints, namespace: ml}\n"
        f"spec: {{accessModes: [{modes}], storageClassName: {storage_class}}}"
    )


def _gpu_claim(devices: str) -> str:
    return (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n"
        "metadata: {name: one-gpu, namespace: ml}\nspec:\n  spec:\n    devices:\n"
        "      requests:\n        - name: gpu\n"
        f"          exactly: {{deviceClassName: gpu.nvidia.com, {devices}}}"
    )


def _cluster_queue(gpus: int) -> str:
    return (
        "apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: team}\nspec:\n"
        "  resourceGroups:\n    - coveredResources: [nvidia.com/gpu]\n      flavors:\n"
        "        - name: h100\n"
        f"          resources: [{{name: nvidia.com/gpu, nominalQuota: {gpus}}}]"
    )


def _storage_class(policy: str) -> str:
    return (
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: shared}\n"
        f"reclaimPolicy: {policy}"
    )


_DIGEST = "0123456789abcdef" * 4
_MODEL = f"registry.example.com/models/digits@sha256:{_DIGEST}"
_CLAIM_VOLUME = "persistentVolumeClaim: {claimName: checkpoints}"
_FETCH_CONTAINER = f"""initContainers:
  - name: fetch
    image: registry.example.com/ml/inference@sha256:{_DIGEST}
    command:
      - python3
      - -m
      - inference.fetch
      - oci://{_MODEL}
      - /models/export
    volumeMounts: [{{name: models, mountPath: /models}}]
"""
_SERVER_POD = f"""automountServiceAccountToken: false
{{fetch}}containers:
  - name: inference
    image: registry.example.com/ml/inference@sha256:{_DIGEST}
    command: [python3, -m, inference]
    volumeMounts: [{{{{name: models, mountPath: /models, readOnly: true}}}}]
volumes:
  - name: models
    {{models}}"""


def _promoted(entry: str) -> str:
    """Return the ConfigMap of promoted models with a single entry."""
    return (
        "apiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: promoted-models, namespace: gpu-platform-models}\n"
        f"data:\n  {_DIGEST}: >-\n    {entry}"
    )


EXAMPLES: dict[str, Example] = {
    "kind-known": example(
        """
        apiVersion: example.com/v1
        kind: Trainer
        metadata: {name: digits, namespace: training}
        spec: {worker: {image: registry.example.com/train:1.4.0}}
        """,
        """
        apiVersion: batch/v1
        kind: Job
        metadata: {name: digits, namespace: training}
        spec:
          template:
            spec:
              restartPolicy: Never
              containers: [{name: worker, image: registry.example.com/train:1.4.0}]
        """,
    ),
    "manifest-readable": with_limits("many", "{limits: {cpu: 4}}"),
    "gpu-limit-present": Example(
        _TRAINING_JOB.replace("{limits: {nvidia.com/gpu: 8}}", "{limits: {memory: 16Gi}}"),
        _TRAINING_JOB,
    ),
    "gpu-requests-equal-limits": with_limits(
        "{requests: {nvidia.com/gpu: 1}}", "{limits: {nvidia.com/gpu: 1}}"
    ),
    "gpu-counts-whole": with_limits(
        '{limits: {nvidia.com/gpu: "0.5"}}', "{limits: {nvidia.com/gpu: 1}}"
    ),
    "gpu-memory-guaranteed": with_limits(
        "{requests: {memory: 8Gi}, limits: {memory: 16Gi, nvidia.com/gpu: 1}}",
        "{requests: {memory: 16Gi}, limits: {memory: 16Gi, nvidia.com/gpu: 1}}",
    ),
    "gpu-cpu-requested": with_limits(
        "{limits: {nvidia.com/gpu: 1}}", "{requests: {cpu: 4}, limits: {nvidia.com/gpu: 1}}"
    ),
    "gpu-toleration": example(
        """
        containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
        """,
        """
        containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
        tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
        """,
    ),
    "gpu-whole-nodes": Example(_TRAINING_JOB.replace("gpu: 8", "gpu: 4"), _TRAINING_JOB),
    "gpu-not-shared": with_limits(
        "{limits: {nvidia.com/gpu.shared: 2}}", "{limits: {nvidia.com/gpu.shared: 1}}"
    ),
    "claim-devices-counted": Example(_gpu_claim("allocationMode: All"), _gpu_claim("count: 1")),
    "claim-declared": _with_second(_POD_WITH_CLAIM, "", _gpu_claim("count: 1")),
    "shm-mounted": example(
        """
        containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
        """,
        """
        containers:
          - name: main
            resources: {limits: {nvidia.com/gpu: 1}}
            volumeMounts: [{name: shm, mountPath: /dev/shm}]
        volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]
        """,
    ),
    "shm-bounded-memory": _shm("emptyDir: {}", "emptyDir: {medium: Memory, sizeLimit: 8Gi}"),
    "shm-fits-memory": _shm(
        "emptyDir: {medium: Memory, sizeLimit: 32Gi}", "emptyDir: {medium: Memory, sizeLimit: 8Gi}"
    ),
    "shm-per-gpu": _shm(
        "emptyDir: {medium: Memory, sizeLimit: 1Gi}", "emptyDir: {medium: Memory, sizeLimit: 8Gi}"
    ),
    "shm-not-from-host": _shm(
        "hostPath: {path: /dev/shm}", "emptyDir: {medium: Memory, sizeLimit: 8Gi}"
    ),
    "training-scheduler": _volcano("schedulerName: default-scheduler", "schedulerName: volcano"),
    "training-queue-named": _volcano("minAvailable: 2", "queue: research"),
    "training-queue-declared": _with_second(
        _TRAINING_JOB,
        "",
        """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: research}""",
    ),
    "node-not-chosen": Example(
        "nodeName: gpu-1\ncontainers: [{name: main}]",
        "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\ncontainers: [{name: main}]",
    ),
    "queue-quota-bounded": Example(_cluster_queue(1000000), _cluster_queue(16)),
    "training-gang-whole": _volcano("minAvailable: 1", "minAvailable: 2"),
    "training-pod-group-whole": _with_second(
        _JOB_IN_GROUP,
        """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: digits, namespace: ml}
spec: {minMember: 1, queue: research}""",
        """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: digits, namespace: ml}
spec: {minMember: 2, queue: research}""",
    ),
    "training-retries-bounded": _volcano("maxRetry: 1000", "maxRetry: 3"),
    "training-ends": _training_pod("restartPolicy: Never", "activeDeadlineSeconds: 86400"),
    "priority-class-known": _with_second(
        _TRAINING_JOB,
        "",
        """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: training}
value: 100""",
    ),
    "gpu-job-not-awaited": Example(
        _JOB_IN_GROUP,
        _JOB_IN_GROUP.replace(
            "namespace: ml}", 'namespace: ml, annotations: {pulumi.com/skipAwait: "true"}}'
        ),
    ),
    **SECURITY,
    "namespace-gpu-quota": _with_second(
        _TRAINING_JOB,
        "",
        """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: ml}
spec: {hard: {requests.nvidia.com/gpu: 16}}""",
    ),
    "namespace-default-deny": _with_second(
        _TRAINING_JOB,
        "",
        """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: default-deny, namespace: ml}
spec: {podSelector: {}, policyTypes: [Ingress]}""",
    ),
    "checkpoints-shared": _with_second(
        _TRAINING_JOB, _claim("ReadWriteOnce", "shared"), _claim("ReadWriteMany", "shared")
    ),
    "checkpoints-kept": _with_second(
        _claim("ReadWriteMany", "shared"), _storage_class("Delete"), _storage_class("Retain")
    ),
    "inference-probes": example(
        "containers: [{name: main, ports: [{containerPort: 8080}]}]",
        """
        containers:
          - name: main
            ports: [{containerPort: 8080}]
            startupProbe: {httpGet: {path: /v2/health/ready, port: 8080}}
            readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}}
            livenessProbe: {httpGet: {path: /v2/health/live, port: 8080}}
        """,
    ),
    "inference-spread": Example(
        _GPU_DEPLOYMENT,
        _GPU_DEPLOYMENT
        + "\n      topologySpreadConstraints:\n"
        + "        - maxSkew: 1\n          topologyKey: kubernetes.io/hostname\n"
        + "          labelSelector: {matchLabels: {app: server}}",
    ),
    "inference-disruption-budget": _with_second(
        _GPU_DEPLOYMENT,
        "",
        """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: server, namespace: ml}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: server}}}""",
    ),
    "autoscaled-without-replicas": example(
        """
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: server}
        spec: {replicas: 2}
        ---
        apiVersion: autoscaling/v2
        kind: HorizontalPodAutoscaler
        metadata: {name: server}
        spec: {minReplicas: 2, maxReplicas: 8, scaleTargetRef: {kind: Deployment, name: server}}
        """,
        """
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: server}
        spec: {}
        ---
        apiVersion: autoscaling/v2
        kind: HorizontalPodAutoscaler
        metadata: {name: server}
        spec: {minReplicas: 2, maxReplicas: 8, scaleTargetRef: {kind: Deployment, name: server}}
        """,
    ),
    "inference-grace-period": example(
        """
        terminationGracePeriodSeconds: 20
        containers:
          - name: main
            lifecycle: {preStop: {sleep: {seconds: 2}}}
            env: [{name: INFERENCE_DRAIN_SECONDS, value: "20"}]
        """,
        """
        terminationGracePeriodSeconds: 30
        containers:
          - name: main
            lifecycle: {preStop: {sleep: {seconds: 2}}}
            env: [{name: INFERENCE_DRAIN_SECONDS, value: "20"}]
        """,
    ),
    "inference-rolling-update": Example(
        _GPU_DEPLOYMENT + "\n  strategy: {type: Recreate}",
        _GPU_DEPLOYMENT + "\n  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0}}",
    ),
    "route-backends-declared": _with_second(
        """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: digits, namespace: ml}
spec:
  rules:
    - backendRefs:
        - {name: digits, port: 8080, weight: 80}
        - {name: digits-canary, port: 8080, weight: 20}
---
apiVersion: v1
kind: Service
metadata: {name: digits, namespace: ml}""",
        "",
        """
apiVersion: v1
kind: Service
metadata: {name: digits-canary, namespace: ml}""",
    ),
    "helm-release-judged": example(
        """
        apiVersion: helm.toolkit.fluxcd.io/v2
        kind: HelmRelease
        metadata: {name: volcano, namespace: volcano-system}
        spec: {chart: {spec: {chart: volcano, version: 1.15.1}}}
        """,
        """
        # helm template volcano volcano --namespace volcano-system | python -m policies.check -
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: volcano-scheduler, namespace: volcano-system}
        """,
    ),
    "gpu-budget": Example(_TRAINING_JOB, _TRAINING_JOB.replace("replicas: 2", "replicas: 1")),
    "gpu-cost": Example(_TRAINING_JOB, _TRAINING_JOB.replace("replicas: 2", "replicas: 1")),
    "model-signed": Example(
        _SERVER_POD.format(fetch="", models=_CLAIM_VOLUME),
        _SERVER_POD.format(fetch=_FETCH_CONTAINER, models="emptyDir: {sizeLimit: 2Gi}"),
    ),
    "model-lineage-complete": Example(
        _promoted(f"{_MODEL}"),
        _promoted(
            f"{_MODEL} run=digits-1a2b3c4d specification=1a2b3c4d\n    data=sha256:{_DIGEST}\n"
            f"    code=registry.example.com/ml/training@sha256:{_DIGEST}\n"
            f"    metrics=accuracy:0.98 policies=passed key={_DIGEST}"
        ),
    ),
    "sweep-bounded": _sweep("sweep-trials: many", 'sweep-trials: "24"'),
    "sweep-preemptible": _sweep('sweep-trials: "24"', 'sweep-trials: "24"', "sweeps"),
    "notebook-token": example(
        """
        containers:
          - name: notebook
            command: [jupyter, lab, --ip=0.0.0.0, --IdentityProvider.token=]
        """,
        """
        containers:
          - name: notebook
            command: [jupyter, lab, --ip=0.0.0.0]
            env:
              - {name: JUPYTER_TOKEN, valueFrom: {secretKeyRef: {name: anna, key: token}}}
        """,
    ),
    "notebook-preemptible": example(
        """
        apiVersion: batch.volcano.sh/v1alpha1
        kind: Job
        metadata: {name: anna}
        spec:
          queue: research
          tasks:
            - template:
                spec: {containers: [{name: notebook, command: [jupyter, lab]}]}
        """,
        """
        apiVersion: batch.volcano.sh/v1alpha1
        kind: Job
        metadata: {name: anna}
        spec:
          queue: research
          tasks:
            - template:
                spec:
                  priorityClassName: notebooks
                  containers: [{name: notebook, command: [jupyter, lab]}]
        """,
    ),
}
