"""Images that are pushed to the cluster's registry before a deployment."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster.images import base_image
from devcluster.images.base_image import PYTORCH, Base, requirements_files
from devcluster.images.oci import ImageConfig, Layout, file_layer
from devcluster.paths import Layout as Paths


@dataclass(frozen=True)
class ToolImage:
    """Image that contains only static binaries."""

    reference: str
    tool: str
    program: str
    """Path of the entrypoint in the image, as the manifests expect it."""
    user: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Additional files, as pairs of a path and a tool. Images with the same files share a layer."""

    def layout(self, images: Path, binaries: Path) -> Layout:
        """Build the image unless it exists, and return its layout."""
        files = {self.program: self.tool, **dict(self.files)}
        layout = Layout(images / f"{self.tool}-{_digest(files, binaries)}")
        if layout.digest is None:
            images.mkdir(parents=True, exist_ok=True)
            tar = images / f"{self.tool}.tar"
            file_layer({path: binaries / tool for path, tool in files.items()}, tar)
            layout.write([tar], ImageConfig(entrypoint=[self.program], user=self.user))
            tar.unlink()
        return layout


def _digest(files: Mapping[str, str], binaries: Path) -> str:
    """Return a digest (12 hexadecimal digits) of the paths and contents of the files."""
    sha = hashlib.sha256(repr(sorted(files.items())).encode())
    for tool in sorted(set(files.values())):
        with (binaries / tool).open("rb") as content:
            sha.update(hashlib.file_digest(content, "sha256").digest())
    return sha.hexdigest()[:12]


MPI = replace(PYTORCH, reference="pytorch-mpi-cpu:2.15.0", added=("openmpi-bin", "openssh-server"))
TENSORFLOW = Base(
    "tensorflow-cpu:2.21.0",
    requirements_files("tensorflow", "tensorflow-image"),
    headers=("tensorflow/include", "clang"),
)
RAY = replace(PYTORCH, reference="pytorch-ray-cpu:2.60.0", python=requirements_files("ray"))
SWEEPS = replace(
    PYTORCH, reference="pytorch-sweeps-cpu:2.15.0", python=requirements_files("sweeps")
)
NOTEBOOK = replace(
    PYTORCH, reference="pytorch-notebook-cpu:2.15.0", python=requirements_files("notebook")
)
BASES = (PYTORCH, MPI, TENSORFLOW, RAY, SWEEPS, NOTEBOOK)
"""All base images. PyTorch's image is always built. Other images are built only if a stack uses
them."""

_VOLCANO = ("vc-scheduler", "vc-controller-manager", "vc-webhook-manager")
# A job in Volcano's chart runs this program in the webhook image.
_CERTIFICATES = ("/gen-admission-secret.sh", "volcano-certificates")
_VOLCANO_FILES = (*((f"/{name}", name) for name in _VOLCANO), _CERTIFICATES)

TOOL_IMAGES = (
    ToolImage("pause:3.10", "pause", "/pause"),
    ToolImage(
        "nvidia-device-plugin-simulated:0.20.1",
        "simulated-device-plugin",
        "/usr/bin/nvidia-device-plugin",
    ),
    ToolImage("dcgm-exporter-simulated:4.4.2", "simulated-dcgm-exporter", "/usr/bin/dcgm-exporter"),
    *(
        ToolImage(f"volcanosh/{name}:v1.14.1", name, f"/{name}", files=_VOLCANO_FILES)
        for name in _VOLCANO
    ),
)

KUBECTL = ToolImage("kubectl:v1.34.3", "kubectl", "/bin/kubectl")
"""Image from which `notebooks/Dockerfile` copies kubectl; pushed only if a stack uses it."""

_NOBODY = "65532:65532"

OPERATOR_IMAGES: Mapping[str, Sequence[ToolImage]] = {
    "training-operator": (
        ToolImage("kubeflow/training-operator:v1.9.3", "training-operator.v1", "/manager", _NOBODY),
    ),
    "trainer": (
        ToolImage("kubeflow/jobset:v0.12.0", "jobset", "/manager", _NOBODY),
        ToolImage(
            "kubeflow/trainer-controller-manager:v2.3.0",
            "trainer-controller-manager",
            "/manager",
            _NOBODY,
        ),
    ),
    "kuberay": (ToolImage("kuberay/operator:v1.6.1", "ray-operator", "/manager", _NOBODY),),
    "lws": (ToolImage("lws/lws:v0.9.0", "lws", "/manager", _NOBODY),),
}
"""Images to which the operators' manifests refer (toolchain/modules/<operator>)."""


class BaseImages:
    """Base images, built one after another in the background."""

    def __init__(self, paths: Paths, uv: Path, bases: Sequence[Base] = (PYTORCH,)) -> None:
        self._paths = paths
        self._uv = uv
        self._failure: BaseException | None = None
        # PyTorch comes first, because other images reuse its layers.
        self._bases = (PYTORCH, *(base for base in bases if base is not PYTORCH))
        self._thread = threading.Thread(target=self._build, daemon=True)

    @property
    def layouts(self) -> dict[str, Layout]:
        """Mapping of the images' names in the registry to their layouts."""
        return {base.reference: Layout(self._paths.images / base.name) for base in self._bases}

    def start(self) -> None:
        """Start building, unless all images exist."""
        if not self._is_complete():
            self._thread.start()

    def _is_complete(self) -> bool:
        return all(layout.digest is not None for layout in self.layouts.values())

    def _build(self) -> None:
        try:
            self._paths.logs.mkdir(parents=True, exist_ok=True)
            log = self._paths.logs / "base-image.log"
            for base in self._bases:
                base_image.build(base, self._paths.images, self._uv, log)
        except BaseException as error:  # raised again in wait
            self._failure = error

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` and return whether all images exist.

        If the build has failed, raise its error.
        """
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._failure is not None:
            raise self._failure
        return self._is_complete()


def push_tools(
    paths: Paths,
    binaries: Path,
    registry: str,
    report: Callable[[str], None],
    additional: Iterable[ToolImage] = (),
) -> None:
    """Push the tool images that the registry does not contain yet."""
    log = paths.logs / "push.log"
    for image in (*TOOL_IMAGES, *additional):
        layout = image.layout(paths.images, binaries)
        if layout.push(registry, image.reference, log):
            layout.link_blobs(paths.registry)
            report(f"image {image.reference} is in the registry")
