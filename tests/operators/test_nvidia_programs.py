"""NVIDIA's device plugin and GPU feature discovery with the stack's configuration, on this host.

The plugin runs in its own mount namespace, which contains the directory of a kubelet that is not
running, and the files about MIG devices that a driver creates below /proc. A container cannot
create files there.
"""

import contextlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml

from infra.gpu_stack import plugin_config
from infra.settings.cluster import GpuSettings
from tests.cluster.platform import await_
from tests.operators import nvidia
from tests.platforms import unavailable

PRODUCT = "NVIDIA A100-SXM4-80GB"
UUIDS = ["GPU-00000000-aaaa", "GPU-11111111-bbbb"]
MOUNTS = f"""
mount -t tmpfs tmpfs /var/lib && mkdir -p {nvidia.SOCKETS}
mount -t tmpfs tmpfs /proc/driver && mkdir /proc/driver/nvidia-caps
cp "$SIMULATED_NVML/mig-minors" /proc/driver/nvidia-caps/
mount -t tmpfs tmpfs /run
exec "$@"
"""
SHARED = {"time_slicing": {"replicas": 4}}
SINGLE, MIXED = {"mig_strategy": "single"}, {"mig_strategy": "mixed"}


@dataclass(frozen=True)
class Node:
    """A directory with the GPUs of a node, NVML and the stack's configuration of the plugin."""

    folder: Path
    programs: Path

    def configure(self, mig_devices: int, **settings: Any) -> None:
        gpus = {"product": PRODUCT, "memory_mib": 81920, "uuids": UUIDS}
        text = json.dumps(gpus | {"mig_devices": mig_devices})
        (self.folder / "simulated-gpus.json").write_text(text)
        config = plugin_config(GpuSettings.model_validate(settings))
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))
        instances = [
            f"gpu{gpu}/gi{instance}" for gpu in range(len(UUIDS)) for instance in range(mig_devices)
        ]
        paths = [f"{path}{end}/access" for path in instances for end in ("", "/ci0")]
        minors = "".join(f"{path} {minor}\n" for minor, path in enumerate(paths, 3))
        (self.folder / "mig-minors").write_text(minors)

    @property
    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        paths = {"LD_LIBRARY_PATH": folder, "CONFIG_FILE": f"{folder}/config.yaml"}
        return os.environ | paths | {"SIMULATED_NVML": folder}

    def labels(self) -> dict[str, str]:
        """Return the labels that GPU feature discovery finds."""
        file = self.folder / "labels"
        options = ["--oneshot", "--use-node-feature-api=false", f"--output-file={file}"]
        program = self.programs / "gpu-feature-discovery"
        subprocess.run([program, *options], env=self.environment, check=True, capture_output=True)
        return dict(line.split("=", 1) for line in file.read_text().splitlines())

    def xid(self, gpu: int, xid: int) -> None:
        with (self.folder / nvidia.XIDS).open("a") as file:
            file.write(f"{gpu} {xid}\n")

    @contextlib.contextmanager
    def plugin(self, **variables: str) -> Iterator["Plugin"]:
        """Run the device plugin with additional environment variables."""
        if os.geteuid() != 0:
            unavailable("creating a mount namespace requires root")
        program = [self.programs / "nvidia-device-plugin", "--kubelet-socket="]
        with (self.folder / "plugin.log").open("wb") as log:
            process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-ec", MOUNTS, "sh", *program],
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                yield Plugin(psutil.Process(process.pid))
            finally:
                process.terminate()
                process.wait(30)


@dataclass(frozen=True)
class Plugin:
    """The process of the plugin. The kubelet's protocol is simple enough to handle as raw bytes."""

    process: psutil.Process

    @property
    def root(self) -> Path:
        """The root directory of its mount namespace."""
        return Path(f"/proc/{self.process.pid}/root")

    @contextlib.contextmanager
    def connected(self, resource: str) -> Iterator[grpc.Channel]:
        socket = Path(f"{self.root}{nvidia.SOCKETS}/nvidia-{resource}.sock")
        await_(lambda: self.process.is_running() and socket.exists(), f"socket of {resource}")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            yield channel

    @contextlib.contextmanager
    def devices(self, resource: str) -> Iterator[Iterator[dict[str, str]]]:
        """Yield the devices with their health, initially and after each change."""
        with self.connected(resource) as channel:
            method = "/v1beta1.DevicePlugin/ListAndWatch"
            answers = channel.unary_stream(method, None, None)(b"", wait_for_ready=True, timeout=30)
            yield (
                {
                    name.decode(): health.decode()
                    for name, health in re.findall(rb"\n.([\w:-]+)\x12.(\w+)", answer, re.DOTALL)
                }
                for answer in answers
            )

    def allocate(self, resource: str, *devices: str) -> bytes:
        device_ids = b"".join(b"\n" + bytes([len(name)]) + name.encode() for name in devices)
        request = b"\n" + bytes([len(device_ids)]) + device_ids
        with self.connected(resource) as channel:
            method = channel.unary_unary("/v1beta1.DevicePlugin/Allocate", None, None)
            return bytes(method(request, wait_for_ready=True, timeout=30))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvidia.build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Node:
    (tmp_path / library.name).symlink_to(library)
    return Node(tmp_path, nvidia.build_programs())


@pytest.mark.parametrize(
    ("mig_devices", "settings", "expected"),
    [
        pytest.param(
            0,
            {},
            {
                "gpu.product": "NVIDIA-A100-SXM4-80GB",
                "gpu.count": "2",
                "gpu.memory": "81920",
                "gpu.replicas": "1",
                "gpu.sharing-strategy": "none",
                "gpu.family": "ampere",
                "mig.capable": "true",
                "cuda.driver-version.full": "580.95.05",
            },
            id="whole GPUs",
        ),
        pytest.param(
            0,
            SHARED,
            {
                "gpu.product": "NVIDIA-A100-SXM4-80GB",
                "gpu.count": "2",
                "gpu.replicas": "4",
                "gpu.sharing-strategy": "time-slicing",
            },
            id="time slicing",
        ),
        pytest.param(
            0,
            {"time_slicing": {"replicas": 4, "rename": False}},
            {"gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "gpu.replicas": "4"},
            id="time slicing without another name",
        ),
        pytest.param(
            7,
            SINGLE,
            {
                "mig.strategy": "single",
                "gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
                "gpu.count": "14",
                "gpu.memory": "9728",
            },
            id="MIG devices as GPUs",
        ),
        pytest.param(
            7,
            MIXED,
            {
                "mig.strategy": "mixed",
                "gpu.product": "NVIDIA-A100-SXM4-80GB",
                "gpu.count": "2",
                "mig-1g.10gb.count": "14",
                "mig-1g.10gb.memory": "9728",
            },
            id="MIG devices as a resource",
        ),
    ],
)
def test_gpu_feature_discovery_sets_the_labels_of_the_configured_sharing(
    node: Node, mig_devices: int, settings: dict[str, Any], expected: dict[str, str]
) -> None:
    node.configure(mig_devices, **settings)
    found = node.labels()
    wanted = {f"nvidia.com/{key}": value for key, value in expected.items()}
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("mig_devices", "settings", "resource", "devices"),
    [
        pytest.param(0, {}, "gpu", set(UUIDS), id="whole GPUs"),
        pytest.param(
            0,
            SHARED,
            "gpu.shared",
            {f"{uuid}::{share}" for uuid in UUIDS for share in range(4)},
            id="time slicing",
        ),
        pytest.param(
            2,
            SINGLE,
            "gpu",
            {f"MIG-{uuid[4:]}-{instance}" for uuid in UUIDS for instance in range(2)},
            id="MIG devices as GPUs",
        ),
        pytest.param(
            2,
            MIXED,
            "mig-1g.10gb",
            {f"MIG-{uuid[4:]}-{instance}" for uuid in UUIDS for instance in range(2)},
            id="MIG devices as a resource",
        ),
    ],
)
def test_device_plugin_advertises_the_configured_resources(
    node: Node, mig_devices: int, settings: dict[str, Any], resource: str, devices: set[str]
) -> None:
    node.configure(mig_devices, **settings)
    with node.plugin() as plugin, plugin.devices(resource) as lists:
        assert next(lists) == dict.fromkeys(devices, "Healthy")


def test_container_environment_contains_the_uuids_of_its_gpus(node: Node) -> None:
    node.configure(0)
    with node.plugin() as plugin:
        assert f"{UUIDS[0]},{UUIDS[1]}".encode() in plugin.allocate("gpu", *UUIDS)


def test_cdi_specification_contains_gpus_and_driver_at_their_node_paths(node: Node) -> None:
    node.configure(0, device_lists=["cdi-cri"], driver_root="/run/nvidia/driver")
    libraries = node.folder / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / nvidia.LIBRARY).symlink_to(node.folder / nvidia.LIBRARY)
    (libraries / "libcuda.so.580.95.05").touch()
    (node.folder / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        os.mknod(node.folder / "dev" / name, stat.S_IFCHR, os.makedev(195, 0))
    with node.plugin(DRIVER_ROOT_CTR_PATH=str(node.folder)) as plugin:
        answer = plugin.allocate("gpu", UUIDS[1])
        assert f"k8s.device-plugin.nvidia.com/gpu={UUIDS[1]}".encode() in answer
        file = "run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
        described = json.loads((plugin.root / file).read_text())
    edits = {each["name"]: each["containerEdits"] for each in described["devices"]}
    (device,) = edits[UUIDS[1]]["deviceNodes"]
    assert (device["path"], device["hostPath"]) == (
        "/dev/nvidia1",
        "/run/nvidia/driver/dev/nvidia1",
    )
    mounts = {
        each["hostPath"]: each["containerPath"] for each in described["containerEdits"]["mounts"]
    }
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    assert mounts[f"/run/nvidia/driver{library}"] == library


def test_request_for_several_gpu_shares_is_rejected(node: Node) -> None:
    node.configure(0, **SHARED)
    with node.plugin() as plugin:
        assert UUIDS[1].encode() in plugin.allocate("gpu.shared", f"{UUIDS[1]}::3")
        with pytest.raises(grpc.RpcError, match="maximum request size for shared resources is 1"):
            plugin.allocate("gpu.shared", f"{UUIDS[0]}::0", f"{UUIDS[1]}::0")


def test_hardware_xid_error_makes_its_gpu_unhealthy(node: Node) -> None:
    node.configure(0)
    # Errors from before the start of the plugin are ignored, as after a reset of the GPU.
    node.xid(0, 79)
    with node.plugin() as plugin, plugin.devices("gpu") as lists:
        assert next(lists) == dict.fromkeys(UUIDS, "Healthy")
        await_(lambda: "Ignoring the following XIDs" in log(node), "health checks")
        node.xid(0, 31)  # An application error.
        node.xid(1, 79)
        assert next(lists) == {UUIDS[0]: "Healthy", UUIDS[1]: "Unhealthy"}


@pytest.mark.parametrize(
    ("mig_devices", "settings", "resource"),
    [
        pytest.param(0, SHARED, "gpu.shared", id="time slicing"),
        pytest.param(2, MIXED, "mig-1g.10gb", id="MIG devices"),
    ],
)
def test_xid_error_makes_only_one_share_or_mig_device_of_the_gpu_unhealthy(
    node: Node, mig_devices: int, settings: dict[str, Any], resource: str
) -> None:
    """The plugin looks up one device per GPU, as docs/node-health.md states."""
    node.configure(mig_devices, **settings)
    with node.plugin() as plugin, plugin.devices(resource) as lists:
        next(lists)
        await_(lambda: "Ignoring the following XIDs" in log(node), "health checks")
        node.xid(1, 79)
        (unhealthy,) = (name for name, health in next(lists).items() if health == "Unhealthy")
        assert UUIDS[1].removeprefix("GPU") in unhealthy


def log(node: Node) -> str:
    return (node.folder / "plugin.log").read_text()
