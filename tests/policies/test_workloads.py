from typing import Any

import pytest

from kube.accelerators import Accelerators
from kube.workloads.record import Devices, Role
from policies.pod_parts import devices_at
from policies.pod_search import find_pods
from policies.resources import Resource
from policies.settings import RoleConfig
from policies.values import Node
from policies.views import View
from policies.workloads import Pod
from tests.policies import manifests
from tests.policies.harness import REMOVED, changed, type_of

COMPONENT, WORKLOAD = "app.kubernetes.io/component", "gpu-platform.dev/workload"
POD = {"containers": [{"name": "a"}]}
GPUS_POD = {
    "containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 8}}}],
}
GPU_POD = {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


def pods(version: str, kind: str, spec: Any, **metadata: Any) -> list[Pod]:
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return find_pods(Resource(type_of(manifest), manifest))


def template(spec: Any = None) -> dict[str, Any]:
    return {"template": {"spec": POD if spec is None else spec}}


@pytest.mark.parametrize(
    ("version", "kind", "spec", "paths"),
    [
        ("v1", "Pod", POD, ["spec"]),
        ("apps/v1", "Deployment", template(), ["spec.template.spec"]),
        ("apps/v1", "StatefulSet", template(), ["spec.template.spec"]),
        ("apps/v1", "DaemonSet", template(), ["spec.template.spec"]),
        ("apps/v1", "ReplicaSet", template(), ["spec.template.spec"]),
        ("batch/v1", "Job", template(), ["spec.template.spec"]),
        (
            "batch/v1",
            "CronJob",
            {"jobTemplate": {"spec": template()}},
            ["spec.jobTemplate.spec.template.spec"],
        ),
        (
            "batch.volcano.sh/v1alpha1",
            "Job",
            {"tasks": [template(), template()]},
            ["spec.tasks[0].template.spec", "spec.tasks[1].template.spec"],
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": template(), "Worker": template()}},
            [
                "spec.pytorchReplicaSpecs.Master.template.spec",
                "spec.pytorchReplicaSpecs.Worker.template.spec",
            ],
        ),
        (
            "kubeflow.org/v2beta1",
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": template()}},
            ["spec.mpiReplicaSpecs.Launcher.template.spec"],
        ),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"template": {"spec": template()}}]},
            ["spec.replicatedJobs[0].template.spec.template.spec"],
        ),
        (
            "trainer.kubeflow.org/v1alpha1",
            "TrainingRuntime",
            {"template": {"spec": {"replicatedJobs": [{"template": {"spec": template()}}]}}},
            ["spec.template.spec.replicatedJobs[0].template.spec.template.spec"],
        ),
        (
            "ray.io/v1",
            "RayCluster",
            {"headGroupSpec": template(), "workerGroupSpecs": [template()]},
            ["spec.headGroupSpec.template.spec", "spec.workerGroupSpecs[0].template.spec"],
        ),
        (
            "example.com/v1",
            "Unheard",
            {"deep": [{"er": template()}]},
            ["spec.deep[0].er.template.spec"],
        ),
        ("batch/v1", "JobPatch", template(), ["spec.template.spec"]),
    ],
)
def test_pods_are_found_in_every_kind(version: str, kind: str, spec: Any, paths: list[str]) -> None:
    assert sorted(pod.spec.path for pod in pods(version, kind, spec)) == sorted(paths)


def test_pod_template_is_found_at_the_top_level() -> None:
    manifest = {"apiVersion": "v1", "kind": "PodTemplate", **template()}
    found = find_pods(Resource(type_of(manifest), manifest))
    assert [pod.spec.path for pod in found] == ["template.spec"]


def test_pods_in_the_items_of_a_list_are_found() -> None:
    manifest = {"apiVersion": "v1", "kind": "PodList", "items": [{"spec": POD}]}
    found = View(Resource(type_of(manifest), manifest)).parts("pod")
    assert [pod.spec.path for pod in found] == ["items[0].spec"]
    assert [pod.resource.kind for pod in found] == ["Pod"]


def test_schemas_and_helm_values_are_not_read_as_pods() -> None:
    schema = {"properties": {"containers": [{"name": "a"}]}}
    assert pods("apiextensions.k8s.io/v1", "CustomResourceDefinition", schema) == []
    release = {"values": {"containers": [{"name": "a"}]}}
    assert find_pods(Resource("kubernetes:helm.sh/v3:Release", release)) == []


def test_resources_of_other_pulumi_providers_have_no_pods() -> None:
    assert find_pods(Resource("aws:ecs/taskDefinition:TaskDefinition", {"containers": [{}]})) == []


def test_all_types_of_containers_are_found() -> None:
    spec = {
        "containers": [{"name": "main"}],
        "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
        "ephemeralContainers": [{"name": "debug"}],
    }
    (pod,) = pods("v1", "Pod", spec)
    kinds = {container.name: container.kind for container in pod.containers}
    assert kinds == {"main": "main", "init": "init", "side": "sidecar", "debug": "ephemeral"}


def test_train_job_is_read_as_a_partial_override_of_its_runtime() -> None:
    trainer = {"image": "a:latest", "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
    (pod,) = pods("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": trainer})
    (container,) = pod.containers
    assert container.requests_gpu(Accelerators())
    assert not container.node["securityContext"].known


@pytest.mark.parametrize(
    ("version", "kind", "spec", "labels", "role"),
    [
        (
            "apps/v1",
            "Deployment",
            template(),
            {"app.kubernetes.io/component": "training"},
            "training",
        ),
        (
            "apps/v1",
            "Deployment",
            template(),
            {"gpu-platform.dev/workload": "inference"},
            "serving",
        ),
        ("apps/v1", "Deployment", template(GPU_POD), {}, "serving"),
        ("apps/v1", "Deployment", template(GPU_POD), {COMPONENT: "interactive"}, "interactive"),
        ("apps/v1", "Deployment", template(GPUS_POD), {COMPONENT: "interactive"}, "serving"),
        ("apps/v1", "Deployment", template(), {}, "system"),
        ("batch/v1", "Job", template(GPU_POD), {}, "training"),
        ("batch/v1", "Job", template(GPU_POD), {COMPONENT: "batch"}, "batch"),
        ("batch/v1", "Job", template(GPU_POD), {COMPONENT: "training"}, "training"),
        ("batch/v1", "Job", template(GPUS_POD), {}, "training"),
        ("batch/v1", "Job", {"parallelism": 2, **template(GPU_POD)}, {}, "training"),
        ("batch/v1", "Job", template(GPUS_POD), {COMPONENT: "batch"}, "training"),
        ("batch/v1", "Job", template(GPUS_POD), {COMPONENT: "inference"}, "training"),
        ("batch/v1", "Job", template(GPUS_POD), {COMPONENT: "x"}, "training"),
        ("batch/v1", "Job", template(), {}, "system"),
        (
            "batch.volcano.sh/v1alpha1",
            "Job",
            {"tasks": [template()]},
            {COMPONENT: "inference"},
            "training",
        ),
        ("kubeflow.org/v1", "pytorchjob", {"x": template()}, {}, "training"),
        ("v1", "Pod", {**GPU_POD, "restartPolicy": "Never"}, {}, "batch"),
        ("v1", "Pod", {**GPUS_POD, "restartPolicy": "Never"}, {}, "training"),
        (
            "v1",
            "Pod",
            {**GPUS_POD, "restartPolicy": "Never"},
            {COMPONENT: "inference"},
            "training",
        ),
        ("v1", "Pod", GPU_POD, {}, "serving"),
        ("a.io/v1", "Unheard", template({**GPUS_POD, "restartPolicy": "Never"}), {}, "training"),
        ("apps/v1", "DaemonSet", template(GPU_POD), {}, "serving"),
        ("ray.io/v1", "RayCluster", {"headGroupSpec": template(GPUS_POD)}, {}, "training"),
        ("kubeflow.org/v1", "Notebook", template(GPUS_POD), {}, "interactive"),
    ],
)
def test_labels_and_kinds_determine_the_role_of_a_pod(
    version: str, kind: str, spec: Any, labels: dict[str, str], role: str
) -> None:
    (pod,) = pods(version, kind, spec, labels=labels)
    assert pod.role(RoleConfig()) == role


def test_role_of_a_pod_depends_on_the_settings_of_the_rule() -> None:
    labels = {"app.kubernetes.io/component": "render"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
    (pod,) = pods("apps/v1", "Deployment", {"template": template})
    roles: list[Role] = ["interactive", "batch"]
    assert [pod.role(RoleConfig(component_roles={"render": role})) for role in roles] == roles


def test_replicas_of_nested_templates_are_multiplied() -> None:
    spec = {
        "replicatedJobs": [{"replicas": 3, "template": {"spec": {"parallelism": 4, **template()}}}]
    }
    (pod,) = pods("jobset.x-k8s.io/v1alpha2", "JobSet", spec)
    assert pod.replicas == 12


def test_resource_names_come_from_the_manifest_or_from_pulumi() -> None:
    job = manifests.volcano_job()
    resource = Resource(type_of(job), job, name="pulumi-name")
    assert resource.title == 'Job "digits" in namespace "training"'
    assert resource.address == "training/Job.batch.volcano.sh/digits"
    nameless = changed(job, ("metadata/name", REMOVED))
    assert Resource(type_of(job), nameless, name="pulumi-name").name == "pulumi-name"


def test_volumes_are_indexed_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"volume-{number}" for number in range(40)]
    spec = {**POD, "volumes": [{"name": name, "emptyDir": {}} for name in names]}
    (pod,) = pods("v1", "Pod", spec)
    pod.volume(Node(names[0]))
    monkeypatch.delattr(Node, "items")
    assert all(pod.volume(Node(name)) is not None for name in names)


@pytest.mark.parametrize(("requests", "limits"), [("4", "2"), ("2", "4"), ("2", "x")])
def test_largest_device_count_from_limits_and_requests_is_used(requests: str, limits: str) -> None:
    places = [Devices(each=each, resource="gpu", count="gpu") for each in ("requests", "limits")]
    spec = Node({"requests": {"gpu": requests}, "limits": {"gpu": limits}})
    # Invalid quantities are kept so that the rules can reject them.
    assert devices_at(spec, places) == {"gpu": "x" if limits == "x" else "4"}
