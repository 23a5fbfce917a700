"""Base images of the embedded cluster: Debian, Python, and a reduced PyTorch or TensorFlow.

The Dockerfiles take a base image as the argument `BASE_IMAGE`; clusters with GPUs use one with
CUDA. The images built here contain every package that the Dockerfiles install, so that builds of
the Dockerfiles need no network.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster import DevclusterError
from devcluster.images import torch_cpu
from devcluster.images.oci import ImageConfig, Layer, Layout
from devcluster.paths import CHECKOUT
from devcluster.toolchain.go import kill_with_parent

DEBIAN_PACKAGES = ("python3-minimal", "libpython3-stdlib", "ca-certificates")
DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
PYTHON = "3.11"
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
KEY_DIGITS = 12
"""Number of hexadecimal digits that identify an image's sources."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONFIG = ImageConfig(environment={"PATH": PATH, "LANG": "C.UTF-8"})
_WITH_SCRIPTS = ImageConfig(environment={"PATH": f"{PATH}:/{SITE}/bin", "LANG": "C.UTF-8"})


def requirements_files(*names: str) -> tuple[Path, ...]:
    """Return the paths of requirements files."""
    return tuple(CHECKOUT / "requirements" / f"{name}.txt" for name in names)


@dataclass(frozen=True)
class Base:
    """Image of two layers: Debian packages, and Python packages from requirements files.

    Debian packages in `added` and Python packages in `python` become additional layers, so that
    images can share the first two layers.
    """

    reference: str
    # Images are built without a network: the base must contain all packages that they install.
    requirements: tuple[Path, ...]
    headers: tuple[str, ...] = ()
    """Directories of Python packages that only compilers need."""
    added: tuple[str, ...] = ()
    python: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Name with a digest of the sources: `pytorch-cpu-<12 hexadecimal digits>`."""
        parts = [file.read_bytes() for file in self._sources]
        parts += [Path(torch_cpu.__file__).read_bytes(), repr((self.headers, self.added)).encode()]
        key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:KEY_DIGITS]
        return f"{self.reference.partition(':')[0]}-{key}"

    @property
    def _sources(self) -> tuple[Path, ...]:
        return (*self.requirements, *self.python, Path(__file__))


PYTORCH = Base(
    "pytorch-cpu:2.15.0", requirements_files("workload", "cpu-image", "diffusion", "recorder")
)


def build(base: Base, images: Path, uv: Path, log: Path) -> Layout:
    """Build an image in the directory `images`, unless it exists. Raise DevclusterError on failure.

    This takes about a minute. Layers of PyTorch's image are reused, and images that were built from
    earlier versions of the same sources are deleted.
    """
    layout = Layout(images / base.name)
    if layout.digest is not None:
        return layout
    work = images / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    builder = _LayerBuilder(work, uv, log)
    try:
        if base is PYTORCH:
            layers: list[Path | Layer] = [*builder.base_layers(base)]
        else:
            root, site = Layout(images / PYTORCH.name).layers()
            differs = base.requirements != PYTORCH.requirements
            layers = [root, builder.site(base) if differs else site]
            if base.added:
                layers.append(builder.added(base, root))
            if base.python:
                layers.append(builder.site(replace(base, requirements=base.python)))
        layout.write(layers, _WITH_SCRIPTS if base.python else CONFIG)
    except subprocess.CalledProcessError as error:
        raise DevclusterError(
            f"building the base image {base.reference} failed: {error}; see {log}"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    kind = base.name.rpartition("-")[0]
    for older in images.glob(f"{kind}-{'[0-9a-f]' * KEY_DIGITS}"):
        if older.name != base.name:
            shutil.rmtree(older, ignore_errors=True)
    return layout


@dataclass(frozen=True)
class _LayerBuilder:
    """Builder of layers, as tar files in the scratch directory `work`."""

    work: Path
    uv: Path
    log: Path

    def base_layers(self, base: Base) -> list[Path]:
        """Return the Debian layer, which is built in the background, and the Python layer."""
        tar = self.work / "root.tar"
        debian = self._start_debian(DEBIAN_PACKAGES, tar)
        try:
            site = self.site(base)
        except BaseException:
            debian.terminate()  # otherwise it would continue to write to `work`
            debian.wait()
            raise
        self._finish(debian)
        return [tar, site]

    def site(self, base: Base) -> Path:
        """Return the layer of Python packages."""
        packages = self.work / "packages"
        _install(base, packages, self.uv, self.log)
        for directory in base.headers:
            shutil.rmtree(packages / directory, ignore_errors=True)
        if base.requirements == PYTORCH.requirements:
            torch_cpu.cut(packages)
        if base.python:
            _adapt_scripts(packages / "bin")
        return _pack(packages, self.work / "packages.tar")

    def added(self, base: Base, root: Layer) -> Path:
        """Return a layer with the files that additional Debian packages add to `root`."""
        larger, tar = self.work / "larger.tar", self.work / "added.tar"
        self._finish(self._start_debian((*DEBIAN_PACKAGES, *base.added), larger))
        write_difference(larger, root.file, tar)
        return tar

    def _start_debian(self, packages: Sequence[str], tar: Path) -> "subprocess.Popen[bytes]":
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
        command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [*kill_with_parent(), *command, "bookworm", str(tar)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )

    def _finish(self, debian: "subprocess.Popen[bytes]") -> None:
        if debian.wait() != 0:
            raise DevclusterError(f"building Debian's base system failed; see {self.log}")


def _install(base: Base, packages: Path, uv: Path, log: Path) -> None:
    """Install packages from the user's cache or, if any are missing there, download all packages.

    Downloads go to a cache that is deleted with the scratch files, so that the user's cache does
    not grow by a gigabyte of packages that only the image needs.
    """
    downloads = packages.with_name("downloads")
    # Copy the user's files instead of linking them, because some are changed later.
    sources = (
        ["--offline", "--link-mode=copy"],
        ["--link-mode=hardlink", f"--cache-dir={downloads}"],
    )
    # Without bytecode, a container with a read-only root filesystem would compile all imported
    # modules at each start.
    options = ["--no-deps", "--require-hashes", "--compile-bytecode", f"--target={packages}"]
    target = [f"--python={PYTHON}", "--python-platform=x86_64-manylinux_2_28"]
    files = [part for file in base.requirements for part in ("-r", str(file))]
    install = [str(uv), "pip", "install"]
    for source in sources:
        shutil.rmtree(packages, ignore_errors=True)
        with log.open("ab") as out:
            done = subprocess.run(
                [*kill_with_parent(), *install, *source, *options, *target, *files],
                # Unchecked hashes (PEP 552), because layers do not keep the modification times.
                env={**os.environ, "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        if done.returncode == 0:
            break
    done.check_returncode()
    shutil.rmtree(downloads, ignore_errors=True)


def _adapt_scripts(directory: Path) -> None:
    """Make scripts run with the image's Python instead of the Python that installed them."""
    for script in directory.iterdir():
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            script.write_bytes(b"#!/usr/bin/python3\n" + rest)


def _pack(packages: Path, tar: Path) -> Path:
    same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    # Programs such as JupyterLab look for their data below the prefix.
    renamed = [f"--transform=s#^\\.#{SITE}#", f"--transform=s#^{SITE}/share#usr/local/share#"]
    subprocess.run(["tar", "-C", str(packages), *same, *renamed, "-cf", str(tar), "."], check=True)
    return tar


def write_difference(larger: Path, smaller: Path, to: Path) -> None:
    """Write the members of the tar file `larger` that are missing from `smaller` or differ there.

    Files have the modification time from their package, so the same size and time mean the same
    contents. Members that exist only in `smaller` are ignored, because packages are only added.
    """
    with tarfile.open(smaller) as archive:
        known = {member.name: _metadata(member) for member in archive}
    with tarfile.open(larger) as source, tarfile.open(to, "w", format=tarfile.PAX_FORMAT) as target:
        for member in source:
            if known.get(member.name) != _metadata(member):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)


def _metadata(member: tarfile.TarInfo) -> tuple[object, ...]:
    # Directories and links have the time of the installation.
    time = member.mtime if member.isreg() else None
    owner = (member.uid, member.gid, member.mode)
    return member.type, member.size, member.linkname, owner, time
