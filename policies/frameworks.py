"""Controls of published security frameworks, to which rules refer.

A reference is written as the framework's short name and the control: `CIS 5.2.2`. Only controls
that can be checked on manifests are listed; unknown controls are rejected.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A published framework, with the version whose controls are listed."""

    name: str
    version: str
    url: str
    controls: frozenset[str]


FRAMEWORKS = {
    "PSS": Framework(
        "Pod Security Standards",
        "1.34",
        "https://kubernetes.io/docs/concepts/security/pod-security-standards/",
        frozenset(
            {
                f"baseline {control}"
                for control in (
                    "AppArmor",
                    "Capabilities",
                    "Host Namespaces",
                    "Host Ports",
                    "Host Probes / Lifecycle Hooks",
                    "HostPath Volumes",
                    "HostProcess",
                    "/proc Mount Type",
                    "Privileged Containers",
                    "SELinux",
                    "Seccomp",
                    "Sysctls",
                )
            }
            | {
                f"restricted {control}"
                for control in (
                    "Capabilities",
                    "Privilege Escalation",
                    "Running as Non-root",
                    "Running as Non-root user",
                    "Seccomp",
                    "Volume Types",
                )
            }
        ),
    ),
    "NSA": Framework(
        "NSA/CISA Kubernetes Hardening Guide",
        "1.2",
        "https://media.defense.gov/2022/Aug/29/2003066362/-1/-1/0/"
        "CTR_KUBERNETES_HARDENING_GUIDANCE_1.2_20220829.PDF",
        frozenset(
            {
                "Authentication and authorization",
                "Building secure container images",
                "Hardening container environments",
                "Immutable container file systems",
                "Namespaces",
                "Network policies",
                "Non-root containers",
                "Pod security enforcement",
                "Protecting Pod service account tokens",
                "Resource policies",
                "Secrets",
            }
        ),
    ),
    "CIS": Framework(
        "CIS Kubernetes Benchmark",
        "1.12",
        "https://www.cisecurity.org/benchmark/kubernetes",
        frozenset(
            [f"5.1.{number}" for number in range(1, 14)]
            + [f"5.2.{number}" for number in range(1, 13)]
            + ["5.3.1", "5.3.2", "5.4.1", "5.4.2", "5.5.1", "5.6.1", "5.6.2", "5.6.3", "5.6.4"]
        ),
    ),
    "OWASP": Framework(
        "OWASP Kubernetes Top Ten",
        "2025",
        "https://owasp.org/www-project-kubernetes-top-ten/",
        frozenset(f"K{number:02}" for number in range(1, 11)),
    ),
}


@dataclass(frozen=True)
class Reference:
    """A control of a framework."""

    framework: Framework
    control: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Return the control that a rule refers to; raise `ValueError` if it is not listed."""
        name, _, control = text.partition(" ")
        framework = FRAMEWORKS.get(name)
        if framework is None:
            raise ValueError(f"found the framework {name!r}; write one of {', '.join(FRAMEWORKS)}")
        if control not in framework.controls:
            raise ValueError(
                f"{framework.name} {framework.version} has no control {control!r}; "
                f"write one that policies/frameworks.py lists"
            )
        return cls(framework, control)

    def __str__(self) -> str:
        return f"{self.framework.name} {self.framework.version}, {self.control}"
