"""Containers get GPUs through CDI, with NVIDIA's device plugin as the stack configures it.

Kubelet, containerd and plugin are real. nvml.c and device files replace the driver, and a program
that does nothing replaces the container toolkit's hooks.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from infra.gpu_stack import GpuStackArgs, manifests
from infra.settings.cluster import GpuSettings
from tests.cluster.platform import await_
from tests.operators import nvidia, standalone
from tests.operators.standalone import REGISTRY, Node

UUIDS = ["GPU-00000000-aaaa", "GPU-11111111-bbbb"]
DRIVER = "run/nvidia/driver"
LIBRARY = "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"


def install_driver(root: Path, library: Path) -> None:
    """Create the files of the driver, and the GPUs that the library reports."""
    folder = root / DRIVER
    (folder / LIBRARY).parent.mkdir(parents=True)
    (folder / LIBRARY).touch()
    (folder / LIBRARY).with_name(nvidia.LIBRARY).write_bytes(library.read_bytes())
    (folder / "dev").mkdir()
    for minor, name in enumerate(("nvidia0", "nvidia1", "nvidiactl")):
        os.mknod(folder / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    hook = root / "run/nvidia/hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    sockets = root / nvidia.SOCKETS.removeprefix("/")
    sockets.mkdir(exist_ok=True)
    gpus = {"product": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "uuids": UUIDS}
    (sockets / "simulated-gpus.json").write_text(json.dumps(gpus | {"mig_devices": 0}))


def plugin(root: Path, image: str) -> dict[str, Any]:
    """Return the pod of the rendered DaemonSet, with its configuration in a directory."""
    gpu = GpuSettings(device_lists=["cdi-cri"], driver_root=f"/{DRIVER}", image=image)
    built = {each["kind"]: each for each in manifests(GpuStackArgs(gpu=gpu))}
    folder = root / "run/nvidia/config"
    folder.mkdir()
    for name, text in built["ConfigMap"]["data"].items():
        (folder / name).write_text(text)
    pod = standalone.static("plugin", built["DaemonSet"]["spec"]["template"]["spec"])
    spec = pod["spec"]
    spec["volumes"] = [
        {"name": "config", "hostPath": {"path": "/run/nvidia/config"}}
        if volume["name"] == "config"
        else volume
        for volume in spec["volumes"]
    ]
    spec["containers"][0]["env"].append(
        {"name": "NVIDIA_CDI_HOOK_PATH", "value": "/run/nvidia/hook"}
    )
    return pod


def test_container_contains_the_device_files_of_its_requested_gpu(tmp_path: Path) -> None:
    with standalone.node(tmp_path / "node") as node:
        install_driver(node.root, nvidia.build_library(tmp_path))
        node.push(nvidia.image(tmp_path / "images", tmp_path), "plugin:1")
        node.start(plugin(node.root, f"{REGISTRY}/plugin:1"))
        await_(lambda: offered(node) == set(UUIDS), "GPUs registered with the kubelet")
        limits = {"nvidia.com/gpu": "1"}
        container = {
            "name": "main",
            "image": f"{REGISTRY}/pause:3.10",
            "resources": {"limits": limits},
        }
        node.start(standalone.static("computes", {"containers": [container]}))
        await_(lambda: bool(with_library(node)), "the container")
        (root,) = with_library(node)
        found = {file.name for file in (root / "dev").iterdir() if file.name.startswith("nvidia")}
        assert "nvidiactl" in found
        assert len(found & {"nvidia0", "nvidia1"}) == 1


def offered(node: Node) -> set[str]:
    """Return the GPUs that the plugin has registered with the kubelet."""
    file = node.root / nvidia.SOCKETS.removeprefix("/") / "kubelet_internal_checkpoint"
    if not file.exists():
        return set()
    registered = json.loads(file.read_text())["Data"]["RegisteredDevices"]
    return set(registered.get("nvidia.com/gpu") or ())


def with_library(node: Node) -> list[Path]:
    return [root for root in node.containers(["/pause"]) if (root / LIBRARY).exists()]
