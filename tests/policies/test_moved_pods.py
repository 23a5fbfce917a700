"""Whatever the kind, a pod that loses one protection is refused."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kube.workloads import WORKLOAD_KINDS
from kube.workloads.record import Pods, WorkloadKind, steps
from tests.policies.harness import Manifest
from tests.policies.test_cases import SETTINGS
from tests.policies.ways.protections import PROTECTIONS, STATED, Spec
from tests.policies.ways.way import GOOD, documents, refusing

Place = tuple[str | int, ...]
REPLACED = {
    *("containers", "initContainers", "volumes", "tolerations", "securityContext", "resources")
}
"""Fields of a pod; a kind may have more at the same place, such as KServe's `minReplicas`."""
PARTS = {"containerSet"}
"""Fields with containers whose pod is stated around them."""
PATTERNS = {"g17_kyverno_policy"}
"""Manifests with patterns of pods, which are no pods."""


def _places(node: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the paths of pod specifications: objects with a list of hardened containers."""
    if isinstance(node, dict):
        containers = node.get("containers")
        hardened = isinstance(containers, list) and "securityContext" in containers[0]
        if hardened and not PARTS & {*path}:
            yield path
        for key, value in node.items():
            yield from _places(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _places(value, (*path, index))


def _at(node: Any, path: Place) -> Any:
    for step in path:
        node = node[step]
    return node


@cache
def homes() -> list[tuple[str, Place]]:
    """Every place of a pod in the good manifests that have no privileges."""
    system = {name for name, config in SETTINGS["good"].items() if "systemWorkloads" in config}
    names = sorted(path.stem for path in GOOD.glob("*.yaml"))
    return [
        (name, place)
        for name in names
        if name not in system | PATTERNS
        for place in _places(documents(name))
    ]


def _assert_refused(rule: str, good: list[Manifest], bad: list[Manifest], config: Manifest) -> None:
    """Assert that a rule refuses a manifest, and not the good one."""
    assert rule not in refusing(good, config)
    assert rule in refusing(bad, config)


FEW = settings(max_examples=250, suppress_health_check=[HealthCheck.filter_too_much])
HOMES = st.deferred(lambda: st.sampled_from(homes()))


def _weakened(data: st.DataObject, among: set[str] | None = None) -> tuple[Spec, Spec, str]:
    """Draw a pod, the same pod without one protection, and the rule that must notice."""
    name, place = data.draw(HOMES, label="pod")
    good = copy.deepcopy(_at(documents(name), place))
    bad = copy.deepcopy(good)
    container = data.draw(st.sampled_from(bad["containers"] + bad.get("initContainers", [])))
    protections = st.sampled_from(sorted(PROTECTIONS if among is None else among))
    remove, rule = PROTECTIONS[data.draw(protections, label="protection")]
    assume(remove(bad, container))
    return good, bad, rule


@FEW
@given(st.data())
def test_a_pod_without_one_protection_is_refused_in_every_kind(data: st.DataObject) -> None:
    good, bad, rule = _weakened(data)
    name, place = data.draw(HOMES, label="kind")

    def moved(spec: Spec) -> list[Manifest]:
        home: list[Manifest] = copy.deepcopy(documents(name))
        kept = {key: value for key, value in _at(home, place).items() if key not in REPLACED}
        _at(home, place[:-1])[place[-1]] = kept | spec
        return home

    config = SETTINGS["good"].get(name, {})
    _assert_refused(rule, moved(good), moved(bad), config)


PLACES = [
    (record, place)
    for record in WORKLOAD_KINDS.values()
    for place in record.pods
    if not place.machine
]


def _put(path: str, value: Any) -> Any:
    """Return an object with a value at a path, in which `*` becomes a list."""
    for step in reversed(steps(path)):
        value = [value] if step == "*" else {step: value}
    return value


def _stated(place: Pods, container_at: str | None, spec: Spec) -> Any:
    """Return an object with a pod at a place of its kind; it may have one container elsewhere."""
    if container_at is not None:
        spec = _outer(spec) | _put(container_at, spec["containers"][0])
    return _put(place.at, spec)


@FEW
@given(st.data())
def test_a_pod_without_one_protection_is_refused_in_every_registered_kind(
    data: st.DataObject,
) -> None:
    record, place = data.draw(st.sampled_from(PLACES), label="place")
    elsewhere = [path for path in place.containers if "idecar" not in path]
    at = data.draw(st.sampled_from(elsewhere), label="container") if elsewhere else None
    good, bad, rule = _weakened(data, STATED if elsewhere and place.partial else None)
    # Tasks of Tekton have no tolerations; the object that runs them states these.
    assume((record.group, rule) != ("tekton.dev", "gpu-toleration"))
    # The place may have no field for what was removed.
    assume(_stated(place, at, bad) != _stated(place, at, good))

    def moved(spec: Spec) -> list[Manifest]:
        version, kind = f"{record.group}/v1".lstrip("/"), record.kind.replace("*", "Any")
        metadata = {"name": "moved", "namespace": "team"}
        return [
            {**_stated(place, at, spec), "apiVersion": version, "kind": kind}
            | {"metadata": metadata}
        ]

    _assert_refused(rule, moved(good), moved(bad), {})


SPEC = documents("kueue_indexed_job")[0]["spec"]["template"]["spec"]


@pytest.mark.parametrize(("record", "place"), PLACES, ids=lambda value: getattr(value, "at", ""))
def test_a_privileged_container_is_refused_at_every_place_of_the_registry(
    record: WorkloadKind, place: Pods
) -> None:
    spec = copy.deepcopy(SPEC)
    PROTECTIONS["no privileges"][0](spec, spec["containers"][0])
    metadata = {"name": "moved", "namespace": "team"}
    version, kind = f"{record.group}/v1".lstrip("/"), record.kind.replace("*", "Any")
    for at in (None, *place.containers):
        stated = _stated(place, at, spec) if at != "" or place.at else {}
        manifest = {**stated, "apiVersion": version, "kind": kind, "metadata": metadata}
        assert not stated or "not-privileged" in refusing([manifest], {}), at


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_each_protection_is_removed_from_some_good_pod(protection: str) -> None:
    remove, rule = PROTECTIONS[protection]
    for name, place in homes():
        bad = copy.deepcopy(documents(name))
        spec = _at(bad, place)
        config = SETTINGS["good"].get(name, {})
        if remove(spec, spec["containers"][0]):
            _assert_refused(rule, documents(name), bad, config)
            return
    raise AssertionError("no good manifest has it")


def _outer(spec: Spec) -> Spec:
    return {key: value for key, value in spec.items() if "ontainers" not in key}


WORDS = st.sampled_from(["spec", "template", "parts", "unit", "jobSpec", "podTemplate", "main"])
GROUPS = st.sampled_from(["example.com/v1", "apps.example.com/v1", "batch.kruise.io/v1beta1"])
KINDS = st.sampled_from(["Thing", "Deployment", "Job", "DaemonSet", "PyTorchJob", "Service"])
SHAPES: dict[str, Callable[[Spec], Any]] = {
    "a pod": lambda spec: spec,
    "a list by another name": lambda spec: {"units": spec["containers"]},
    "containers by name": lambda spec: {item["name"]: item for item in spec["containers"]},
    "one container": lambda spec: {"container": spec["containers"][0]},
    "an image": lambda spec: {"image": spec["containers"][0]["image"]},
}


@FEW
@given(st.data())
def test_a_pod_is_refused_in_every_invented_kind(data: st.DataObject) -> None:
    good, bad, _ = _weakened(data)
    shape = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)), label="shape")]
    holder = shape(data.draw(st.sampled_from([good, bad])))
    for word in reversed(data.draw(st.lists(WORDS, min_size=1, max_size=5), label="place")):
        holder = {word: holder} if data.draw(st.booleans()) else {word: [holder]}
    version, kind = data.draw(GROUPS), data.draw(KINDS)
    metadata = {"name": "invented", "namespace": "team"}
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **holder}
    assert "kind-known" in refusing([manifest], {})
