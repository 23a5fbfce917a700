"""Rule about annotations that let other components change a pod."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from policies import cel
from policies.rule import Level, Rule, Severity, Violation, pod_rule
from policies.settings import NamePatterns, SystemConfig
from policies.workloads import Pod


class AnnotationConfig(SystemConfig):
    """Configuration of `annotations-bounded`."""

    changing_annotations: NamePatterns = Field(
        default=[
            # container runtimes and their plugins
            *("io.kubernetes.cri-o.*", "io.containerd.*", "run.oci.*", "*.nri.*/*"),
            *("*noderesource.dev/*", "io.katacontainers.*", "dev.gvisor.*"),
            *("*.crio.io*", "*.kubernetes.cri-o.io*", "hooks.kubevirt.io/*"),
            # networks and clouds
            *("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"),
            *("cni.projectcalico.org/ipaddrs*", "cni.projectcalico.org/hwaddr"),
            *("cni.projectcalico.org/allowedsourceprefixes", "cni.projectcalico.org/floatingips"),
            "iam.amazonaws.com/role",
            # sidecars
            *("sidecar.istio.io/proxyimage", "sidecar.istio.io/uservolume*"),
            *("sidecar.istio.io/bootstrapoverride", "proxy.istio.io/overrides"),
            *("*.linkerd.io/*image", "*.linkerd.io/enable-debug-sidecar"),
            *("vault.hashicorp.com/*json-patch", "vault.hashicorp.com/agent-run-as-user"),
            *("vault.hashicorp.com/*image", "vault.security.banzaicloud.io/*image"),
            *("dapr.io/*image", "dapr.io/volume-mounts*"),
            *("consul.hashicorp.com/consul-sidecar-user-volume*", "kuma.io/container-patches"),
            *("appmesh.k8s.aws/*mounts", "admission.datadoghq.com/*custom-image"),
        ],
        description="Annotations that change the devices, files, networks, identity or images of a "
        "pod; `*` matches anything.",
    )
    allowed_annotations: NamePatterns = Field(
        default=[],
        description="Exceptions, such as `k8s.v1.cni.cncf.io/networks` for an RDMA network; `*` "
        "matches anything.",
    )


@pod_rule(
    name="annotations-bounded",
    description="Pods have no annotations that let a runtime, network plugin or sidecar injector "
    "change the pod.",
    severity=Severity.HIGH,
    level=Level.MANDATORY,
    remediation="Set the fields of the pod instead, or list the annotation in allowedAnnotations.",
    config=AnnotationConfig,
    references=["NSA Pod security enforcement", "OWASP K01"],
    admission=cel.Cel(
        "variables.annotations.exists(n,"
        " n.lowerAscii().matches(pattern(settings.changingAnnotations))"
        " && !n.lowerAscii().matches(pattern(settings.allowedAnnotations))) ? ['annotations'] : []",
        cel.ANNOTATED_PODS,
    ),
)
def annotations_bounded(pod: Pod, config: AnnotationConfig) -> Iterator[Violation]:
    """Changes through annotations are not in the pod's fields, so no other rule can check them."""
    for name, value in pod.annotations():
        if _matches(name, config.changing_annotations) and not _matches(
            name, config.allowed_annotations
        ):
            yield Violation(value, "nothing: no rule can check what the annotation adds to the pod")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


RULES: list[Rule[Any]] = [annotations_bounded]
