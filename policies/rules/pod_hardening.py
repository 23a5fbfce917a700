"""Rules for the restricted Pod Security Standard, and a rule about root file systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from policies import cel
from policies.rule import Level, Rule, Severity, Violation, pod_rule
from policies.rules.pod_security import effective_setting, pod_context, security_contexts
from policies.settings import SystemConfig
from policies.values import Node
from policies.workloads import Pod

_GROUPS: Final = ("runAsGroup", "fsGroup")
_NETWORK_VOLUME_TYPES: Final = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "fc", "flexVolume"),
    *("flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs"),
    *("photonPersistentDisk", "portworxVolume", "quobyte", "rbd", "scaleIO", "storageos"),
    "vsphereVolume",
)
_NETWORK_DRIVER: Final = re.compile(
    r"(?i)(^|[.-])(nfs|smb|cifs|iscsi)|^(file|blob)\.csi\.azure\.com$"
)
"""Pattern of CSI drivers that mount network storage from any server that an inline volume names.
The admission policy contains the pattern as well."""


def _capability(name: Any) -> str:
    return str(name).upper().removeprefix("CAP_")


class CapabilityConfig(SystemConfig):
    """Configuration of `capabilities-dropped`."""

    allowed_capabilities: list[Annotated[str, AfterValidator(_capability)]] = Field(
        default=["NET_BIND_SERVICE"], description="Capabilities that any container may add."
    )


@pod_rule(
    name="run-as-non-root",
    description="Containers do not run as root or in root's group.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set runAsNonRoot: true and a positive runAsUser in the security context.",
    config=SystemConfig,
    references=[
        "PSS restricted Running as Non-root",
        "PSS restricted Running as Non-root user",
        "NSA Non-root containers",
        "CIS 5.2.7",
        "OWASP K01",
    ],
    admission=cel.Cel(
        "variables.containers.filter(c,"
        " !c.?securityContext.?runAsNonRoot.or(variables.context.?runAsNonRoot).orValue(false)"
        " || c.?securityContext.?runAsUser.or(variables.context.?runAsUser).orValue(1) < 1)"
        ".map(c, 'container ' + c.name) + (variables.contexts.exists(s,"
        f" {cel.literal(_GROUPS)}.exists(k, s[?k].orValue(1) == 0)"
        " || 0 in s.?supplementalGroups.orValue([])) ? ['group'] : [])"
    ),
)
def run_as_non_root(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Root in a container is one mistake away from root on the node."""
    if not pod.containers:
        context = pod_context(pod)
        yield from _root_user(context["runAsUser"])
        if context["runAsNonRoot"].value is False:
            yield Violation(context["runAsNonRoot"], "true")
    for container in pod.containers:
        non_root = effective_setting(pod, container, "runAsNonRoot")
        if non_root.known and non_root.value is not True:
            yield Violation(non_root, "true")
        yield from _root_user(effective_setting(pod, container, "runAsUser"))
    for context in security_contexts(pod):
        groups = [context[key] for key in _GROUPS] + list(context["supplementalGroups"].items())
        for group in groups:
            if group.present and _is_root(group):
                yield Violation(group, "the ID of a group other than root, such as 10001")


def _is_root(number: Node) -> bool:
    return not (type(number.value) is int and number.value > 0)


def _root_user(user: Node) -> Iterator[Violation]:
    if user.present and _is_root(user):
        yield Violation(user, "the ID of a user other than root, such as 10001")


@pod_rule(
    name="no-privilege-escalation",
    description="Containers cannot gain privileges.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set allowPrivilegeEscalation: false in every container's security context.",
    config=SystemConfig,
    references=[
        "PSS restricted Privilege Escalation",
        "NSA Pod security enforcement",
        "CIS 5.2.6",
        "OWASP K01",
    ],
    admission=cel.containers("c.?securityContext.?allowPrivilegeEscalation.orValue(true)"),
)
def no_privilege_escalation(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Privilege escalation is allowed by default."""
    for container in pod.containers:
        allowed = container.node["securityContext"]["allowPrivilegeEscalation"]
        if allowed.known and allowed.value is not False:
            yield Violation(allowed, "false")


@pod_rule(
    name="capabilities-dropped",
    description="Containers drop all capabilities and add only allowed ones.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation='Set capabilities: {drop: ["ALL"]} without add. RDMA needs no capability.',
    config=CapabilityConfig,
    references=[
        "PSS restricted Capabilities",
        "PSS baseline Capabilities",
        "NSA Pod security enforcement",
        "CIS 5.2.8",
        "CIS 5.2.9",
        "OWASP K01",
    ],
    admission=cel.containers(
        "!c.?securityContext.?capabilities.?drop.orValue([])"
        ".exists(d, d.upperAscii() in ['ALL', 'CAP_ALL'])"
        " || c.?securityContext.?capabilities.?add.orValue([]).exists(a,"
        " !settings.allowedCapabilities.exists(n, a.upperAscii() in [n, 'CAP_' + n]))"
    ),
)
def capabilities_dropped(pod: Pod, config: CapabilityConfig) -> Iterator[Violation]:
    """GPU workloads need few capabilities, and each capability helps an attacker reach the node."""
    for container in pod.containers:
        capabilities = container.node["securityContext"]["capabilities"]
        drop, add = capabilities["drop"], capabilities["add"]
        dropped = {_capability(item.value) for item in drop.items()}
        if drop.complete and "ALL" not in dropped:
            yield Violation(drop, '["ALL"]')
        if add.present and not isinstance(add.value, list):
            yield Violation(add, "a list of capabilities, or leave it out")
        for item in add.items():
            if _capability(item.value) not in config.allowed_capabilities:
                yield Violation(item, "nothing")


@pod_rule(
    name="volume-types-restricted",
    description="Pods mount network storage only through claims.",
    severity=Severity.MEDIUM,
    level=Level.MANDATORY,
    remediation="Declare a PersistentVolume or a StorageClass, and mount a claim.",
    config=SystemConfig,
    references=["PSS restricted Volume Types", "NSA Pod security enforcement"],
    admission=cel.volumes(
        " || ".join(f"has(v.{source})" for source in _NETWORK_VOLUME_TYPES)
        + f" || v.?csi.?driver.orValue('').matches({cel.literal(_NETWORK_DRIVER.pattern)})"
    ),
)
def volume_types_restricted(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """The node mounts network volumes with its own privileges, from any server that a pod names."""
    for volume in pod.volumes.items():
        for source in _NETWORK_VOLUME_TYPES:
            if volume[source].present:
                yield Violation(volume[source], "a persistentVolumeClaim instead")
        driver = volume["csi"]["driver"]
        if _NETWORK_DRIVER.search(driver.text or ""):
            yield Violation(driver, "a persistentVolumeClaim instead")


@pod_rule(
    name="seccomp-profile-set",
    description="Containers have a seccomp profile.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Set seccompProfile: {type: RuntimeDefault} in the pod's security context.",
    config=SystemConfig,
    references=["PSS restricted Seccomp", "NSA Pod security enforcement", "CIS 5.6.2"],
    admission=cel.containers(
        "!c.?securityContext.?seccompProfile.?type"
        ".or(variables.context.?seccompProfile.?type).hasValue()"
    ),
)
def seccomp_profile_set(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Without a seccomp profile, a container can make every system call."""
    for container in pod.containers:
        kind = effective_setting(pod, container, "seccompProfile")["type"]
        if kind.absent:
            yield Violation(kind, '"RuntimeDefault"')


@pod_rule(
    name="root-filesystem-read-only",
    description="Containers have a read-only root file system.",
    severity=Severity.LOW,
    level=Level.ADVISORY,
    remediation="Set readOnlyRootFilesystem: true, and mount an emptyDir for writable files.",
    config=SystemConfig,
    references=["NSA Immutable container file systems"],
    admission=cel.containers("!c.?securityContext.?readOnlyRootFilesystem.orValue(false)"),
)
def root_filesystem_read_only(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """On a read-only file system, an attacker cannot install a program."""
    for container in pod.containers:
        flag = container.node["securityContext"]["readOnlyRootFilesystem"]
        if flag.known and flag.value is not True:
            yield Violation(flag, "true")


RULES: list[Rule[Any]] = [
    run_as_non_root,
    no_privilege_escalation,
    capabilities_dropped,
    volume_types_restricted,
    seccomp_profile_set,
    root_filesystem_read_only,
]
