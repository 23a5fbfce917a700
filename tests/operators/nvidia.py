"""NVIDIA's device plugin and GPU feature discovery, with a simulated NVML."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from devcluster.images.catalog import ToolImage
from devcluster.images.oci import Layout as OciLayout
from devcluster.paths import Layout
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import ensure
from infra.settings.cluster import GpuSettings
from tests.operators.definitions import GoModule, module_folder
from tests.platforms import unavailable

VERSION = "v0.19.0"
GO_NVML = GoModule(
    "github.com/NVIDIA/go-nvml@v0.13.0-1.0.20260212130905-92cf8c963449",
    "h1:UrArFAaPhj9av2yzEN35CvzWw68BeQjp2MaQFUIoJSU=",
)
"""Module that contains NVML's header."""
NFD = GoModule(
    "sigs.k8s.io/node-feature-discovery@v0.18.3",
    "h1:q5/qpyxrasI/F6838lflFNGAUszpMNRuFwornPLYdxQ=",
)
NFD_NAMESPACE = "node-feature-discovery"
SOCKETS = "/var/lib/kubelet/device-plugins"
PROGRAMS = ("nvidia-device-plugin", "gpu-feature-discovery", "nfd-master")
LIBRARY = "libnvidia-ml.so.1"
XIDS = "simulated-xids"
"""File next to a node's GPUs from which the library reads Xid errors: lines `INDEX XID`."""


def build_library(folder: Path) -> Path:
    """Compile the library."""
    if shutil.which("gcc") is None:
        unavailable("building the simulated NVML requires a C compiler")
    header = module_folder(GO_NVML, folder) / "pkg" / "nvml"
    source, library = Path(__file__).with_name("nvml.c"), folder / LIBRARY
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{header}"]
    subprocess.run(["gcc", *options, "-o", str(library), str(source)], check=True)
    return library


def build_programs() -> Path:
    """Build missing programs and return their directory."""
    return ensure("real", Layout.of(Kind.REAL).cache, sys.stderr.write, ["nvidia"]).bin


def image(images: Path, folder: Path) -> OciLayout:
    """Return an image of the programs.

    It contains the C library of this machine, with which the programs were linked.
    """
    binaries, library = build_programs(), build_library(folder)
    linked = subprocess.run(
        ["ldd", binaries / PROGRAMS[0]], check=True, capture_output=True, text=True
    )
    loaded = re.findall(r"(/\S+) \(0x", linked.stdout)
    (c_library,) = (Path(file) for file in loaded if file.endswith("/libc.so.6"))
    files = (
        *((f"/usr/bin/{name}", name) for name in PROGRAMS),
        *((file, file) for file in loaded),
        (str(c_library.with_name(LIBRARY)), str(library)),
    )
    program = ToolImage("", PROGRAMS[0], f"/usr/bin/{PROGRAMS[0]}", files=files)
    return program.layout(images, binaries)


def push_image(state: Path, folder: Path) -> str:
    """Push the image to the cluster's registry and return its reference.

    The tag depends on the content, because nodes keep images.
    """
    paths = Layout(Layout.of(Kind.REAL).cache, state / "real")
    layout = image(paths.images, folder)
    reference = f"k8s-device-plugin:{VERSION}-{layout.directory.name.rpartition('-')[2]}"
    spec = cluster_spec(Kind.REAL)
    registry = f"{spec.control_plane.address}:{spec.network.registry_port}"
    layout.push(registry, reference, paths.logs / "push.log")
    return f"127.0.0.1:{spec.network.registry_port}/{reference}"


def feature_discovery(image: str, configuration: str) -> list[dict[str, Any]]:
    """Return GPU feature discovery as in NVIDIA's chart, with the configuration of the stack.

    `configuration` is the name of the stack's ConfigMap. The program labels nodes every two
    seconds.
    """
    name, namespace = "gpu-feature-discovery", GpuSettings().namespace
    metadata = {"name": name, "namespace": namespace}
    fields = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name"}
    variables = {
        "CONFIG_FILE": "/config/config.yaml",
        "GFD_SLEEP_INTERVAL": "2s",
        "NAMESPACE": namespace,
    }
    container = {
        "name": name,
        "image": image,
        "command": [name],
        "env": [
            *({"name": key, "value": value} for key, value in variables.items()),
            *(
                {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for key, path in fields.items()
            ),
        ],
        "volumeMounts": [
            {"name": "config", "mountPath": "/config"},
            {"name": "sockets", "mountPath": SOCKETS, "readOnly": True},
        ],
    }
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {
            "apiGroups": ["nfd.k8s-sigs.io"],
            "resources": ["nodefeatures"],
            "verbs": ["get", "list", "watch", "create", "update"],
        },
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "serviceAccountName": name,
                        "terminationGracePeriodSeconds": 1,
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [container],
                        "volumes": [
                            {"name": "config", "configMap": {"name": configuration}},
                            {"name": "sockets", "hostPath": {"path": SOCKETS}},
                        ],
                    },
                },
            },
        },
    ]


def node_feature_discovery(image: str, folder: Path) -> Path:
    """Return a kustomization of Node Feature Discovery's definitions and its master."""
    source = module_folder(NFD, folder) / "deployment"
    made = folder / "node-feature-discovery"
    shutil.copytree(source, made / "deployment", copy_function=shutil.copyfile)
    name, _, tag = image.rpartition(":")
    upstream = "registry.k8s.io/nfd/node-feature-discovery"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NFD_NAMESPACE}}
    (made / "namespace.yaml").write_text(yaml.safe_dump(namespace))
    document = {
        "namespace": NFD_NAMESPACE,
        "resources": [
            "namespace.yaml",
            *(f"deployment/base/{part}" for part in ("nfd-crds", "rbac", "master")),
        ],
        "images": [{"name": upstream, "newName": name, "newTag": tag}],
        "patches": [
            {
                "path": "deployment/components/common/env.yaml",
                "target": {"kind": "Deployment", "name": "nfd-master"},
            }
        ],
    }
    (made / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return made
