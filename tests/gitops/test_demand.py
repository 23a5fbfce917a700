from decimal import Decimal
from typing import Any

import pytest

from gitops.demand import Demand, demands
from kube.kinds import KINDS as JOB_KINDS
from kube.kinds import JobKind, kinds_that_support
from policies.resources import Resource
from policies.views import View
from tests.gitops import plans
from tests.infra import jobs
from tests.policies import manifests


def demands_of(*found: dict[str, Any]) -> list[Demand]:
    return demands([View(Resource(plans.kind(m), m)) for m in found])


KINDS = ["volcano_job", "batch_job", "pytorch_job", "deployment"]


@pytest.mark.parametrize("name", KINDS)
def test_gpus_are_found_in_every_kind_of_workload(name: str) -> None:
    found = demands_of(getattr(manifests, name)())
    assert found
    assert all(demand.gpus for demand in found)
    assert all(demand.pods for demand in found)


@pytest.mark.parametrize("kind", [kind for kind in JOB_KINDS if kind not in ("plain", "notebook")])
def test_every_job_kind_requests_nodes_times_gpus_in_its_queue(kind: str) -> None:
    found = demands_of(*jobs.objects(jobs.job(kind, nodes=4, gpus_per_node=4)))
    with_gpus = [demand for demand in found if demand.gpus]
    assert sum(d.total(d.requests, "nvidia.com/gpu") for d in with_gpus) == 16
    assert {(d.queue, d.role) for d in with_gpus} == {("research", "training")}


@pytest.mark.parametrize(("gpus", "role"), [(1, "interactive"), (4, "training")])
def test_a_notebook_requests_its_gpus_in_its_queue(gpus: int, role: str) -> None:
    (demand,) = demands_of(*jobs.objects(jobs.job("notebook", gpus_per_node=gpus)))
    assert demand.total(demand.requests, "nvidia.com/gpu") == gpus
    assert (demand.queue, demand.role) == ("research", role)


@pytest.mark.parametrize("kind", kinds_that_support("state: suspended"))
def test_a_suspended_job_requests_nothing(kind: JobKind) -> None:
    found = demands_of(*jobs.objects(jobs.job(kind, nodes=4, state="suspended")))
    assert sum(d.total(d.requests, "nvidia.com/gpu") for d in found) == 0


def test_a_job_that_kueue_resumes_requests_its_gpus() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": plans.metadata("a", labels={"kueue.x-k8s.io/queue-name": "research"}),
        "spec": {"suspend": True, "parallelism": 2, "template": {"spec": plans.pod(gpus=4)}},
    }
    (demand,) = demands_of(job)
    assert demand.total(demand.requests, "nvidia.com/gpu") == 8


def test_gpus_outside_of_containers_are_counted() -> None:
    worker = {"replicas": 3, "resources": {"limits": {"gpu": "2"}}}
    deployment = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": plans.metadata("disagg"),
        "spec": {"services": {"decode": worker}},
    }
    (demand,) = [each for each in demands_of(deployment) if each.gpus]
    assert (demand.total(demand.requests, "nvidia.com/gpu"), demand.role) == (6, "serving")


@pytest.mark.parametrize(("shared", "gpus"), [(False, 4), (True, 2)])
def test_devices_of_claims_are_counted_per_pod_or_once_if_pods_share_them(
    shared: bool, gpus: int
) -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    devices = {"devices": {"requests": [request]}}
    kind = "ResourceClaim" if shared else "ResourceClaimTemplate"
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": plans.metadata("gpus"),
        "spec": devices if shared else {"spec": devices},
    }
    job = plans.volcano_job(pods=2, gpus=0)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    source = {"resourceClaimName" if shared else "resourceClaimTemplateName": "gpus"}
    pod["resourceClaims"] = [{"name": "gpus", **source}]
    found = demands_of(claim, job)
    name = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    assert sum(each.gpus.get(name, 0) * (each.pods or 0) for each in found) == gpus


def test_a_pod_requests_the_larger_of_all_containers_and_each_init_container() -> None:
    job = plans.volcano_job(gpus=2)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    pod["containers"].append({"name": "b", "resources": {"requests": {"nvidia.com/gpu": 1}}})
    big = {"name": "i", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "64"}}}
    pod["initContainers"] = [big, big]
    (demand,) = demands_of(job)
    assert demand.gpus == {"nvidia.com/gpu": Decimal(3)}
    assert demand.requests["cpu"] == 64
    assert demand.total(demand.requests, "nvidia.com/gpu") == 6


@pytest.mark.parametrize(
    ("resources", "cpu", "limit"),
    [
        ({"requests": {"cpu": "8"}, "limits": {"cpu": "16"}}, 8, 16),
        ({"limits": {"cpu": "16"}}, 6, 16),
        ({"limits": {"memory": "1Gi"}}, 6, 4),
    ],
)
def test_resources_of_the_pod_replace_the_sum_of_its_containers(
    resources: dict[str, Any], cpu: int, limit: int
) -> None:
    job = plans.volcano_job(gpus=2, resources=resources)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    pod["containers"].append({"name": "b", "resources": {"requests": {"cpu": "2"}}})
    (demand,) = demands_of(job)
    assert (demand.requests["cpu"], demand.gpus) == (cpu, {"nvidia.com/gpu": 2})
    assert demand.limits["cpu"] == limit


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "volcano.sh/vgpu-number"])
def test_gpu_memory_does_not_count_as_gpus(name: str) -> None:
    job = plans.volcano_job()
    (container,) = job["spec"]["tasks"][0]["template"]["spec"]["containers"]
    memory = {"nvidia.com/gpumem": "3000", "volcano.sh/vgpu-memory": "3000"}
    container["resources"]["limits"] = {name: "1", **memory}
    (demand,) = demands_of(job)
    assert demand.gpus == {name: 1}


def test_sidecar_requests_are_added_to_the_containers() -> None:
    job = plans.volcano_job(gpus=2)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    sidecar = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "restartPolicy": "Always"}
    pod["initContainers"] = [{"name": "i", **sidecar}]
    (demand,) = demands_of(job)
    assert demand.gpus == {"nvidia.com/gpu": Decimal(3)}


def test_sidecar_requests_are_added_to_later_init_containers() -> None:
    job = plans.volcano_job(gpus=2)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    first, last = ({"name": n, "resources": {"limits": {"cpu": "60"}}} for n in "ac")
    sidecar = {"name": "b", "restartPolicy": "Always", "resources": {"limits": {"cpu": "10"}}}
    pod["initContainers"] = [first, sidecar, last]
    (demand,) = demands_of(job)
    assert demand.requests["cpu"] == 70


def test_an_autoscaler_decides_the_number_of_pods() -> None:
    target = {"kind": "Deployment", "name": "digits"}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": plans.metadata("digits"),
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 5},
    }
    (demand,) = demands_of(plans.deployment(replicas=None), scaler)
    assert (demand.min_pods, demand.pods) == (1, 5)


def test_keda_decides_the_number_of_pods_and_may_scale_to_zero() -> None:
    scaler = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": plans.metadata("digits"),
        "spec": {"scaleTargetRef": {"name": "digits"}, "maxReplicaCount": 5},
    }
    (demand,) = demands_of(plans.deployment(replicas=None), scaler)
    assert (demand.min_pods, demand.pods) == (0, 5)


@pytest.mark.parametrize(
    ("fields", "product"),
    [
        ({}, None),
        ({"product": "NVIDIA-L4"}, "NVIDIA-L4"),
        ({"affinity": ("In", ["B", "A"])}, "A or B"),
        ({"affinity": ("NotIn", ["A"])}, None),
    ],
)
def test_gpu_model_comes_from_the_pods_node_selection(
    fields: dict[str, Any], product: str | None
) -> None:
    if "affinity" in fields:
        operator, values = fields["affinity"]
        expression = {"key": "nvidia.com/gpu.product", "operator": operator, "values": values}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        fields = {"affinity": {"nodeAffinity": required}}
    (demand,) = demands_of(plans.volcano_job(**fields))
    assert demand.product == product


def test_pods_get_the_queue_of_their_podgroup() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": plans.metadata("sweep"),
        "spec": {
            "parallelism": 3,
            "template": {
                "metadata": {"annotations": {"scheduling.k8s.io/group-name": "sweep"}},
                "spec": plans.pod(),
            },
        },
    }
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": plans.metadata("sweep"),
        "spec": {"minMember": 3, "queue": "research"},
    }
    demand = next(iter(demands_of(job, group)))
    assert (demand.queue, demand.pods, demand.role) == ("research", 3, "training")


def test_train_job_without_a_node_count_has_unknown_pods() -> None:
    trainer = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}, "numNodes": 4}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": plans.metadata("llm"),
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": trainer},
    }
    (demand,) = demands_of(job)
    assert demand.total(demand.requests, "nvidia.com/gpu") == 32
    del trainer["numNodes"]
    (demand,) = demands_of(job)
    assert demand.pods is None
    assert demand.total(demand.requests, "nvidia.com/gpu") == 0
