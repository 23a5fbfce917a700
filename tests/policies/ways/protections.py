"""Protections of a pod, and functions that remove them."""

from collections.abc import Callable
from typing import Any

Spec = dict[str, Any]


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
