"""The records of the kinds state where the builders write pods, queue, gang and retries."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra.manifests import Manifest
from kube.kinds import KINDS, JobKind
from kube.kinds.record import Path
from policies.resources import Resource
from policies.workloads import find_pods
from tests.infra.jobs import job, kind_of, objects


def values(tree: Any, path: Path) -> Iterator[Any]:
    """The values at a path of a manifest."""
    if not path:
        yield tree
        return
    key, *rest = path
    found = tree if isinstance(tree, list) else list(tree.values()) if key == "*" else [tree[key]]
    for value in found:
        yield from values(value, tuple(rest))


def manifest_with_pods(kind: JobKind, **changes: Any) -> Manifest:
    return kind_of(job(kind, **changes), KINDS[kind].layout.resource.kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_named_after_an_object_of_the_kinds_resource(kind: JobKind) -> None:
    last = objects(job(kind))[-1]
    resource = KINDS[kind].resource
    assert (last["apiVersion"], last["kind"]) == (resource.api_version, resource.kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_has_all_pod_templates(kind: JobKind) -> None:
    manifest = manifest_with_pods(kind)
    token = f"kubernetes:{manifest['apiVersion']}:{manifest['kind']}"
    paths = KINDS[kind].layout.pods
    templates = [template for path in paths for template in values(manifest, path)]
    assert len(templates) == len(find_pods(Resource(token, manifest)))
    assert all(template["spec"]["containers"] for template in templates)


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_has_queue_gang_and_retries_or_the_pod_group_has_them(kind: JobKind) -> None:
    layout = KINDS[kind].layout
    manifest = manifest_with_pods(kind, retries=7)
    (retries,) = values(manifest, layout.retries)
    assert retries in (7, 2 * 7, 2 * 7 + 1)
    groups = [found for found in objects(job(kind)) if found["kind"] == "PodGroup"]
    queues = [group["spec"]["queue"] for group in groups]
    minima = [group["spec"]["minMember"] for group in groups]
    size = 2 + KINDS[kind].has_launcher
    assert {*queues, *(values(manifest, layout.queue) if layout.queue else ())} == {"research"}
    assert {*minima, *(values(manifest, layout.gang) if layout.gang else ())} == {size}
