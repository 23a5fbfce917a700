"""Whatever the kind, a pod that loses one protection is refused."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kube.workloads import WORKLOAD_KINDS
from kube.workloads.record import Pods, steps
from tests.policies.harness import Manifest
from tests.policies.test_cases import SETTINGS
from tests.policies.ways.protections import PROTECTIONS, STATED, Spec
from tests.policies.ways.way import GOOD, documents, refusing

Place = tuple[str | int, ...]
REPLACED = {"containers", "initContainers", "volumes", "tolerations", "securityContext"}
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
    assert rule not in refusing(moved(good), config)
    assert rule in refusing(moved(bad), config)


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
    if at is not None:
        assume(bad["containers"][0] != good["containers"][0] or _outer(bad) != _outer(good))

    def moved(spec: Spec) -> list[Manifest]:
        version, kind = f"{record.group}/v1".lstrip("/"), record.kind.replace("*", "Any")
        metadata = {"name": "moved", "namespace": "team"}
        return [
            {**_stated(place, at, spec), "apiVersion": version, "kind": kind}
            | {"metadata": metadata}
        ]

    assert rule not in refusing(moved(good), {})
    assert rule in refusing(moved(bad), {})


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
