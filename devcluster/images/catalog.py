"""The images that the embedded cluster has in its registry before anything is deployed."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devcluster.images import base_image
from devcluster.images.oci import ImageConfig, Layout, file_layer
from devcluster.paths import Layout as Paths

BASE = "pytorch-cpu:2.15.0"


@dataclass(frozen=True)
class ToolImage:
    """An image of one static binary: nothing else is in it."""

    reference: str
    tool: str
    program: str
    """Path in the image; Volcano's chart starts the binaries by these."""

    def layout(self, images: Path, binaries: Path) -> Layout:
        """Makes the image, unless the same one is there."""
        binary = binaries / self.tool
        with binary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        layout = Layout(images / f"{self.tool}-{digest}")
        if layout.digest is None:
            images.mkdir(parents=True, exist_ok=True)
            tar = images / f"{self.tool}.tar"
            file_layer({self.program: binary}, tar)
            layout.write([tar], ImageConfig(entrypoint=[self.program]))
            tar.unlink()
        return layout


TOOL_IMAGES = (
    ToolImage("pause:3.10", "pause", "/pause"),
    ToolImage(
        "nvidia-device-plugin-simulated:0.20.0",
        "simulated-device-plugin",
        "/usr/bin/nvidia-device-plugin",
    ),
    ToolImage("volcanosh/vc-scheduler:v1.10.0", "vc-scheduler", "/vc-scheduler"),
    ToolImage(
        "volcanosh/vc-controller-manager:v1.10.0", "vc-controller-manager", "/vc-controller-manager"
    ),
    ToolImage("volcanosh/vc-webhook-manager:v1.10.0", "vc-webhook-manager", "/vc-webhook-manager"),
)


class BaseImage:
    """The base image, made in the background while other things are made ready."""

    def __init__(self, paths: Paths, uv: Path) -> None:
        self._paths = paths
        self._uv = uv
        self._failure: BaseException | None = None
        self.layout = Layout(paths.images / f"pytorch-cpu-{base_image.key()}")
        self._thread = threading.Thread(target=self._make, daemon=True)
        self.made = self.layout.digest is not None

    def start(self) -> None:
        """Begins, where the image is not there already."""
        if not self.made:
            self._thread.start()

    def _make(self) -> None:
        try:
            self._paths.logs.mkdir(parents=True, exist_ok=True)
            work = self._paths.images / "work"
            base_image.build(self.layout, work, self._uv, self._paths.logs / "base-image.log")
        except BaseException as error:  # raised again where it is waited for
            self._failure = error

    def wait(self, seconds: float) -> bool:
        """Waits up to so many seconds; True when the image is there. Raises what went wrong."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        return self.layout.digest is not None


def push_tools(paths: Paths, binaries: Path, registry: str, report: Callable[[str], None]) -> None:
    """Puts the images of single programs into the registry, those that it does not have."""
    log = paths.logs / "push.log"
    for image in TOOL_IMAGES:
        layout = image.layout(paths.images, binaries)
        if layout.push(registry, image.reference, log):
            report(f"image {image.reference} is in the registry")
