"""Rules from the baseline level of the Pod Security Standards that restrict access to the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from policies import cel
from policies.rule import Level, Rule, Severity, Violation, pod_rule
from policies.settings import SystemConfig
from policies.workloads import Pod

HOST_DRIVER: Final = re.compile(r"(?i)host-?path|local")
"""Pattern of CSI drivers that mount directories of the node. The admission policy contains the
pattern as well."""
HOST_SOURCES: Final = ("hostPath", "hostDisk")
"""Volume sources with a path on the node."""


@pod_rule(
    name="no-host-namespaces",
    description="Pods do not share the node's network, PID or IPC namespace.",
    severity=Severity.CRITICAL,
    level=Level.MANDATORY,
    remediation="Remove hostNetwork, hostPID and hostIPC.",
    config=SystemConfig,
    references=[
        "PSS baseline Host Namespaces",
        "NSA Pod security enforcement",
        "CIS 5.2.3",
        "CIS 5.2.4",
        "CIS 5.2.5",
        "OWASP K01",
    ],
    admission=cel.pod(
        **{
            key: f"variables.spec.?{key}.orValue(false)"
            for key in ("hostNetwork", "hostPID", "hostIPC")
        }
    ),
)
def no_host_namespaces(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """In the host's namespaces, a pod can reach all processes and connections on the node."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
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
    admission=cel.volumes(
        f"has(v.hostPath) || v.?csi.?driver.orValue('').matches({cel.literal(HOST_DRIVER.pattern)})"
    ),
)
def no_host_path(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """A pod with a hostPath volume can access the node, and each node has different files."""
    for volume in pod.volumes.items():
        for source in HOST_SOURCES:
            if volume[source].present:
                expected = "a persistentVolumeClaim or an emptyDir instead"
                yield Violation(volume[source], expected)
        driver = volume["csi"]["driver"]
        if driver.text and HOST_DRIVER.search(driver.text):
            yield Violation(driver, "a network storage driver")


@pod_rule(
    name="no-host-ports",
    description="Containers do not open ports on the node.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Remove hostPort and expose the pods with a Service.",
    config=SystemConfig,
    references=["PSS baseline Host Ports", "NSA Network policies", "CIS 5.2.12"],
    # With hostNetwork, the API server itself sets hostPort.
    admission=cel.containers(
        "!variables.spec.?hostNetwork.orValue(false)"
        " && c.?ports.orValue([]).exists(p, p.?hostPort.orValue(0) != 0)"
    ),
)
def no_host_ports(pod: Pod, config: SystemConfig) -> Iterator[Violation]:
    """Network policies do not apply to host ports, and only one pod per node can use each port."""
    if pod.spec["hostNetwork"].value is True:
        return
    for container in pod.containers:
        for port in container.node["ports"].items():
            if port["hostPort"].present and port["hostPort"].value != 0:
                yield Violation(port["hostPort"], "nothing: use a Service")


RULES: list[Rule[Any]] = [no_host_namespaces, no_host_path, no_host_ports]
