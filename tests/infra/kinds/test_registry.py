"""The registries of kinds match the pods, queues and gangs that the builders create."""

from typing import get_args

import pytest

from infra.kinds import BUILDERS
from infra.manifests import Manifest
from kube.kinds import KINDS, JobKind
from policies.resources import Resource
from policies.views import View
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.jobs import job, objects


def test_every_kind_has_a_record_and_a_builder() -> None:
    assert get_args(JobKind) == tuple(KINDS) == tuple(BUILDERS)


def views(kind: JobKind) -> list[View]:
    return [View(_resource(manifest)) for manifest in objects(job(kind))]


def _resource(manifest: Manifest) -> Resource:
    return Resource(f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}", manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_last_object_of_a_run_is_the_resource_of_its_kind(kind: JobKind) -> None:
    last = objects(job(kind))[-1]
    resource = KINDS[kind].resource
    assert (last["apiVersion"], last["kind"]) == (resource.api_version, resource.kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_registry_finds_the_pods_and_the_queue_of_every_kind(kind: JobKind) -> None:
    workloads = [workload for view in views(kind) for workload in view.workloads]
    found = [(workload, pod) for workload in workloads for pod in workload.pods]
    assert found
    groups = [o["spec"]["queue"] for o in objects(job(kind)) if o["kind"] == "PodGroup"]
    queues = [workload.queue(pod).text for workload, pod in found]
    assert {queue for queue in [*queues, *groups] if queue} == {"research"}


@pytest.mark.parametrize("kind", KINDS)
def test_registry_lists_the_containers_that_run_the_training_image(kind: JobKind) -> None:
    pods = [pod for view in views(kind) for workload in view.workloads for pod in workload.pods]
    images = {
        container.node["image"].text
        for pod in pods
        for container in pod.containers
        if container.node["name"].text in KINDS[kind].containers
    }
    assert images == {TRAINING_IMAGE}
