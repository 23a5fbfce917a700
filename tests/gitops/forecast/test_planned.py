"""Gangs that Volcano will schedule for the manifests of a plan."""

from typing import Any

import pytest

from gitops.forecast.planned import planned_gangs
from gitops.forecast.state import Gang
from policies.evaluation import resource_of
from policies.views import View
from tests.gitops.forecast.states import GPU, TAKEN

POD: dict[str, Any] = {
    "schedulerName": "volcano",
    "containers": [{"name": "main", "resources": {"limits": {GPU: 4}}}],
}


def manifest(version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "job", "namespace": "ml", **metadata},
        "spec": spec,
    }


def gangs(*manifests: dict[str, Any]) -> list[Gang]:
    return list(planned_gangs([View(resource_of(each)) for each in manifests], TAKEN).gangs)


def omitted(*manifests: dict[str, Any]) -> list[str]:
    return list(planned_gangs([View(resource_of(each)) for each in manifests], TAKEN).omitted)


def volcano(**spec: Any) -> dict[str, Any]:
    tasks = [{"name": "worker", "replicas": 3, "template": {"spec": POD}}]
    return manifest("batch.volcano.sh/v1alpha1", "Job", {"tasks": tasks, "queue": "vision", **spec})


def test_volcano_job_defines_its_whole_gang() -> None:
    (gang,) = gangs(volcano(minAvailable=2, priorityClassName="urgent"))
    assert (gang.key, gang.queue, gang.priority_class) == (("ml", "job"), "vision", "urgent")
    assert (gang.minimum, gang.size, gang.state) == (2, 3, "pending")
    assert gang.pods[0].requests == {GPU: "4"}


def test_volcano_job_needs_all_its_pods_by_default() -> None:
    (gang,) = gangs(volcano())
    assert gang.minimum == 3


def test_job_takes_minimum_and_queue_from_its_podgroup() -> None:
    template = {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "group"}}, "spec": POD}
    spec = {"parallelism": 4, "completions": 4, "activeDeadlineSeconds": 600, "template": template}
    group = manifest(
        "scheduling.volcano.sh/v1beta1", "PodGroup", {"minMember": 2, "queue": "lab"}, name="group"
    )
    (gang,) = gangs(manifest("batch/v1", "Job", spec), group)
    assert (gang.minimum, gang.size, gang.queue, gang.deadline_seconds) == (2, 4, "lab", 600)


def test_pods_of_a_job_without_a_gang_start_individually() -> None:
    spec = {"parallelism": 4, "completions": 4, "template": {"spec": POD}}
    (gang,) = gangs(manifest("batch/v1", "Job", spec))
    assert (gang.minimum, gang.size, gang.queue) == (1, 4, "default")


def test_pods_without_a_maximum_have_the_requested_number() -> None:
    workers = {"replicas": 2, "minReplicas": 1, "groupName": "gpu", "template": {"spec": POD}}
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {"template": {"spec": POD}},
        "workerGroupSpecs": [workers],
    }
    (gang,) = gangs(manifest("ray.io/v1", "RayJob", {"rayClusterSpec": spec}))
    assert gang.size == 3


def test_task_with_a_negative_number_of_pods_has_no_gang() -> None:
    task = {"name": "worker", "replicas": -1, "template": {"spec": POD}}
    assert gangs(volcano(tasks=[task])) == []


def test_a_suspended_job_is_a_suspended_gang() -> None:
    spec = {"parallelism": 1, "suspend": True, "template": {"spec": POD}}
    (gang,) = gangs(manifest("batch/v1", "Job", spec))
    assert gang.state == "suspended"


@pytest.mark.parametrize(
    "other",
    [
        manifest("apps/v1", "Deployment", {"replicas": 1, "template": {"spec": POD}}, name="web")
        | {"spec": {"replicas": 1, "template": {"spec": POD | {"schedulerName": "default"}}}},
        manifest(
            "batch/v1",
            "CronJob",
            {"jobTemplate": {"spec": {"template": {"spec": POD}}}},
            name="web",
        ),
    ],
    ids=["another scheduler", "CronJob"],
)
def test_gpu_pods_outside_gangs_are_reported_as_omitted(other: dict[str, Any]) -> None:
    assert gangs(other) == []
    assert omitted(other) == [f'{other["kind"]} "web" in namespace "ml"']


def test_pods_without_gpus_are_not_reported_as_omitted() -> None:
    plain = {"containers": [{"name": "main"}]}
    web = manifest("apps/v1", "Deployment", {"template": {"spec": plain}})
    assert omitted(web) == []
