"""Ways to weaken the isolation of a pod: Pod Security, namespaces, users, volumes, images."""

from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.way import Way, way

WEB = "ordinary_web_application"
POD = "0/spec/template/spec"
MAIN = f"{POD}/containers/0"
JOB = "1/spec/template/spec"


def pod(description: str, field: str, value: Any, rules: str = "") -> Way:
    """Return an edit that sets a pod field in an ordinary Deployment."""
    return way(description, WEB, rules, (f"{POD}/{field}", value))


def container(description: str, field: str, value: Any, rules: str = "") -> Way:
    """Return an edit that sets a container field in an ordinary Deployment."""
    return way(description, WEB, rules, (f"{MAIN}/{field}", value))


def volume(source: str, value: Any) -> Way:
    """Return an edit that adds a volume not allowed by Pod Security's restricted level."""
    return pod(f"a volume of type {source}", "volumes", [{"name": "v", source: value}])


CONTEXT = "securityContext"

WAYS = [
    # Pod Security Standards
    pod("the host network", "hostNetwork", True),
    pod("the host PID namespace", "hostPID", True, "no-host-namespaces"),
    pod("the host IPC namespace", "hostIPC", True, "no-host-namespaces"),
    container("a host port", "ports", [{"containerPort": 8080, "hostPort": 80}]),
    pod("no seccomp profile", f"{CONTEXT}/seccompProfile", {"type": "Unconfined"}),
    container(
        "no seccomp profile in a container", f"{CONTEXT}/seccompProfile", {"type": "Unconfined"}
    ),
    pod("no AppArmor profile", f"{CONTEXT}/appArmorProfile", {"type": "Unconfined"}),
    container(
        "no AppArmor profile in a container", f"{CONTEXT}/appArmorProfile", {"type": "Unconfined"}
    ),
    way(
        "no AppArmor profile through an annotation",
        WEB,
        "",
        (
            "0/spec/template/metadata/annotations",
            {"container.apparmor.security.beta.kubernetes.io/web": "unconfined"},
        ),
    ),
    pod("an unconfined SELinux type", f"{CONTEXT}/seLinuxOptions", {"type": "spc_t"}),
    container("an SELinux user", f"{CONTEXT}/seLinuxOptions", {"user": "system_u"}),
    pod("an unsafe sysctl", f"{CONTEXT}/sysctls", [{"name": "kernel.msgmax", "value": "65536"}]),
    container("an unmasked /proc", f"{CONTEXT}/procMount", "Unmasked", "not-privileged"),
    pod(
        "a Windows HostProcess container",
        f"{CONTEXT}/windowsOptions",
        {"hostProcess": True},
        "not-privileged",
    ),
    way(
        "a Windows HostProcess container with its own Windows options",
        WEB,
        "not-privileged",
        (f"{POD}/{CONTEXT}/windowsOptions", {"hostProcess": True}),
        (f"{MAIN}/{CONTEXT}/windowsOptions", {"runAsUserName": "web"}),
    ),
    pod("root's group", f"{CONTEXT}/runAsGroup", 0),
    pod("root's group as fsGroup", f"{CONTEXT}/fsGroup", 0),
    pod("root's group as a supplemental group", f"{CONTEXT}/supplementalGroups", [0]),
    pod("root", f"{CONTEXT}/runAsUser", 0, "run-as-non-root"),
    container("the root user in one container", f"{CONTEXT}/runAsUser", 0, "run-as-non-root"),
    pod("runAsNonRoot not set", f"{CONTEXT}/runAsNonRoot", REMOVED, "run-as-non-root"),
    container("privileges", f"{CONTEXT}/privileged", True, "not-privileged"),
    container("escalation", f"{CONTEXT}/allowPrivilegeEscalation", True, "no-privilege-escalation"),
    container("all capabilities", f"{CONTEXT}/capabilities", {}, "capabilities-dropped"),
    container("a capability", f"{CONTEXT}/capabilities/add", ["NET_ADMIN"], "capabilities-dropped"),
    container("IPC_LOCK", f"{CONTEXT}/capabilities/add", ["IPC_LOCK"], "capabilities-dropped"),
    volume("nfs", {"server": "10.0.0.1", "path": "/"}),
    *(
        pod(
            f"a network volume of the CSI driver {driver}",
            "volumes",
            [{"name": "v", "csi": {"driver": driver}}],
            "volume-types-restricted",
        )
        for driver in (
            *("nfs.csi.k8s.io", "smb.csi.k8s.io", "org.democratic-csi.nfs", "iscsi.csi.k8s.io"),
            *("file.csi.azure.com", "blob.csi.azure.com"),
        )
    ),
    volume("iscsi", {"targetPortal": "10.0.0.1", "iqn": "iqn.a", "lun": 0}),
    volume("flexVolume", {"driver": "team/evil"}),
    volume("gitRepo", {"repository": "https://git.example.com/a"}),
    volume("cephfs", {"monitors": ["10.0.0.1"]}),
    volume("rbd", {"monitors": ["10.0.0.1"], "image": "a"}),
    volume("fc", {"targetWWNs": ["a"], "lun": 0}),
    volume("azureFile", {"secretName": "a", "shareName": "b"}),
    volume("hostPath", {"path": "/var/run/containerd"}),
    # images
    *(
        container(f"the moving tag {tag}", "image", f"ghcr.io/team/web:{tag}", "image-tag-fixed")
        for tag in ("latest", "main", "master", "nightly", "dev", "latest-cuda", "gpu", "noble")
    ),
    way(
        "an image from a registry whose name begins with an allowed one",
        WEB,
        "image-registry-allowed",
        (f"{MAIN}/image", "ghcr.io.evil.com/team/web:1.0"),
        image_registry_allowed={"allowedRegistries": ["ghcr.io"]},
    ),
    way(
        "an image from another registry in an init container",
        WEB,
        "image-registry-allowed",
        (
            f"{POD}/initContainers",
            [
                {
                    "name": "a",
                    "image": "evil.com/a:1.0",
                    CONTEXT: {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        ),
        image_registry_allowed={"allowedRegistries": ["ghcr.io/team"]},
    ),
]
