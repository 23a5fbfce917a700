"""Ways to disguise rejected values so that a rule may not recognize them."""

import base64
from typing import Any

from tests.policies.ways.kinds import WEB
from tests.policies.ways.makers import harmless, replacement, replacement_with_spec
from tests.policies.ways.pods import container
from tests.policies.ways.way import Way, way

VLLM = "g01_vllm_deployment"
HUGGING_FACE = "hf_" + "abcDEFghiJKL" * 3


def encoded(text: str) -> str:
    """Return a text in base64."""
    return base64.b64encode(text.encode()).decode()


def variable(description: str, value: str) -> Way:
    """Return an edit that adds a secret in a variable whose name does not reveal it."""
    env = [{"name": "CONFIG", "value": value}]
    return container(f"a variable with {description}", "env", env, "no-literal-secrets")


def image(description: str, reference: str) -> Way:
    """Return an edit that sets an image reference."""
    return container(f"an image with {description}", "image", reference, "image-tag-fixed")


def probe(*command: str) -> Way:
    """Return an edit that sets a liveness probe whose command cannot fail."""
    place = "0/spec/template/spec/containers/0/livenessProbe"
    value = {"exec": {"command": list(command)}}
    return way(f"the probe {command}", VLLM, "inference-probes", (place, value))


def device_class(description: str, name: str, *expressions: str, **fields: Any) -> Way:
    """Return an edit that adds a DeviceClass with the name of a network device."""
    manifest = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": text}} for text in expressions], **fields},
    }
    return way(f"a device class with {description}", WEB, "device-names-kept", ("1", manifest))


def claim(description: str, expression: str) -> Way:
    """Return an edit that adds a claim for network devices with a custom selector."""
    manifest = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a", "namespace": "web"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "a",
                        "exactly": {
                            "deviceClassName": "netdev.google.com",
                            "selectors": [{"cel": {"expression": expression}}],
                        },
                    }
                ]
            }
        },
    }
    return way(f"a claim with {description}", WEB, "claim-devices-counted", ("1", manifest))


def storage_class(description: str, provisioner: str, **fields: Any) -> Way:
    """Return an edit that adds a StorageClass whose directory is a parameter."""
    manifest = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "a"},
        "provisioner": provisioner,
        **fields,
    }
    return way(f"a storage class with {description}", WEB, "no-host-volume", ("1", manifest))


LOCAL_PATH = "rancher.io/local-path"

WAYS = [
    variable("an encoded token", encoded(HUGGING_FACE)),
    variable("an encoded token and its user", encoded(f"user:{HUGGING_FACE}")),
    variable("an encoded setting", encoded("password: correct-horse-battery")),
    variable("an encoded file", encoded(f"# settings\ntoken = {HUGGING_FACE}\n")),
    variable("a token encoded twice", encoded(encoded(HUGGING_FACE))),
    variable("a token for URLs", base64.urlsafe_b64encode(f"~~~?{HUGGING_FACE}".encode()).decode()),
    variable("an encoded URL", encoded("postgres://admin:correct-horse@db/metrics")),
    container(
        "an argument with an encoded token",
        "args",
        ["sh", "-c", f"echo {encoded(HUGGING_FACE)} | base64 -d > /tmp/a"],
        "no-literal-secrets",
    ),
    replacement(
        "an encoded token in a ConfigMap",
        "v1",
        "ConfigMap",
        "no-secrets-in-manifests",
        data={"config": encoded(HUGGING_FACE)},
    ),
    image("a Cyrillic letter in its tag", "ghcr.io/team/web:l\u0430test"),
    image("full-width letters in its tag", "ghcr.io/team/web:\uff4c\uff41\uff54\uff45\uff53\uff54"),
    image("an invisible character in its tag", "ghcr.io/team/web:la\u200btest"),
    image("a Cyrillic letter in its name", "ghcr.io/t\u0435am/web:5.2.0"),
    image("a Cyrillic letter next to its digest", f"ghcr.io/t\u0435am/web@sha256:{'a' * 64}"),
    image("a template in its tag", "ghcr.io/team/web:${TAG}"),
    image("a space", "ghcr.io/team/web: 5.2.0"),
    image("capital letters in its name", "ghcr.io/Team/Web:5.2.0"),
    probe("test", "1"),
    probe("[", "1", "]"),
    probe("/usr/bin/test", "-n", "a"),
    probe("[", "1", "=", "1", "]"),
    probe("sh", "-c", "[ 1 ]"),
    probe("sh", "-c", "[[ 1 == 1 ]]"),
    probe("sh", "-c", "true"),
    probe("/bin/sh", "-ec", "exec true"),
    probe("sh", "-c", "sh -c true"),
    probe("env", "true"),
    probe("sh", "-c", "curl -f localhost:8000/health; true"),
    probe("sh", "-c", "curl -f localhost:8000/health; exit 0"),
    probe("sh", "-c", "curl -f localhost:8000/health || echo failed"),
    probe("sh", "-c", "curl -f localhost:8000/health & "),
    probe("python3", "-c", "pass"),
    probe("python", "-c", "exit(0)"),
    probe("ls"),
    probe("printf", "ok"),
    device_class("a GPU driver", "mrdma.google.com", "device.driver == 'gpu.nvidia.com'"),
    device_class("no selector", "mrdma.google.com"),
    device_class("a selector that matches every device", "netdev.google.com", "true"),
    device_class(
        "a selector with alternative drivers",
        "netdev.google.com",
        "device.driver == 'netdev.google.com' || device.driver.startsWith('gpu')",
    ),
    device_class(
        "a partial driver name", "netdev.google.com", "device.driver.endsWith('nvidia.com')"
    ),
    claim("a GPU driver", "device.driver == 'gpu.nvidia.com'"),
    claim("attributes of GPUs", "device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    storage_class("a node directory", LOCAL_PATH, parameters={"nodePath": "/"}),
    storage_class(
        "a directory template",
        LOCAL_PATH,
        parameters={"pathPattern": "../../etc", "allowUnsafePathPattern": "true"},
    ),
    storage_class("the base directory", "openebs.io/local", parameters={"basePath": "/var"}),
    storage_class(
        "the directory in an annotation",
        "openebs.io/local",
        metadata={
            "name": "a",
            "annotations": {"cas.openebs.io/config": "- name: BasePath\n  value: /var\n"},
        },
    ),
    replacement_with_spec(
        "a model cache node group with a host path",
        "serving.kserve.io/v1alpha1",
        "LocalModelNodeGroup",
        "no-host-volume",
        persistentVolumeSpec={"hostPath": {"path": "/"}, "accessModes": ["ReadWriteOnce"]},
    ),
    replacement_with_spec(
        "a model cache node group with a local volume",
        "serving.kserve.io/v1alpha1",
        "LocalModelNodeGroup",
        "no-host-volume",
        persistentVolumeSpec={"local": {"path": "/etc"}, "storageClassName": "local"},
    ),
    replacement_with_spec(
        "a LimitRange that gives every container GPUs",
        "v1",
        "LimitRange",
        "device-names-kept",
        limits=[{"type": "Container", "default": {"nvidia.com/gpu": 1}}],
    ),
    replacement(
        "endpoints at the cloud's metadata server",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "service-not-public",
        addressType="IPv4",
        endpoints=[{"addresses": ["169.254.169.254"]}],
    ),
    replacement(
        "endpoints at a metadata server, as an IPv6 address",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "service-not-public",
        addressType="IPv6",
        endpoints=[{"addresses": ["::ffff:100.100.100.200"]}],
    ),
    replacement(
        "Endpoints on the node in the older API",
        "v1",
        "Endpoints",
        "service-not-public",
        subsets=[{"addresses": [{"ip": "127.0.0.1"}]}],
    ),
    replacement_with_spec(
        "the host name of the cloud's metadata server",
        "v1",
        "Service",
        "service-not-public",
        type="ExternalName",
        externalName="metadata.google.internal",
    ),
    replacement(
        "a node selected by a Binding",
        "v1",
        "Binding",
        "kind-known",
        target={"apiVersion": "v1", "kind": "Node", "name": "gpu-1"},
    ),
]


def harmless_variable(description: str, value: str) -> Way:
    """Return an edit that adds a variable that is not a secret."""
    env = [{"name": "CONFIG", "value": value}]
    return container(f"a variable with {description}", "env", env, "")


HARMLESS = [
    harmless(
        "endpoints of a server outside the cluster",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        addressType="IPv4",
        endpoints=[{"addresses": ["10.1.2.3"]}],
    ),
    harmless(
        "a LimitRange with CPU and memory defaults",
        "v1",
        "LimitRange",
        spec={"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]},
    ),
    harmless(
        "a lease of an operator",
        "coordination.k8s.io/v1",
        "Lease",
        metadata={"name": "operator", "namespace": "team"},
        spec={"holderIdentity": "a"},
    ),
    harmless_variable("an encoded text", encoded("an encoded text without a secret")),
    harmless_variable("a hash", "0123456789abcdef" * 4),
    harmless_variable("a class name", "ThisIsTheNameOfSomeRatherLongClassName"),
    way(
        "a probe that reads a file written by the server",
        VLLM,
        "",
        (
            "0/spec/template/spec/containers/0/livenessProbe",
            {"exec": {"command": ["sh", "-c", "[ -f /tmp/ready ] && curl -f localhost:8000"]}},
        ),
    ),
    way(
        "a probe that checks the age of a file",
        VLLM,
        "",
        (
            "0/spec/template/spec/containers/0/livenessProbe",
            {"exec": {"command": ["test", "-f", "/tmp/healthy"]}},
        ),
    ),
    way(
        "a probe that counts processes",
        VLLM,
        "",
        (
            "0/spec/template/spec/containers/0/livenessProbe",
            {"exec": {"command": ["sh", "-c", 'test "$(pgrep -c vllm)" -ge 1']}},
        ),
    ),
    harmless(
        "a device class for network devices",
        "resource.k8s.io/v1",
        "DeviceClass",
        metadata={"name": "mrdma.google.com"},
        spec={
            "selectors": [{"cel": {"expression": 'device.driver == "mrdma.google.com" && true'}}]
        },
    ),
    harmless(
        "a device class for GPUs",
        "resource.k8s.io/v1",
        "DeviceClass",
        metadata={"name": "gpu.nvidia.com"},
        spec={"selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]},
    ),
    harmless(
        "a storage class for local volumes",
        "storage.k8s.io/v1",
        "StorageClass",
        metadata={"name": "local"},
        provisioner="rancher.io/local-path",
        volumeBindingMode="WaitForFirstConsumer",
    ),
    harmless(
        "a storage class for a file server",
        "storage.k8s.io/v1",
        "StorageClass",
        metadata={"name": "nfs"},
        provisioner="nfs.csi.k8s.io",
        parameters={"server": "files.example.com", "share": "/models"},
    ),
]
"""Similar edits that are allowed."""
