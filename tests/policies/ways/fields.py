"""Ways to weaken a pod through easily overlooked fields of pods and all types of containers."""

from copy import deepcopy
from typing import Any

from tests.policies.harness import REMOVED, changed
from tests.policies.ways.pods import JOB, MAIN, POD, WEB, container, pod
from tests.policies.ways.way import Way, documents, way

GOOD: Any = documents(WEB)[0]["spec"]["template"]["spec"]["containers"][0]


def additional_container(description: str, place: str, rules: str, *edits: tuple[str, Any]) -> Way:
    """Return an edit that adds a container, hardened like the first one except for the edits."""
    plain = {key: deepcopy(GOOD[key]) for key in ("image", "resources", "securityContext")}
    return way(
        description, WEB, rules, (f"{POD}/{place}", [changed({"name": "more", **plain}, *edits)])
    )


PRIVILEGED = ("securityContext/privileged", True)
SIDECAR = ("restartPolicy", "Always")

WAYS = [
    additional_container(
        "a sidecar is privileged", "initContainers", "not-privileged", SIDECAR, PRIVILEGED
    ),
    additional_container(
        "a sidecar that runs as root",
        "initContainers",
        "run-as-non-root",
        SIDECAR,
        ("securityContext/runAsUser", 0),
    ),
    additional_container(
        "a sidecar with a capability",
        "initContainers",
        "capabilities-dropped",
        SIDECAR,
        ("securityContext/capabilities/add", ["SYS_ADMIN"]),
    ),
    additional_container(
        "an init container with a moving tag",
        "initContainers",
        "image-tag-fixed",
        ("image", "web:edge"),
    ),
    additional_container(
        "an ephemeral container is privileged", "ephemeralContainers", "not-privileged", PRIVILEGED
    ),
    additional_container(
        "an ephemeral container with privilege escalation",
        "ephemeralContainers",
        "no-privilege-escalation",
        ("securityContext/allowPrivilegeEscalation", True),
    ),
    additional_container(
        "a sidecar with an unmasked /proc",
        "initContainers",
        "not-privileged",
        SIDECAR,
        ("securityContext/procMount", "Unmasked"),
    ),
    additional_container(
        "a sidecar as a Windows HostProcess container",
        "initContainers",
        "not-privileged",
        SIDECAR,
        ("securityContext/windowsOptions", {"hostProcess": True}),
    ),
    additional_container(
        "a sidecar whose probe calls another host",
        "initContainers",
        "probes-stay-in-pod",
        SIDECAR,
        ("startupProbe", {"tcpSocket": {"host": "169.254.169.254", "port": 80}}),
    ),
    additional_container(
        "an init container with a host port",
        "initContainers",
        "no-host-ports",
        SIDECAR,
        ("ports", [{"containerPort": 80, "hostPort": 80}]),
    ),
    additional_container(
        "an init container with a secret",
        "initContainers",
        "no-literal-secrets",
        ("env", [{"name": "API_KEY", "value": "correct-horse-battery"}]),
    ),
    container(
        "a hook that calls the cloud's metadata server",
        "lifecycle",
        {"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/"}}},
        "probes-stay-in-pod",
    ),
    container(
        "a capability with its CAP_ prefix", "securityContext/capabilities/add", ["CAP_SYS_PTRACE"]
    ),
    container(
        "all capabilities with the CAP_ prefix", "securityContext/capabilities/add", ["CAP_ALL"]
    ),
    container("a lower-case capability", "securityContext/capabilities/add", ["sys_module"]),
    container(
        "an SELinux role in a container", "securityContext/seLinuxOptions", {"role": "sysadm_r"}
    ),
    pod(
        "a pod of Windows HostProcess containers",
        "securityContext/windowsOptions",
        {"hostProcess": True},
    ),
    pod(
        "a node-wide network sysctl",
        "securityContext/sysctls",
        [{"name": "net.core.somaxconn", "value": "1024"}],
    ),
    pod("root among supplemental groups", "securityContext/supplementalGroups", [2000, 0]),
    pod(
        "a host volume through an inline CSI driver",
        "volumes",
        [{"name": "v", "csi": {"driver": "hostpath.csi.k8s.io", "volumeAttributes": {}}}],
    ),
    pod(
        "a toleration for cordoned nodes",
        "tolerations",
        [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
    ),
    pod(
        "a toleration for etcd nodes",
        "tolerations",
        [{"key": "node-role.kubernetes.io/etcd", "operator": "Exists"}],
    ),
    pod("a system priority class", "priorityClassName", "system-cluster-critical"),
    way(
        "a privileged Pod without a name",
        "gpu_smoke_test",
        "not-privileged",
        ("0/metadata/name", REMOVED),
        ("0/metadata/generateName", "smoke-"),
        ("0/spec/containers/0/securityContext/privileged", True),
    ),
    way(
        "the host network through a word that YAML reads as true",
        WEB,
        "no-host-namespaces",
        (f"{POD}/hostNetwork", "true"),
    ),
    way(
        "privileged set to a string",
        WEB,
        "not-privileged",
        (f"{MAIN}/securityContext/privileged", "yes"),
    ),
    way(
        "the root user ID as a string",
        WEB,
        "run-as-non-root",
        (f"{POD}/securityContext/runAsUser", "0"),
    ),
    way(
        "a training Job in root's group",
        "volcano_queue",
        "run-as-non-root",
        (f"{JOB}/securityContext/fsGroup", 0),
    ),
    # images
    *(
        container(f"the moving tag {tag}", "image", f"ghcr.io/team/web:{tag}", "image-tag-fixed")
        for tag in (
            "prod",
            "release",
            "current",
            "rolling",
            "lts",
            "testing",
            "5.2-latest",
            "next",
            "weekly",
            "nonroot",
            "cuda12-beta",
            "feature-a",
        )
    ),
    container("a truncated digest", "image", "ghcr.io/team/web@sha256:4c4280", "image-tag-fixed"),
    way(
        "an image volume has no version",
        WEB,
        "image-tag-fixed",
        (f"{POD}/volumes", [{"name": "i", "image": {"reference": "ghcr.io/team/data"}}]),
    ),
    # secrets
    container(
        "a bearer token in the arguments",
        "args",
        ["curl", "-H", "Authorization: Bearer Zm9vYmFyYmF6cXV4MTIz", "https://api.example.com"],
        "no-literal-secrets",
    ),
    container(
        "a token in a probe header",
        "readinessProbe",
        {
            "httpGet": {
                "path": "/",
                "port": 8080,
                "httpHeaders": [{"name": "Authorization", "value": "Bearer Zm9vYmFyYmF6cXV4MTIz"}],
            }
        },
    ),
    container(
        "a webhook without authentication",
        "env",
        [
            {
                "name": "NOTIFY",
                "value": "https://hooks.slack.com/services/T0AAAAAAA/B0AAAAAAA/" + "a" * 24,
            }
        ],
    ),
    container(
        "a signed URL",
        "env",
        [
            {
                "name": "DATA",
                "value": "https://a.blob.core.windows.net/c?sv=2024-01-01&sig=" + "aB3" * 14,
            }
        ],
    ),
    container(
        "a key in base64",
        "env",
        [{"name": "CERT", "value": "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF"}],
    ),
]
