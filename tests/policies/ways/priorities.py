"""Ways to get a priority through fields outside the pod specification."""

from typing import Any

from tests.policies.harness import changed
from tests.policies.ways.kinds import CONTAINER, SPEC, WEB
from tests.policies.ways.makers import METADATA
from tests.policies.ways.tenants import added
from tests.policies.ways.way import Way, way

CRITICAL = "system-node-critical"
TEMPLATES = [{"name": "a", "container": CONTAINER}]
GANG = "spec/runPolicy/schedulingPolicy/priorityClass"
TASKS = [{"name": "a", "replicas": 1, "template": {"spec": SPEC}}]
KINDS: list[tuple[str, str, Any, str, Any]] = [
    *(
        ("argoproj.io/v1alpha1", "Workflow", {"templates": TEMPLATES}, f"spec/{field}", value)
        for field, value in (("podPriorityClassName", CRITICAL), ("podPriority", 2_000_001_000))
    ),
    (
        "argoproj.io/v1alpha1",
        "CronWorkflow",
        {"schedule": "* * * * *", "workflowSpec": {"templates": TEMPLATES}},
        "spec/workflowSpec/podPriorityClassName",
        CRITICAL,
    ),
    *(
        (
            version,
            kind,
            {specs: {"Worker": {"replicas": 1, "template": {"spec": SPEC}}}},
            GANG,
            CRITICAL,
        )
        for version, kind, specs in (
            ("kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs"),
            ("kubeflow.org/v1", "TFJob", "tfReplicaSpecs"),
            ("kubeflow.org/v2beta1", "MPIJob", "mpiReplicaSpecs"),
            ("kubeflow.org/v1", "XGBoostJob", "xgbReplicaSpecs"),
        )
    ),
    (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
        {"image": "ghcr.io/team/spark:1.2", "driver": {}, "executor": {}},
        "spec/batchSchedulerOptions/priorityClassName",
        CRITICAL,
    ),
    (
        "sparkoperator.k8s.io/v1beta2",
        "ScheduledSparkApplication",
        {"template": {"image": "ghcr.io/team/spark:1.2", "driver": {}, "executor": {}}},
        "spec/template/batchSchedulerOptions/priorityClassName",
        CRITICAL,
    ),
    (
        "batch.volcano.sh/v1alpha1",
        "CronJob",
        {"jobTemplate": {"spec": {"tasks": TASKS}}},
        "spec/jobTemplate/spec/priorityClassName",
        CRITICAL,
    ),
    (
        "ray.io/v1",
        "RayCluster",
        {"headGroupSpec": {"template": {"spec": SPEC}}},
        "metadata/labels/ray.io~priority-class-name",
        CRITICAL,
    ),
]


def _prioritized(version: str, kind: str, spec: Any, place: str, value: Any) -> Way:
    manifest = {"apiVersion": version, "kind": kind, "metadata": METADATA, "spec": spec}
    edit = ("0", changed(manifest, (place, value)))
    return way(f"a system priority in {place} of a {kind}", WEB, "priority-not-of-system", edit)


WAYS = [
    *(_prioritized(*kind) for kind in KINDS),
    added(
        "a system priority in an unknown kind without pods",
        "config.koordinator.sh/v1alpha1",
        "ClusterColocationProfile",
        "priority-class-bounded",
        spec={"selector": {}, "priorityClassName": CRITICAL},
    ),
]
