"""Rules from the baseline level of the Pod Security Standards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from policies import cel
from policies.pod_parts import RenamedNode
from policies.rule import Level, Rule, Severity, Violation, pod_rule
from policies.settings import SystemConfig
from policies.values import Node
from policies.workloads import Container, Pod

_PROFILES: Final = ("RuntimeDefault", "Localhost")
_SELINUX_TYPES: Final = (
    *("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"),
)
_APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
_SAFE_SYSCTLS: Final = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
_PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
_HOOKS: Final = ("postStart", "preStop")
_HANDLERS: Final = ("httpGet", "tcpSocket")


def pod_context(pod: Pod) -> Node:
    """Return the security context of the pod.

    Kinds that specify the pod and the container in one object, such as Spark's, call the pod's
    context `podSecurityContext`.
    """
    context = pod.spec["podSecurityContext"]
    if pod.location.context:
        default = context if context.present else pod.spec["securityContext"]
        return RenamedNode(pod.spec, pod.location.context, default)
    return context if context.present else pod.spec["securityContext"]


def effective_setting(pod: Pod, container: Container, *path: str) -> Node:
    """Return a container's security setting, or the pod's setting if the container has none."""
    setting, inherited = container.node["securityContext"], pod_context(pod)
    for key in path:
        setting, inherited = setting[key], inherited[key]
    is_unset = setting.absent or (container.node.partial and not setting.present)
    return inherited if is_unset and not inherited.absent else setting


def security_contexts(pod: Pod) -> Iterator[Node]:
    """Yield the security context of the pod and of every container."""
    yield pod_context(pod)
    for container in pod.containers:
        yield container.node["securityContext"]


@pod_rule(
    name="not-privileged",
    description="Containers are not privileged.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Remove privileged; GPUs come from the device plugin and need no privileges.",
    config=SystemConfig,
    references=[
        "PSS baseline Privileged Containers",
        "PSS baseline HostProcess",
        "PSS baseline /proc Mount Type",
        "NSA Pod security enforcement",
        "CIS 5.2.2",
        "CIS 5.2.10",
        "OWASP K01",
    ],
    admission=cel.containers(
        "c.?securityContext.?privileged.orValue(false)"
        " || c.?securityContext.?windowsOptions.?hostProcess"
        ".or(variables.context.?windowsOptions.?hostProcess).orValue(false)"
        " || c.?securityContext.?procMount.orValue('Default') != 'Default'"
    ),
)
def not_privileged(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """A privileged container controls the node and every job on it."""
    for container in pod.containers:
        context = container.node["securityContext"]
        windows = effective_setting(pod, container, "windowsOptions", "hostProcess")
        for flag in (context["privileged"], windows):
            if flag.present and flag.value is not False:
                yield Violation(flag, "false, or leave it out")
        proc = context["procMount"]
        if proc.present and proc.value != "Default":
            yield Violation(proc, '"Default", or leave it out')


@pod_rule(
    name="security-profiles-kept",
    description="Pods do not disable seccomp, AppArmor or SELinux.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set RuntimeDefault, or remove the profile.",
    config=SystemConfig,
    references=[
        "PSS baseline Seccomp",
        "PSS baseline AppArmor",
        "PSS baseline SELinux",
        "NSA Pod security enforcement",
        "CIS 5.6.2",
    ],
    admission=cel.pod(
        securityContext="variables.contexts.exists(s, ['seccompProfile', 'appArmorProfile']"
        f".exists(k, !(s[?k].?type.orValue('Localhost') in {cel.literal(_PROFILES)}))"
        f" || !(s.?seLinuxOptions.?type.orValue('') in {cel.literal(_SELINUX_TYPES)})"
        " || ['user', 'role'].exists(k, s.?seLinuxOptions[?k].orValue('') != ''))"
        f" || variables.annotations.exists(a, a.startsWith('{_APPARMOR_ANNOTATION}')"
        " && !variables.annotations[a].matches('^(runtime/default$|localhost/)'))"
    ),
)
def security_profiles_kept(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Seccomp, AppArmor and SELinux limit what an attacker in a container can do to the node."""
    for context in security_contexts(pod):
        for key in ("seccompProfile", "appArmorProfile"):
            kind = context[key]["type"]
            if kind.present and kind.value not in _PROFILES:
                yield Violation(kind, '"RuntimeDefault", or leave it out')
        selinux = context["seLinuxOptions"]
        if selinux["type"].present and selinux["type"].value not in _SELINUX_TYPES:
            yield Violation(selinux["type"], '"container_t", or leave it out')
        for key in ("user", "role"):
            if selinux[key].present and selinux[key].value != "":
                yield Violation(selinux[key], "nothing: the runtime chooses it")
    for key, profile in pod.annotations():
        named = key.startswith(_APPARMOR_ANNOTATION) and profile.present
        if named and not re.match(r"runtime/default$|localhost/", str(profile.value)):
            yield Violation(profile, '"runtime/default", or leave it out')


@pod_rule(
    name="sysctls-safe",
    description="Pods set only sysctls that are isolated between pods.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Remove the sysctl, or set it on the nodes.",
    config=SystemConfig,
    references=["PSS baseline Sysctls", "NSA Pod security enforcement"],
    admission=cel.pod(
        sysctls="variables.context.?sysctls.orValue([])"
        f".exists(s, !(s.name in {cel.literal(_SAFE_SYSCTLS)}))"
    ),
)
def sysctls_safe(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Sysctls that are not isolated change the kernel for every pod on the node."""
    for sysctl in pod_context(pod)["sysctls"].items():
        if sysctl["name"].known and sysctl["name"].value not in _SAFE_SYSCTLS:
            yield Violation(sysctl["name"], f"one of {', '.join(_SAFE_SYSCTLS)}")


def _handlers(container: Node) -> Iterator[Node]:
    for key in _PROBES:
        yield container[key]
    for key in _HOOKS:
        yield container["lifecycle"][key]


@pod_rule(
    name="probes-stay-in-pod",
    description="Probes and lifecycle hooks call the pod itself.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Remove host: the kubelet then calls the pod's own address.",
    config=SystemConfig,
    references=["PSS baseline Host Probes / Lifecycle Hooks"],
    admission=cel.containers(
        " || ".join(
            f"c.?{location}.?{handler}.?host.orValue('') != ''"
            for location in (*_PROBES, *(f"lifecycle.?{hook}" for hook in _HOOKS))
            for handler in _HANDLERS
        )
    ),
)
def probes_stay_in_pod(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """No network policy restricts these requests, because the kubelet sends them from the node."""
    for container in pod.containers:
        for handler in _handlers(container.node):
            for kind in _HANDLERS:
                host = handler[kind]["host"]
                if host.present and host.value != "":
                    yield Violation(host, "nothing")


RULES: list[Rule[Any]] = [
    not_privileged,
    security_profiles_kept,
    sysctls_safe,
    probes_stay_in_pod,
]
