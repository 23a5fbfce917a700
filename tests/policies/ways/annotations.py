"""Ways to annotate pods through fields that controllers copy to their pods."""

from typing import Any

from tests.policies.harness import changed
from tests.policies.ways.changes import DEVICES
from tests.policies.ways.kinds import CONTAINER, SPEC, WEB
from tests.policies.ways.makers import METADATA
from tests.policies.ways.way import Way, way

MONITORS = ("Prometheus", "PrometheusAgent", "Alertmanager", "ThanosRuler")
TASK = {"name": "a", "taskSpec": {"steps": [CONTAINER]}}
OBJECT_ANNOTATIONS = "metadata/annotations"
KINDS: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"minReplicas": 1, "maxReplicas": 1, "containers": [CONTAINER]}},
        (OBJECT_ANNOTATIONS, "spec/predictor/annotations"),
    ),
    (
        "serving.kserve.io/v1alpha1",
        "LLMInferenceService",
        {"template": {"containers": [CONTAINER]}},
        (OBJECT_ANNOTATIONS, "spec/annotations"),
    ),
    (
        "serving.kserve.io/v1alpha1",
        "LLMInferenceServiceConfig",
        {"template": {"containers": [CONTAINER]}},
        ("spec/annotations",),
    ),
    (
        "serving.kserve.io/v1alpha1",
        "InferenceGraph",
        {"nodes": {"root": {"routerType": "Sequence", "steps": [{"serviceName": "a"}]}}},
        (OBJECT_ANNOTATIONS,),
    ),
    ("kubeflow.org/v1", "Notebook", {"template": {"spec": SPEC}}, (OBJECT_ANNOTATIONS,)),
    ("kubeflow.org/v1alpha1", "PodDefault", {"selector": {}}, ("spec/annotations",)),
    *(
        ("monitoring.coreos.com/v1", kind, {"replicas": 1}, ("spec/podMetadata/annotations",))
        for kind in MONITORS
    ),
    *(
        ("argoproj.io/v1alpha1", kind, {}, ("spec/template/metadata/annotations",))
        for kind in ("Sensor", "EventSource")
    ),
    (
        "argoproj.io/v1alpha1",
        "Workflow",
        {"entrypoint": "a", "templates": [{"name": "a", "container": CONTAINER}]},
        ("spec/templateDefaults/metadata/annotations",),
    ),
    (
        "postgresql.cnpg.io/v1",
        "Cluster",
        {"imageName": "ghcr.io/cloudnative-pg/postgresql:16.1"},
        (OBJECT_ANNOTATIONS, "spec/inheritedMetadata/annotations"),
    ),
    ("nvidia.com/v1", "ClusterPolicy", {}, ("spec/daemonsets/annotations",)),
    ("nvidia.com/v1alpha1", "NVIDIADriver", {}, ("spec/annotations",)),
    (
        "nvidia.com/v1alpha1",
        "DynamoGraphDeployment",
        {"services": {"a": {"replicas": 1}}},
        (
            "spec/annotations",
            "spec/services/a/annotations",
            "spec/services/a/extraPodMetadata/annotations",
        ),
    ),
    ("tekton.dev/v1", "Task", {"steps": [CONTAINER]}, (OBJECT_ANNOTATIONS,)),
    ("tekton.dev/v1", "Pipeline", {"tasks": [TASK]}, (OBJECT_ANNOTATIONS,)),
    ("tekton.dev/v1", "TaskRun", {"taskRef": {"name": "a"}}, (OBJECT_ANNOTATIONS,)),
    (
        "tekton.dev/v1",
        "PipelineRun",
        {"pipelineRef": {"name": "a"}, "taskRunSpecs": [{"pipelineTaskName": "a"}]},
        (OBJECT_ANNOTATIONS, "spec/taskRunSpecs/0/metadata/annotations"),
    ),
    (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {"runtimeRef": {"name": "a"}, "podTemplateOverrides": [{"targetJobs": [{"name": "node"}]}]},
        ("spec/podTemplateOverrides/0/metadata/annotations",),
    ),
    (
        "flow.volcano.sh/v1alpha1",
        "JobFlow",
        {"flows": [{"name": "a", "patch": {"jobSpec": {"tasks": [{"name": "node"}]}}}]},
        ("spec/flows/0/patch/jobSpec/tasks/0/template/metadata/annotations",),
    ),
]


def _annotated(version: str, kind: str, spec: Any, place: str, rule: str, *edits: Any) -> Way:
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, "spec": spec}
    annotated = changed(manifest, (place, dict(edits)))
    return way(f"{place} of a {kind} that violate {rule}", WEB, rule, ("0", annotated))


ANNOTATIONS = {
    "annotations-bounded": ("io.kubernetes.cri-o.userns-mode", "host"),
    "gpu-limit-present": (DEVICES, "/dev/nvidia0"),
    "security-profiles-kept": ("container.apparmor.security.beta.kubernetes.io/a", "unconfined"),
    "no-literal-secrets": ("note", "hf_" + "a" * 30),
}

WAYS = [
    _annotated(version, kind, spec, place, rule, annotation)
    for version, kind, spec, places in KINDS
    for place in places
    for rule, annotation in ANNOTATIONS.items()
]

LABELS = {"app.kubernetes.io/component": "training"}
LABELED: list[tuple[str, str, Any, str]] = [
    ("tekton.dev/v1", "PipelineRun", {"pipelineRef": {"name": "a"}}, "metadata/labels"),
    ("argoproj.io/v1alpha1", "EventSource", {}, "spec/template/metadata/labels"),
    ("kubeflow.org/v1alpha1", "PodDefault", {"selector": {}}, "spec/labels"),
    (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {"runtimeRef": {"name": "a"}, "podTemplateOverrides": [{"targetJobs": [{"name": "node"}]}]},
        "spec/podTemplateOverrides/0/metadata/labels",
    ),
]


def _labeled(version: str, kind: str, spec: Any, place: str) -> Way:
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, "spec": spec}
    edit = ("1", changed(manifest, (place, LABELS)))
    return way(f"a role label in {place} of a {kind}", WEB, "", edit)


ANNOTATED = {"metadata": {**METADATA, "annotations": {"sidecar.istio.io/proxyImage": "a:1"}}}
NOT_COPIED = [
    *(("monitoring.coreos.com/v1", kind) for kind in MONITORS),
    ("nvidia.com/v1", "ClusterPolicy"),
]

HARMLESS = [
    *(_labeled(*each) for each in LABELED),
    *(
        way(
            f"an annotation in a {kind} that is not copied to its pods",
            WEB,
            "",
            ("1", {"apiVersion": version, "kind": kind, "spec": {}, **ANNOTATED}),
        )
        for version, kind in NOT_COPIED
    ),
]
