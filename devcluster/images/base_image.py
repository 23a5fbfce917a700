"""The base images of the embedded cluster: Debian, Python, and PyTorch's cut or TensorFlow.

On a cluster with GPUs their place is taken by images with CUDA; all are `BASE_IMAGE` to the
Dockerfiles, which find here every package that they ask for, so that building needs no network.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.images import difference, torch_cpu
from devcluster.images.oci import ImageConfig, Layer, Layout
from devcluster.paths import CHECKOUT

DEBIAN_PACKAGES = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
PYTHON = "3.11"
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
KEY = 12
"""Hexadecimal digits that tell what an image was made of."""
CONFIG = ImageConfig(
    environment={
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
    }
)


def _requirements(*names: str) -> tuple[Path, ...]:
    return tuple(CHECKOUT / "requirements" / f"{name}.txt" for name in names)


@dataclass(frozen=True)
class Base:
    """An image of two layers, Debian's packages and Python's from files of requirements.

    `added` packages of Debian are a third one on top, so that the nodes have the others once.
    """

    reference: str
    # Images are built without a network: what they install must be in their base already.
    requirements: tuple[Path, ...]
    headers: tuple[str, ...] = ()
    """Folders of Python's packages that only compilers need."""
    added: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Tells the image and what it is made of: `pytorch-cpu-<12 hexadecimal digits>`."""
        parts = [file.read_bytes() for file in (*self.requirements, Path(__file__))]
        parts += [Path(file).read_bytes() for file in (torch_cpu.__file__, difference.__file__)]
        key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:KEY]
        return f"{self.reference.partition(':')[0]}-{key}"


PYTORCH = Base(
    "pytorch-cpu:2.15.0", _requirements("workload", "cpu-image", "diffusion", "recorder")
)
MPI = replace(PYTORCH, reference="pytorch-mpi-cpu:2.15.0", added=("openmpi-bin", "openssh-server"))
TENSORFLOW = Base(
    "tensorflow-cpu:2.21.0",
    _requirements("tensorflow", "tensorflow-image"),
    headers=("tensorflow/include", "clang"),
)
BASES = (PYTORCH, MPI, TENSORFLOW)
"""PyTorch's is always there; the others where a stack builds upon them."""


def build(base: Base, images: Path, uv: Path, log: Path) -> Layout:
    """Makes an image in the folder `images`, unless it is there. Raises DevclusterError.

    It takes about a minute. Layers that PyTorch's image has as well are taken from that one. Those
    of the same image that were made of other things are removed.
    """
    layout = Layout(images / base.name)
    if layout.digest is not None:
        return layout
    work = images / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    workshop = _Workshop(work, uv, log)
    try:
        if base is PYTORCH:
            layers: list[Path | Layer] = [*workshop.all_of(base)]
        else:
            root, site = Layout(images / PYTORCH.name).layers()
            own = base.requirements != PYTORCH.requirements
            layers = [root, workshop.site(base) if own else site]
            if base.added:
                layers.append(workshop.added(base, root))
        layout.write(layers, CONFIG)
    except subprocess.CalledProcessError as error:
        what = f"the base image {base.reference} could not be made"
        raise DevclusterError(f"{what}: {error}; see {log}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    kind = base.name.rpartition("-")[0]
    for older in images.glob(f"{kind}-{'[0-9a-f]' * KEY}"):
        if older.name != base.name:
            shutil.rmtree(older, ignore_errors=True)
    return layout


@dataclass(frozen=True)
class _Workshop:
    """Makes layers, as tar files in the scratch folder `work`."""

    work: Path
    uv: Path
    log: Path

    def all_of(self, base: Base) -> list[Path]:
        """Both layers, Debian's in the background: it waits for downloads most of the time."""
        tar = self.work / "root.tar"
        debian = self._start_debian(DEBIAN_PACKAGES, tar)
        try:
            site = self.site(base)
        except BaseException:
            debian.terminate()  # else it would go on writing below `work`
            debian.wait()
            raise
        self._finish(debian)
        return [tar, site]

    def site(self, base: Base) -> Path:
        """Python's packages."""
        packages = self.work / "packages"
        _install(base, packages, self.uv, self.log)
        for folder in base.headers:
            shutil.rmtree(packages / folder, ignore_errors=True)
        if base.requirements == PYTORCH.requirements:
            torch_cpu.cut(packages)
        return _pack(packages, self.work / "packages.tar")

    def added(self, base: Base, root: Layer) -> Path:
        """What more packages of Debian bring, beyond a root without them."""
        larger, tar = self.work / "larger.tar", self.work / "added.tar"
        self._finish(self._start_debian((*DEBIAN_PACKAGES, *base.added), larger))
        difference.write(larger, root.file, tar)
        return tar

    def _start_debian(self, packages: Sequence[str], tar: Path) -> "subprocess.Popen[bytes]":
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [*command, "bookworm", str(tar)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    def _finish(self, debian: "subprocess.Popen[bytes]") -> None:
        if debian.wait() != 0:
            raise DevclusterError(f"Debian's base system could not be made; see {self.log}")


def _install(base: Base, packages: Path, uv: Path, log: Path) -> None:
    """Install from the user's cache, else from a cache that is deleted with the scratch files.

    The user's cache does not grow by the gigabyte that only the image needs.
    """
    downloads = packages.with_name("downloads")
    # Copies of the user's files, since some are changed later.
    sources = (
        ["--offline", "--link-mode=copy"],
        ["--link-mode=hardlink", f"--cache-dir={downloads}"],
    )
    # Compiled here: a container with a read-only root would compile all imports at each start.
    options = ["--no-deps", "--require-hashes", "--compile-bytecode", f"--target={packages}"]
    target = [f"--python={PYTHON}", "--python-platform=x86_64-manylinux_2_28"]
    files = [part for file in base.requirements for part in ("-r", str(file))]
    for source in sources:
        shutil.rmtree(packages, ignore_errors=True)
        with log.open("ab") as out:
            done = subprocess.run(
                [str(uv), "pip", "install", *source, *options, *target, *files],
                # By hash and unchecked (PEP 552): layers do not keep the modification times.
                env={**os.environ, "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        if done.returncode == 0:
            break
    done.check_returncode()
    shutil.rmtree(downloads, ignore_errors=True)


def _pack(packages: Path, tar: Path) -> Path:
    same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    renamed = f"--transform=s#^\\.#{SITE}#"
    subprocess.run(["tar", "-C", str(packages), *same, renamed, "-cf", str(tar), "."], check=True)
    return tar
