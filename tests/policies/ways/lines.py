"""Ways to write a secret, an image, a device or a probe so that a pattern may overlook it."""

from typing import Any

from tests.policies.ways.makers import spec
from tests.policies.ways.pods import MAIN, POD, WEB, container, pod
from tests.policies.ways.way import Way, way

TOKEN = "ghp_" + "aB3dE6gH9j" * 4
CURL = "curl -u admin:correct-horse https://a.com"
HEADER = "Authorization: Basic YWRtaW46aHVudGVyMg=="
SECRETS = "no-literal-secrets"
OTHERS = "no-secrets-in-manifests"
VLLM = "g01_vllm_deployment"
DEVICES = "NVIDIA_VISIBLE_DEVICES"


def devices(what: str, **variable: Any) -> Way:
    """A variable with the devices of a container that has no GPU."""
    variables = [{"name": "ALL", "value": "all"}, {"name": DEVICES, **variable}]
    return container(what, "env", variables, "gpu-limit-present")


def probe(command: list[str]) -> Way:
    """A probe that succeeds whatever the server does."""
    return way(
        f"a probe that runs {' '.join(command)}",
        VLLM,
        "inference-probes",
        (f"{MAIN}/readinessProbe", {"exec": {"command": command}}),
    )


WAYS = [
    # secrets
    container("a password of curl", "args", ["sh", "-c", CURL], SECRETS),
    container("a password of curl in separate words", "args", CURL.split(), SECRETS),
    container("a header with a password", "args", ["curl", "-H", HEADER, "a"], SECRETS),
    container("a password after its option", "args", ["--password", "hunter2x9Q"], SECRETS),
    container(
        "a password in a hook",
        "lifecycle",
        {"preStop": {"exec": {"command": ["sh", "-c", CURL]}}},
        OTHERS,
    ),
    container(
        "a token in the command of a probe",
        "livenessProbe",
        {"exec": {"command": ["curl", "-H", f"Authorization: Bearer {TOKEN}"]}},
        OTHERS,
    ),
    way("a token in a label", WEB, OTHERS, ("0/metadata/labels/token", TOKEN)),
    way("a token in an annotation", WEB, OTHERS, ("0/metadata/annotations", {"a": TOKEN})),
    spec(
        "the password of Redis for Ray's head",
        "ray.io/v1",
        "RayCluster",
        OTHERS,
        gcsFaultToleranceOptions={
            "redisAddress": "redis:6379",
            "redisPassword": {"value": "correct-horse"},
        },
    ),
    spec(
        "the password of Redis as a parameter of Ray",
        "ray.io/v1",
        "RayCluster",
        OTHERS,
        headGroupSpec={"rayStartParams": {"redis-password": "correct-horse"}},
    ),
    # devices
    devices("all GPUs by another variable", value="$(ALL)"),
    devices("GPUs by a Secret", valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}),
    devices("GPUs by an annotation", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
    devices("GPUs by a file", valueFrom={"fileKeyRef": {"volumeName": "v", "key": "b"}}),
    container(
        "the configuration of MIG",
        "env",
        [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}],
        "gpu-limit-present",
    ),
    # images
    *(
        container(f"an image {what}", "image", f"ghcr.io/team/web{version}", "image-tag-fixed")
        for what, version in (
            ("whose digest is too short", "@sha256:abc"),
            ("whose digest is no number", ":latest@sha256:" + "G" * 64),
            ("whose digest lacks a digit", "@sha256:" + "0" * 63),
            ("of the latest version in capitals", ":LATEST"),
            ("of a moving tag before a version", ":v1-latest"),
        )
    ),
    # protections in other words
    container(
        "a capability in small letters",
        "securityContext/capabilities/add",
        ["sys_admin"],
        "capabilities-dropped",
    ),
    container(
        "a capability with its prefix",
        "securityContext/capabilities/add",
        ["CAP_NET_RAW"],
        "capabilities-dropped",
    ),
    container(
        "one dropped capability",
        "securityContext/capabilities/drop",
        ["NET_RAW"],
        "capabilities-dropped",
    ),
    pod(
        "a certificate that the API accepts",
        "volumes",
        [
            {
                "name": "a",
                "projected": {
                    "sources": [
                        {"podCertificate": {"signerName": "kubernetes.io/kube-apiserver-client"}}
                    ]
                },
            }
        ],
        "no-hidden-token",
    ),
    way(
        "a disk over the shared memory",
        "kueue_indexed_job",
        "shm-bounded-memory",
        (f"{POD}/containers/0/volumeMounts/1", {"name": "disk", "mountPath": "/dev/shm/"}),
        (f"{POD}/volumes/1", {"name": "disk", "emptyDir": {"sizeLimit": "64Gi"}}),
    ),
    # probes
    *(
        probe(command)
        for command in (
            ["/bin/true"],
            ["sleep", "0"],
            ["echo", "ok"],
            ["sh", "-c", "exit 0"],
            ["sh", "-c", "curl localhost || true"],
        )
    ),
]

HARMLESS = [
    container("a password of curl by a variable", "args", ["sh", "-c", "curl -u $U:$P a"]),
    container("a user of curl without a password", "args", ["curl", "--user-agent", "a:bcdefg"]),
    container("an address without a password", "args", ["--url", "postgres://user@db/a"]),
    container("a header by a variable", "args", ["-H", "Authorization: Basic $(AUTH)"]),
    container("no GPU by a variable", "env", [{"name": DEVICES, "value": "void"}]),
    container(
        "a hook without a secret",
        "lifecycle",
        {"preStop": {"exec": {"command": ["sh", "-c", "curl localhost:8080/quit"]}}},
    ),
    container(
        "an image by digest alone",
        "image",
        "ghcr.io/team/web@sha256:" + "0" * 64,
    ),
    container(
        "a file with a token",
        "env",
        [{"name": "TOKEN_FILE", "value": "/var/run/secrets/token"}],
    ),
]
"""Lines of a container that look like a secret or a device, and contain none."""
