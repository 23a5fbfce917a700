"""Protections of a pod, and how to remove each."""

from collections.abc import Callable
from typing import Any

Spec = dict[str, Any]


def _remove(mapping: Spec, *keys: str) -> bool:
    """Remove the last key below the others, and return whether it existed."""
    for key in keys[:-1]:
        mapping = mapping.get(key, {})
    return mapping.pop(keys[-1], None) is not None


def _root_allowed(spec: Spec, container: Spec) -> bool:
    own = _remove(container, "securityContext", "runAsNonRoot")
    return _remove(spec, "securityContext", "runAsNonRoot") or own


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


def _latest(spec: Spec, container: Spec) -> bool:
    container["image"] = "registry.example.com/evil:latest"
    return True


def _secret(spec: Spec, container: Spec) -> bool:
    container.setdefault("env", []).append({"name": "PASSWORD", "value": "correct horse"})
    return True


def _untolerated(spec: Spec, container: Spec) -> bool:
    return _has_gpu(container) and _remove(spec, "tolerations")


def _unlimited_memory(spec: Spec, container: Spec) -> bool:
    return _has_gpu(container) and _remove(container, "resources", "limits", "memory")


def _unbounded_shm(spec: Spec, container: Spec) -> bool:
    mounted = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    volumes = [volume for volume in spec.get("volumes", []) if volume["name"] == "shm"]
    return "/dev/shm" in mounted and any(_remove(v, "emptyDir", "sizeLimit") for v in volumes)


def _has_gpu(container: Spec) -> bool:
    return "nvidia.com/gpu" in container["resources"]["limits"]


PROTECTIONS: dict[str, tuple[Callable[[Spec, Spec], bool], str]] = {
    "a user other than root": (_root_allowed, "run-as-non-root"),
    "no escalation": (
        lambda _, container: _remove(container, "securityContext", "allowPrivilegeEscalation"),
        "no-privilege-escalation",
    ),
    "no capabilities": (
        lambda _, container: _remove(container, "securityContext", "capabilities"),
        "capabilities-dropped",
    ),
    "no privileges": (_privileged, "not-privileged"),
    "processes of its own": (_host("hostPID"), "no-host-namespaces"),
    "interprocess memory of its own": (_host("hostIPC"), "no-host-namespaces"),
    "ports of its own": (_host_port, "no-host-ports"),
    "files of its own": (_host_path, "no-host-path"),
    "volumes of safe types": (_nfs, "volume-types-restricted"),
    "a seccomp profile": (_unconfined, "security-profiles-kept"),
    "an image with a version": (_latest, "image-tag-fixed"),
    "secrets by reference": (_secret, "no-literal-secrets"),
    "a toleration of GPU nodes": (_untolerated, "gpu-toleration"),
    "guaranteed memory": (_unlimited_memory, "gpu-memory-guaranteed"),
    "bounded shared memory": (_unbounded_shm, "shm-bounded-memory"),
}
"""Removes a protection and returns whether it was there, and the rule that must notice."""
STATED = {
    *("no privileges", "ports of its own", "files of its own", "volumes of safe types"),
    *("a seccomp profile", "an image with a version", "secrets by reference"),
    *("processes of its own", "interprocess memory of its own"),
}
"""Protections that only a statement removes; without others, a controller may have a default."""
