"""Ways to weaken a pod by fields that are easily forgotten, and in containers of every type."""

from copy import deepcopy
from typing import Any

from tests.policies.harness import REMOVED, changed
from tests.policies.ways.pods import JOB, MAIN, POD, WEB, container, pod
from tests.policies.ways.way import Way, documents, way

GOOD: Any = documents(WEB)[0]["spec"]["template"]["spec"]["containers"][0]


def another(what: str, place: str, rules: str, *edits: tuple[str, Any]) -> Way:
    """One more container, hardened like the first one but for the edits."""
    plain = {key: deepcopy(GOOD[key]) for key in ("image", "resources", "securityContext")}
    return way(what, WEB, rules, (f"{POD}/{place}", [changed({"name": "more", **plain}, *edits)]))


PRIVILEGED = ("securityContext/privileged", True)
SIDECAR = ("restartPolicy", "Always")

WAYS = [
    another("a sidecar is privileged", "initContainers", "not-privileged", SIDECAR, PRIVILEGED),
    another(
        "a sidecar of root",
        "initContainers",
        "run-as-non-root",
        SIDECAR,
        ("securityContext/runAsUser", 0),
    ),
    another(
        "a sidecar with a capability",
        "initContainers",
        "capabilities-dropped",
        SIDECAR,
        ("securityContext/capabilities/add", ["SYS_ADMIN"]),
    ),
    another(
        "an init container of a moving tag",
        "initContainers",
        "image-tag-fixed",
        ("image", "web:edge"),
    ),
    another(
        "an ephemeral container is privileged", "ephemeralContainers", "not-privileged", PRIVILEGED
    ),
    another(
        "an ephemeral container that may escalate",
        "ephemeralContainers",
        "no-privilege-escalation",
        ("securityContext/allowPrivilegeEscalation", True),
    ),
    another(
        "a sidecar with an unmasked /proc",
        "initContainers",
        "not-privileged",
        SIDECAR,
        ("securityContext/procMount", "Unmasked"),
    ),
    another(
        "a sidecar of the Windows host",
        "initContainers",
        "not-privileged",
        SIDECAR,
        ("securityContext/windowsOptions", {"hostProcess": True}),
    ),
    another(
        "a sidecar whose probe calls another host",
        "initContainers",
        "probes-stay-in-pod",
        SIDECAR,
        ("startupProbe", {"tcpSocket": {"host": "169.254.169.254", "port": 80}}),
    ),
    another(
        "an init container with a port of the node",
        "initContainers",
        "no-host-ports",
        SIDECAR,
        ("ports", [{"containerPort": 80, "hostPort": 80}]),
    ),
    another(
        "an init container with a secret",
        "initContainers",
        "no-literal-secrets",
        ("env", [{"name": "API_KEY", "value": "correct-horse-battery"}]),
    ),
    container(
        "a hook that calls the metadata of the cloud",
        "lifecycle",
        {"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/"}}},
        "probes-stay-in-pod",
    ),
    container(
        "a capability by its long name", "securityContext/capabilities/add", ["CAP_SYS_PTRACE"]
    ),
    container("every capability by its long name", "securityContext/capabilities/add", ["CAP_ALL"]),
    container("a capability in lower case", "securityContext/capabilities/add", ["sys_module"]),
    container(
        "an SELinux role of a container", "securityContext/seLinuxOptions", {"role": "sysadm_r"}
    ),
    pod(
        "the Windows host for the whole pod",
        "securityContext/windowsOptions",
        {"hostProcess": True},
    ),
    pod(
        "a sysctl of the network that nodes share",
        "securityContext/sysctls",
        [{"name": "net.core.somaxconn", "value": "1024"}],
    ),
    pod("root among other groups", "securityContext/supplementalGroups", [2000, 0]),
    pod(
        "a volume of the node by CSI in the pod",
        "volumes",
        [{"name": "v", "csi": {"driver": "hostpath.csi.k8s.io", "volumeAttributes": {}}}],
    ),
    pod(
        "a toleration of cordoned nodes",
        "tolerations",
        [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}],
    ),
    pod(
        "a toleration of etcd's nodes",
        "tolerations",
        [{"key": "node-role.kubernetes.io/etcd", "operator": "Exists"}],
    ),
    pod("a priority of the cluster by name", "priorityClassName", "system-cluster-critical"),
    way(
        "a privileged Pod without a name",
        "gpu_smoke_test",
        "not-privileged",
        ("0/metadata/name", REMOVED),
        ("0/metadata/generateName", "smoke-"),
        ("0/spec/containers/0/securityContext/privileged", True),
    ),
    way(
        "the node's network by a word that YAML reads as true",
        WEB,
        "no-host-namespaces",
        (f"{POD}/hostNetwork", "true"),
    ),
    way(
        "privileges by a word", WEB, "not-privileged", (f"{MAIN}/securityContext/privileged", "yes")
    ),
    way(
        "the user of root as text",
        WEB,
        "run-as-non-root",
        (f"{POD}/securityContext/runAsUser", "0"),
    ),
    way(
        "a Job that trains as root's group",
        "volcano_queue",
        "run-as-non-root",
        (f"{JOB}/securityContext/fsGroup", 0),
    ),
    # images
    *(
        container(f"the moving tag {tag}", "image", f"ghcr.io/team/web:{tag}", "image-tag-fixed")
        for tag in ("prod", "release", "current", "rolling", "lts", "testing", "5.2-latest")
    ),
    container(
        "a digest that is cut off", "image", "ghcr.io/team/web@sha256:4c4280", "image-tag-fixed"
    ),
    way(
        "an image as a volume has no version",
        WEB,
        "image-tag-fixed",
        (f"{POD}/volumes", [{"name": "i", "image": {"reference": "ghcr.io/team/data"}}]),
    ),
    # secrets
    container(
        "a bearer token among the arguments",
        "args",
        ["curl", "-H", "Authorization: Bearer Zm9vYmFyYmF6cXV4MTIz", "https://api.example.com"],
        "no-literal-secrets",
    ),
    container(
        "a token in a header of a probe",
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
        "a webhook that anybody may call",
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
