"""Pods without one of their protections are rejected in every kind."""

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
from tests.policies.ways.way import GOOD, documents, rejecting_rules

Spec = dict[str, Any]
Place = tuple[str | int, ...]
REPLACED = {
    *("containers", "initContainers", "volumes", "tolerations", "securityContext", "resources")
}
"""Pod fields. A kind may have more fields at the same path, such as KServe's `minReplicas`."""
PARTS = {"containerSet"}
"""Fields whose containers are part of the surrounding pod."""
PATTERNS = {"g17_kyverno_policy"}
"""Manifests with patterns that only look like pods."""


def _remove(mapping: Spec, *keys: str) -> bool:
    """Remove the value at a path of keys, and return true if it existed."""
    for key in keys[:-1]:
        mapping = mapping.get(key, {})
    return mapping.pop(keys[-1], None) is not None


def _root_allowed(spec: Spec, container: Spec) -> bool:
    removed_from_container = _remove(container, "securityContext", "runAsNonRoot")
    return _remove(spec, "securityContext", "runAsNonRoot") or removed_from_container


def _privileged(spec: Spec, container: Spec) -> bool:
    container.setdefault("securityContext", {})["privileged"] = True
    return True


def _host(field: str) -> Callable[[Spec, Spec], bool]:
    def change(spec: Spec, container: Spec) -> bool:
        spec[field] = True
        return True

    return change


def _host_path(spec: Spec, container: Spec) -> bool:
    spec.setdefault("volumes", []).append({"name": "host", "hostPath": {"path": "/"}})
    return True


def _nfs(spec: Spec, container: Spec) -> bool:
    spec.setdefault("volumes", []).append({"name": "n", "nfs": {"server": "a", "path": "/"}})
    return True


def _host_port(spec: Spec, container: Spec) -> bool:
    container.setdefault("ports", []).append({"containerPort": 9999, "hostPort": 9999})
    return True


def _unconfined(spec: Spec, container: Spec) -> bool:
    context = container.setdefault("securityContext", {})
    context["seccompProfile"] = {"type": "Unconfined"}
    return True


def _latest_tag(spec: Spec, container: Spec) -> bool:
    container["image"] = "registry.example.com/evil:latest"
    return True


def _literal_secret(spec: Spec, container: Spec) -> bool:
    container.setdefault("env", []).append({"name": "PASSWORD", "value": "correct horse"})
    return True


def _no_gpu_toleration(spec: Spec, container: Spec) -> bool:
    return _has_gpu(container) and _remove(spec, "tolerations")


def _unlimited_memory(spec: Spec, container: Spec) -> bool:
    return _has_gpu(container) and _remove(container, "resources", "limits", "memory")


def _unbounded_shm(spec: Spec, container: Spec) -> bool:
    mounted = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    volumes = [volume for volume in spec.get("volumes", []) if volume["name"] == "shm"]
    return "/dev/shm" in mounted and any(_remove(v, "emptyDir", "sizeLimit") for v in volumes)


def _context(field: str, value: Any) -> Callable[[Spec, Spec], bool]:
    """Return a function that sets a field in the container's security context."""

    def change(spec: Spec, container: Spec) -> bool:
        container.setdefault("securityContext", {})[field] = value
        return True

    return change


def _added_capability(spec: Spec, container: Spec) -> bool:
    capabilities = container.setdefault("securityContext", {}).setdefault("capabilities", {})
    capabilities["add"] = ["NET_ADMIN"]
    return True


def _sysctl(spec: Spec, container: Spec) -> bool:
    sysctls = [{"name": "kernel.msgmax", "value": "65536"}]
    spec.setdefault("securityContext", {})["sysctls"] = sysctls
    return True


def _tolerates_everything(spec: Spec, container: Spec) -> bool:
    spec.setdefault("tolerations", []).append({"operator": "Exists"})
    return True


def _system_priority(spec: Spec, container: Spec) -> bool:
    spec["priorityClassName"] = "system-node-critical"
    return True


def _token_volume(spec: Spec, container: Spec) -> bool:
    sources = [{"serviceAccountToken": {"path": "token"}}]
    volumes = spec.setdefault("volumes", [])
    volumes.append({"name": "token", "projected": {"sources": sources}})
    return spec.get("automountServiceAccountToken") is False


def _secret_argument(spec: Spec, container: Spec) -> bool:
    container["args"] = ["--password", "correct-horse"]
    return True


def _probe_another_host(spec: Spec, container: Spec) -> bool:
    container["livenessProbe"] = {"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/"}}
    return container in spec["containers"]


def _half_a_gpu(spec: Spec, container: Spec) -> bool:
    has_gpu = _has_gpu(container)
    if has_gpu:
        container["resources"]["limits"]["nvidia.com/gpu"] = "500m"
    return has_gpu


def _unequal_gpus(spec: Spec, container: Spec) -> bool:
    has_gpu = _has_gpu(container)
    if has_gpu:
        container["resources"].setdefault("requests", {})["nvidia.com/gpu"] = 64
    return has_gpu


def _no_cpu(spec: Spec, container: Spec) -> bool:
    resources = container["resources"]
    removed = "cpu" not in resources["limits"] and _remove(resources, "requests", "cpu")
    return _has_gpu(container) and removed and "resources" not in spec


def _has_gpu(container: Spec) -> bool:
    return "nvidia.com/gpu" in container["resources"]["limits"]


PROTECTIONS: dict[str, tuple[Callable[[Spec, Spec], bool], str]] = {
    "a user other than root": (_root_allowed, "run-as-non-root"),
    "no privilege escalation": (
        lambda _, container: _remove(container, "securityContext", "allowPrivilegeEscalation"),
        "no-privilege-escalation",
    ),
    "dropped capabilities": (
        lambda _, container: _remove(container, "securityContext", "capabilities"),
        "capabilities-dropped",
    ),
    "no privileges": (_privileged, "not-privileged"),
    "a separate PID namespace": (_host("hostPID"), "no-host-namespaces"),
    "a separate IPC namespace": (_host("hostIPC"), "no-host-namespaces"),
    "no host ports": (_host_port, "no-host-ports"),
    "no host paths": (_host_path, "no-host-path"),
    "safe volume types": (_nfs, "volume-types-restricted"),
    "a seccomp profile": (_unconfined, "security-profiles-kept"),
    "an image with a version": (_latest_tag, "image-tag-fixed"),
    "secrets by reference": (_literal_secret, "no-literal-secrets"),
    "a toleration for GPU nodes": (_no_gpu_toleration, "gpu-toleration"),
    "guaranteed memory": (_unlimited_memory, "gpu-memory-guaranteed"),
    "bounded shared memory": (_unbounded_shm, "shm-bounded-memory"),
    "a separate network namespace": (_host("hostNetwork"), "no-host-namespaces"),
    "no user with ID 0": (_context("runAsUser", 0), "run-as-non-root"),
    "a masked /proc": (_context("procMount", "Unmasked"), "not-privileged"),
    "an AppArmor profile": (
        _context("appArmorProfile", {"type": "Unconfined"}),
        "security-profiles-kept",
    ),
    "an SELinux type": (_context("seLinuxOptions", {"type": "spc_t"}), "security-profiles-kept"),
    "no added capability": (_added_capability, "capabilities-dropped"),
    "safe sysctls": (_sysctl, "sysctls-safe"),
    "tolerations for named taints": (_tolerates_everything, "tolerations-bounded"),
    "a non-system priority": (_system_priority, "priority-not-of-system"),
    "no token in a volume": (_token_volume, "no-hidden-token"),
    "arguments without secrets": (_secret_argument, "no-literal-secrets"),
    "probes inside the pod": (_probe_another_host, "probes-stay-in-pod"),
    "whole GPUs": (_half_a_gpu, "gpu-counts-whole"),
    "equal GPU requests and limits": (_unequal_gpus, "gpu-requests-equal-limits"),
    "a CPU request": (_no_cpu, "gpu-cpu-requested"),
}
"""Functions that remove a protection, with the rule that reports its absence.

A function returns true if the pod had the protection.
"""
REMOVED_BY_SETTING = {
    *("no privileges", "no host ports", "no host paths", "safe volume types"),
    *("a seccomp profile", "an image with a version", "secrets by reference"),
    *("a separate PID namespace", "a separate IPC namespace", "a separate network namespace"),
    *("no user with ID 0", "a masked /proc", "an AppArmor profile", "an SELinux type"),
    *("no added capability", "safe sysctls", "arguments without secrets", "probes inside the pod"),
}
"""Protections removed by setting a field. For a missing field, a controller may have a default."""


def _pod_paths(node: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the paths of pod specifications: objects with a list of hardened containers."""
    if isinstance(node, dict):
        containers = node.get("containers")
        hardened = isinstance(containers, list) and "securityContext" in containers[0]
        if hardened and not PARTS & {*path}:
            yield path
        for key, value in node.items():
            yield from _pod_paths(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _pod_paths(value, (*path, index))


def _value_at(node: Any, path: Place) -> Any:
    for step in path:
        node = node[step]
    return node


@cache
def pod_locations() -> list[tuple[str, Place]]:
    """Return the paths of all pods in the good manifests of unprivileged workloads."""
    system = {name for name, config in SETTINGS.items() if "systemWorkloads" in config}
    names = sorted(path.stem for path in GOOD.glob("*.yaml"))
    return [
        (name, place)
        for name in names
        if name not in system | PATTERNS
        for place in _pod_paths(documents(name))
    ]


def _assert_rejected(
    rule: str, good: list[Manifest], bad: list[Manifest], config: Manifest
) -> None:
    """Assert that a rule rejects the bad manifests and accepts the good ones."""
    assert rejecting_rules(good, config, rule) == set()
    assert rejecting_rules(bad, config, rule) == {rule}


FEW_EXAMPLES = settings(max_examples=250, suppress_health_check=[HealthCheck.filter_too_much])
POD_LOCATIONS = st.deferred(lambda: st.sampled_from(pod_locations()))


def _draw_weakened_pod(
    data: st.DataObject, candidates: set[str] | None = None
) -> tuple[Spec, Spec, str]:
    """Draw a pod, the same pod without one protection, and the rule that must report it."""
    name, place = data.draw(POD_LOCATIONS, label="pod")
    good = copy.deepcopy(_value_at(documents(name), place))
    bad = copy.deepcopy(good)
    container = data.draw(st.sampled_from(bad["containers"] + bad.get("initContainers", [])))
    protections = st.sampled_from(sorted(PROTECTIONS if candidates is None else candidates))
    remove, rule = PROTECTIONS[data.draw(protections, label="protection")]
    assume(remove(bad, container))
    return good, bad, rule


@FEW_EXAMPLES
@given(st.data())
def test_pod_without_one_protection_is_rejected_in_every_kind(data: st.DataObject) -> None:
    good, bad, rule = _draw_weakened_pod(data)
    name, place = data.draw(POD_LOCATIONS, label="kind")

    def with_pod(spec: Spec) -> list[Manifest]:
        documents_: list[Manifest] = copy.deepcopy(documents(name))
        other_fields = {
            key: value for key, value in _value_at(documents_, place).items() if key not in REPLACED
        }
        _value_at(documents_, place[:-1])[place[-1]] = other_fields | spec
        return documents_

    config = SETTINGS.get(name, {})
    _assert_rejected(rule, with_pod(good), with_pod(bad), config)


PLACES = [
    (record, place)
    for record in WORKLOAD_KINDS.values()
    for place in record.pods
    if not place.machine
]


def _nested(path: str, value: Any) -> Any:
    """Return an object with a value at a path; each `*` in the path becomes a list."""
    for step in reversed(steps(path)):
        value = [value] if step == "*" else {step: value}
    return value


def _object_with_pod(place: Pods, container_at: str | None, spec: Spec) -> Any:
    """Return an object with a pod at a path of its kind, optionally with a separate container."""
    if container_at is not None:
        spec = _without_containers(spec) | _nested(container_at, spec["containers"][0])
    return _nested(place.at, spec)


def _moved(record: WorkloadKind, fields: Manifest) -> Manifest:
    """Return a manifest of a registered kind with the fields."""
    version, kind = f"{record.group}/v1".lstrip("/"), record.kind.replace("*", "Any")
    metadata = {"name": "moved", "namespace": "team"}
    return {**fields, "apiVersion": version, "kind": kind, "metadata": metadata}


@FEW_EXAMPLES
@given(st.data())
def test_pod_without_one_protection_is_rejected_in_every_registered_kind(
    data: st.DataObject,
) -> None:
    record, place = data.draw(st.sampled_from(PLACES), label="place")
    separate_paths = [path for path in place.containers if "idecar" not in path]
    at = data.draw(st.sampled_from(separate_paths), label="container") if separate_paths else None
    is_partial = place.override or (separate_paths and place.partial)
    good, bad, rule = _draw_weakened_pod(data, REMOVED_BY_SETTING if is_partial else None)
    # Tekton tasks have no tolerations; these are set in the object that runs the tasks.
    assume((record.group, rule) != ("tekton.dev", "gpu-toleration"))
    # The kind may have no field for the removed protection.
    assume(_object_with_pod(place, at, bad) != _object_with_pod(place, at, good))

    def with_pod(spec: Spec) -> list[Manifest]:
        return [_moved(record, _object_with_pod(place, at, spec))]

    _assert_rejected(rule, with_pod(good), with_pod(bad), {})


SPEC = documents("kueue_indexed_job")[0]["spec"]["template"]["spec"]


def test_privileged_container_is_rejected_at_every_registered_path() -> None:
    spec = copy.deepcopy(SPEC)
    PROTECTIONS["no privileges"][0](spec, spec["containers"][0])
    accepted = [
        (record.kind, place.at, at)
        for record, place in PLACES
        for at in (None, *place.containers)
        if at != "" or place.at
        if not rejecting_rules(
            [_moved(record, _object_with_pod(place, at, spec))], {}, "not-privileged"
        )
    ]
    assert accepted == []


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_each_protection_can_be_removed_from_at_least_one_good_pod(protection: str) -> None:
    remove, rule = PROTECTIONS[protection]
    for name, place in pod_locations():
        bad = copy.deepcopy(documents(name))
        spec = _value_at(bad, place)
        config = SETTINGS.get(name, {})
        if remove(spec, spec["containers"][0]):
            _assert_rejected(rule, documents(name), bad, config)
            return
    raise AssertionError("no good manifest has this protection")


def _without_containers(spec: Spec) -> Spec:
    return {key: value for key, value in spec.items() if "ontainers" not in key}


KEYS = st.sampled_from(["spec", "template", "parts", "unit", "jobSpec", "podTemplate", "main"])
GROUPS = st.sampled_from(["example.com/v1", "apps.example.com/v1", "batch.kruise.io/v1beta1"])
KINDS = st.sampled_from(["Thing", "Deployment", "Job", "DaemonSet", "PyTorchJob", "Service"])
SHAPES: dict[str, Callable[[Spec], Any]] = {
    "a pod": lambda spec: spec,
    "a list with another name": lambda spec: {"units": spec["containers"]},
    "containers keyed by name": lambda spec: {item["name"]: item for item in spec["containers"]},
    "one container": lambda spec: {"container": spec["containers"][0]},
    "an image": lambda spec: {"image": spec["containers"][0]["image"]},
}


@FEW_EXAMPLES
@given(st.data())
def test_pod_is_rejected_in_every_unknown_kind(data: st.DataObject) -> None:
    good, bad, _ = _draw_weakened_pod(data)
    shape = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)), label="shape")]
    value = shape(data.draw(st.sampled_from([good, bad])))
    for key in reversed(data.draw(st.lists(KEYS, min_size=1, max_size=5), label="place")):
        value = {key: value} if data.draw(st.booleans()) else {key: [value]}
    version, kind = data.draw(GROUPS), data.draw(KINDS)
    metadata = {"name": "invented", "namespace": "team"}
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **value}
    assert rejecting_rules([manifest], {}, "kind-known")
