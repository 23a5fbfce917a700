"""Ways to write a secret, image, device or probe so that a pattern may miss it."""

from typing import Any

from tests.policies.ways.makers import replacement_with_spec
from tests.policies.ways.pods import MAIN, POD, WEB, container, pod
from tests.policies.ways.way import Way, way

TOKEN = "ghp_" + "aB3dE6gH9j" * 4
CURL = "curl -u admin:correct-horse https://a.com"
HEADER = "Authorization: Basic YWRtaW46aHVudGVyMg=="
SECRETS = "no-literal-secrets"
OTHERS = "no-secrets-in-manifests"
VLLM = "g01_vllm_deployment"
DEVICES = "NVIDIA_VISIBLE_DEVICES"


def devices(description: str, **variable: Any) -> Way:
    """Return an edit that sets a device variable in a container without a GPU."""
    variables = [{"name": "ALL", "value": "all"}, {"name": DEVICES, **variable}]
    return container(description, "env", variables, "gpu-limit-present")


def probe(command: list[str]) -> Way:
    """Return an edit that sets a probe that always succeeds."""
    return way(
        f"a probe that runs {' '.join(command)}",
        VLLM,
        "inference-probes",
        (f"{MAIN}/readinessProbe", {"exec": {"command": command}}),
    )


WAYS = [
    # secrets
    container("a password for curl", "args", ["sh", "-c", CURL], SECRETS),
    container("a password for curl as a separate argument", "args", CURL.split(), SECRETS),
    container("a header with a password", "args", ["curl", "-H", HEADER, "a"], SECRETS),
    container("a password as an option value", "args", ["--password", "hunter2x9Q"], SECRETS),
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
    replacement_with_spec(
        "the Redis password of Ray's head",
        "ray.io/v1",
        "RayCluster",
        OTHERS,
        gcsFaultToleranceOptions={
            "redisAddress": "redis:6379",
            "redisPassword": {"value": "correct-horse"},
        },
    ),
    replacement_with_spec(
        "the Redis password as a Ray parameter",
        "ray.io/v1",
        "RayCluster",
        OTHERS,
        headGroupSpec={"rayStartParams": {"redis-password": "correct-horse"}},
    ),
    # devices
    devices("all GPUs through another variable", value="$(ALL)"),
    devices("GPUs through a Secret", valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}),
    devices("GPUs through an annotation", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
    devices(
        "GPUs through a mounted file", valueFrom={"fileKeyRef": {"volumeName": "v", "key": "b"}}
    ),
    container(
        "the MIG configuration variable",
        "env",
        [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}],
        "gpu-limit-present",
    ),
    # images
    *(
        container(
            f"an image {description}", "image", f"ghcr.io/team/web{version}", "image-tag-fixed"
        )
        for description, version in (
            ("with a short digest", "@sha256:abc"),
            ("with a digest that is not hexadecimal", ":latest@sha256:" + "G" * 64),
            ("with a digest that lacks a digit", "@sha256:" + "0" * 63),
            ("with an upper-case latest tag", ":LATEST"),
            ("with a tag that ends in latest", ":v1-latest"),
        )
    ),
    # protections in unusual notation
    container(
        "a capability in lower-case letters",
        "securityContext/capabilities/add",
        ["sys_admin"],
        "capabilities-dropped",
    ),
    container(
        "a capability with its prefix and upper-case letters",
        "securityContext/capabilities/add",
        ["CAP_NET_RAW"],
        "capabilities-dropped",
    ),
    container(
        "only one dropped capability",
        "securityContext/capabilities/drop",
        ["NET_RAW"],
        "capabilities-dropped",
    ),
    pod(
        "a certificate accepted by the API server",
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
        "a disk volume mounted over the shared memory",
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
    *(
        container(f"the harmless arguments {line}", "args", ["sh", "-c", line])
        for line in (
            "train wandb.api_key=$WANDB_API_KEY db.password=null",
            "python -c 'login(api_key=key, password=args.password)'",
            "wandb login --relogin && train max_new_tokens=2-3",
            "train --tokenizer a --pad_token_id=1234",
            "migrate $(DB_USER):$(DB_PASS)@tcp(db:3306)/app root@tcp(db:3306)/app",
            "EOS_TOKEN=128001 PAD_TOKEN='end_of_text' train --token auto",
        )
    ),
    container(
        "the names of Secrets",
        "env",
        [{"name": "CONFIG", "value": "secret_key: storage-credentials-of-the-team-2026"}],
    ),
    container("a password for curl from a variable", "args", ["sh", "-c", "curl -u $U:$P a"]),
    container("a user for curl without a password", "args", ["curl", "--user-agent", "a:bcdefg"]),
    container("an address without a password", "args", ["--url", "postgres://user@db/a"]),
    container("a header from a variable", "args", ["-H", "Authorization: Basic $(AUTH)"]),
    container("GPUs disabled by a variable", "env", [{"name": DEVICES, "value": "void"}]),
    container(
        "a hook without a secret",
        "lifecycle",
        {"preStop": {"exec": {"command": ["sh", "-c", "curl localhost:8080/quit"]}}},
    ),
    container(
        "an image with only a digest",
        "image",
        "ghcr.io/team/web@sha256:" + "0" * 64,
    ),
    container(
        "a token file",
        "env",
        [{"name": "TOKEN_FILE", "value": "/var/run/secrets/token"}],
    ),
]
"""Container fields that look like secrets or devices but are harmless."""
