"""Rules about what a pod may do to its node and to others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from policies import cel
from policies.resources import Resource
from policies.rule import (
    Level,
    Rule,
    RuleConfig,
    Severity,
    Violation,
    pod_rule,
    resource_rule,
    show,
)
from policies.settings import SystemConfig
from policies.values import UNKNOWN, Node
from policies.workloads import Container, Pod

_SECRET_NAME = re.compile(
    r"(?i)(passw(or)?d|passphrase|secret|api_?key|access_?key|private_?key|credential"
    r"|connection_?string|(^|[_.-])(token|pwd)($|[_.-])|[a-z](Token|Pwd)$)"
)
_SECRET_VALUE = re.compile(
    r"(AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\."
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@)"
)


class CapabilityConfig(SystemConfig):
    """Configuration of `capabilities-dropped`."""

    allowed_capabilities: list[str] = Field(
        default=[], description="Capabilities that any container may add."
    )
    rdma_resources: list[str] = Field(
        default=["rdma/", "nvidia.com/rdma", "openshift.io/", "vpc.amazonaws.com/efa"],
        description="Prefixes of the resource names with which a container may add IPC_LOCK.",
    )


class EnvironmentConfig(RuleConfig):
    """Configuration of `no-literal-secrets`."""

    allowed_names: list[str] = Field(
        default=[], description="Environment variables that sound secret and are not."
    )


class ServiceConfig(RuleConfig):
    """Configuration of `service-not-public`."""

    allowed_services: list[str] = Field(
        default=[], description="Services that may be load balancers: `namespace/Service/name`."
    )


def _is_system(pod: Pod, config: SystemConfig) -> bool:
    return pod.resource.is_named(config.system_workloads)


def _effective(pod: Pod, container: Container, key: str) -> Node:
    """Return a security setting of a container, or else the pod's."""
    own = container.node["securityContext"][key]
    inherited = pod.spec["securityContext"][key]
    return inherited if own.absent and not inherited.absent else own


@pod_rule(
    name="run-as-non-root",
    description="Containers do not run as root.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write runAsNonRoot: true and a positive runAsUser in the security context.",
    config=SystemConfig,
    references=[
        "PSS restricted Running as Non-root",
        "PSS restricted Running as Non-root user",
        "NSA Non-root containers",
        "CIS 5.2.7",
        "OWASP K01",
    ],
    admission=cel.containers(
        "!c.?securityContext.?runAsNonRoot.or(variables.context.?runAsNonRoot).orValue(false)"
        " || c.?securityContext.?runAsUser.or(variables.context.?runAsUser).orValue(1) < 1"
    ),
)
def run_as_non_root(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Root in a container is one mistake away from root on the node."""
    if _is_system(pod, config):
        return
    if not pod.containers:
        context = pod.spec["securityContext"]
        yield from _root_user(context["runAsUser"])
        if context["runAsNonRoot"].value is False:
            yield Violation(context["runAsNonRoot"], "true")
    for container in pod.containers:
        non_root = _effective(pod, container, "runAsNonRoot")
        if non_root.known and non_root.value is not True:
            yield Violation(non_root, "true")
        yield from _root_user(_effective(pod, container, "runAsUser"))


def _root_user(user: Node) -> Iterator[Violation]:
    if user.present and not (type(user.value) is int and user.value > 0):
        yield Violation(user, "the number of a user other than root, such as 10001")


@pod_rule(
    name="no-privilege-escalation",
    description="Containers cannot gain privileges.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Write allowPrivilegeEscalation: false in every container's security context.",
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
    """It is allowed unless it is forbidden."""
    if _is_system(pod, config):
        return
    for container in pod.containers:
        allowed = container.node["securityContext"]["allowPrivilegeEscalation"]
        if allowed.known and allowed.value is not False:
            yield Violation(allowed, "false")


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
        "NSA Pod security enforcement",
        "CIS 5.2.2",
        "CIS 5.2.10",
        "OWASP K01",
    ],
    admission=cel.containers(
        "c.?securityContext.?privileged.orValue(false)"
        " || c.?securityContext.?windowsOptions.or(variables.context.?windowsOptions)"
        ".?hostProcess.orValue(false)"
        " || c.?securityContext.?procMount.orValue('Default') != 'Default'"
    ),
)
def not_privileged(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """A privileged container controls the node and every job on it."""
    if _is_system(pod, config):
        return
    for container in pod.containers:
        context = container.node["securityContext"]
        windows = _effective(pod, container, "windowsOptions")["hostProcess"]
        for flag in (context["privileged"], windows):
            if flag.present and flag.value is not False:
                yield Violation(flag, "false, or leave it out")
        proc = context["procMount"]
        if proc.present and proc.value != "Default":
            yield Violation(proc, '"Default", or leave it out')


def _has_rdma(container: Container, config: CapabilityConfig) -> bool:
    prefixes = tuple(config.rdma_resources)
    return any(
        name.startswith(prefixes) and not amount.absent
        for name, amount in container.resources["limits"].fields()
    )


@pod_rule(
    name="capabilities-dropped",
    description="Containers drop all capabilities and add none.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation='Write capabilities: {drop: ["ALL"]}; with an RDMA device, IPC_LOCK may be added.',
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
        " a.upperAscii() in ['IPC_LOCK', 'CAP_IPC_LOCK']"
        " ? !c.?resources.?limits.orValue({})"
        ".exists(n, settings.rdmaResources.exists(r, n.startsWith(r)))"
        " : !settings.allowedCapabilities.exists(n,"
        " a.upperAscii() in [n.upperAscii(), 'CAP_' + n.upperAscii()]))"
    ),
)
def capabilities_dropped(pod: Pod, config: CapabilityConfig) -> Iterator[Violation]:
    """Computing needs few capabilities, and each is a way to the node."""
    if _is_system(pod, config):
        return
    for container in pod.containers:
        capabilities = container.node["securityContext"]["capabilities"]
        drop, add = capabilities["drop"], capabilities["add"]
        dropped = {_capability(item) for item in drop.items()}
        if drop.complete and "ALL" not in dropped:
            yield Violation(drop, '["ALL"]')
        if add.present and not isinstance(add.value, list):
            yield Violation(add, "a list of capabilities, or leave it out")
        for item in add.items():
            name = _capability(item)
            if name == "IPC_LOCK":
                if not _has_rdma(container, config) and container.resources["limits"].known:
                    yield Violation(item, "an RDMA resource into the limits, or leave it out")
            elif name not in {entry.upper() for entry in config.allowed_capabilities}:
                yield Violation(item, "nothing: remove this capability")


def _capability(item: Node) -> str:
    return str(item.value).upper().removeprefix("CAP_")


@pod_rule(
    name="no-host-namespaces",
    description="Pods do not share the node's processes or its interprocess memory.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Remove hostPID and hostIPC.",
    config=SystemConfig,
    references=[
        "PSS baseline Host Namespaces",
        "NSA Pod security enforcement",
        "CIS 5.2.3",
        "CIS 5.2.4",
        "OWASP K01",
    ],
    admission=cel.pod(
        hostPID="variables.spec.?hostPID.orValue(false)",
        hostIPC="variables.spec.?hostIPC.orValue(false)",
    ),
)
def no_host_namespaces(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """They let a pod inspect and signal every process of every job on the node."""
    if _is_system(pod, config):
        return
    for key in ("hostPID", "hostIPC"):
        flag = pod.spec[key]
        if flag.present and flag.value is not False:
            yield Violation(flag, "false, or leave it out")


@pod_rule(
    name="no-host-path",
    description="Pods do not mount the node's file system.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Use a claim, an emptyDir or a ConfigMap.",
    config=SystemConfig,
    references=[
        "PSS baseline HostPath Volumes",
        "NSA Pod security enforcement",
        "CIS 5.2.11",
        "OWASP K01",
    ],
    admission=cel.volumes("has(v.hostPath)"),
)
def no_host_path(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """A host path is a way out of the pod, and its content differs between nodes."""
    if _is_system(pod, config):
        return
    for volume in pod.volumes.items():
        if volume["hostPath"].present:
            yield Violation(volume["hostPath"], "a persistentVolumeClaim or an emptyDir instead")


@pod_rule(
    name="no-literal-secrets",
    description="Secrets are not written into the environment.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Keep the value in a Secret and write valueFrom.secretKeyRef.",
    config=EnvironmentConfig,
    references=["NSA Secrets", "CIS 5.4.2", "OWASP K03"],
    admission=cel.containers(
        "c.?env.orValue([]).exists(e, has(e.value) && e.value != ''"
        " && !(e.name in settings.allowedNames)"
        " && !e.value.matches(r'^\\$\\([A-Za-z_][A-Za-z0-9_]*\\)$')"
        " && !(e.name.matches('(?i)_(FILE|PATH)$') && e.value.startsWith('/'))"
        f" && (e.name.matches({cel.literal(_SECRET_NAME.pattern)})"
        f" || e.value.matches({cel.literal(_SECRET_VALUE.pattern)})))"
    ),
)
def no_literal_secrets(pod: Pod, config: EnvironmentConfig) -> Iterator[Violation]:
    """Everyone who may read the pod can read its environment, and logs contain it too."""
    for container in pod.containers:
        for variable in container.node["env"].items():
            name, value = variable["name"].text or "", variable["value"]
            if value.absent or value.value is UNKNOWN or name in config.allowed_names:
                continue
            text = str(value.value)
            references = bool(re.fullmatch(r"\$\([A-Za-z_][A-Za-z0-9_]*\)", text))
            is_path = name.upper().endswith(("_FILE", "_PATH")) and text.startswith("/")
            if not text or references or is_path:
                continue
            if _SECRET_NAME.search(name) or _SECRET_VALUE.search(text):
                yield Violation(
                    value,
                    f"{name} as valueFrom.secretKeyRef",
                    found="a literal, which is not shown here",
                )


@pod_rule(
    name="no-service-account-token",
    description="Pods that do not use the API have no token for it.",
    severity=Severity.MEDIUM,
    level=Level.ADVISORY,
    remediation="Write automountServiceAccountToken: false.",
    config=SystemConfig,
    references=["NSA Protecting Pod service account tokens", "CIS 5.1.6", "OWASP K01", "OWASP K09"],
    admission=cel.pod(
        automountServiceAccountToken="variables.spec.?automountServiceAccountToken.orValue(true)"
    ),
)
def no_service_account_token(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """If a model executes foreign code, that code finds the token first."""
    flag = pod.spec["automountServiceAccountToken"]
    if flag.known and flag.value is not False and not _is_system(pod, config):
        yield Violation(flag, "false")


@resource_rule(
    name="service-not-public",
    description="Services are not load balancers unless allowed by name.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Use a ClusterIP behind a Gateway, or allow this Service by name.",
    config=ServiceConfig,
    references=["OWASP K05"],
    admission=cel.Cel(
        "settings.allowedServices.exists(a, a == variables.inNamespace + '/Service/'"
        " + object.metadata.name) ? []"
        " : (object.spec.type == 'LoadBalancer' ? ['type'] : [])"
        " + (object.spec.?externalIPs.orValue([]) != [] ? ['externalIPs'] : [])",
        cel.SERVICES,
    ),
)
def service_not_public(resource: Resource, config: ServiceConfig) -> Iterator[Violation]:
    """A load balancer exposes the model to the internet and is billed by the hour."""
    if not resource.is_kind("", "Service") or resource.address in config.allowed_services:
        return
    kind = resource.root["spec"]["type"]
    if kind.present and kind.value not in ("ClusterIP", "NodePort", "ExternalName"):
        yield Violation(kind, '"ClusterIP"', found=show(kind.value))
    addresses = resource.root["spec"]["externalIPs"]
    if addresses.present and addresses.value != []:
        yield Violation(addresses, "nothing: external addresses take over other hosts' traffic")


RULES: list[Rule[Any]] = [
    run_as_non_root,
    no_privilege_escalation,
    not_privileged,
    capabilities_dropped,
    no_host_namespaces,
    no_host_path,
    no_literal_secrets,
    no_service_account_token,
    service_not_public,
]
