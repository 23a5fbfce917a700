"""The base image of training and inference on the embedded cluster: Debian, Python, PyTorch's cut.

On a cluster with GPUs its place is taken by an image with CUDA; both are `BASE_IMAGE` to the
Dockerfiles, which find here every package that they ask for, so that building needs no network.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.images import torch_cpu
from devcluster.images.oci import ImageConfig, Layout
from devcluster.paths import CHECKOUT

# Images are built without a network: what they install must be in their base already.
REQUIREMENTS = tuple(
    CHECKOUT / "requirements" / name for name in ("workload.txt", "cpu-image.txt", "diffusion.txt")
)
SITE = "usr/local/lib/python3.11/dist-packages"
DEBIAN_PACKAGES = "python3-minimal,libpython3-stdlib,ca-certificates"
CONFIG = ImageConfig(
    environment={
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
    }
)


def key() -> str:
    """Changes with whatever the image is made of (12 hexadecimal digits)."""
    parts = [file.read_bytes() for file in (*REQUIREMENTS, Path(__file__))]
    parts.append(Path(torch_cpu.__file__).read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build(layout: Layout, work: Path, uv: Path, log: Path) -> None:
    """Makes the image, in about a minute; `work` is scratch. Raises DevclusterError."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        root, packages = work / "root.tar", work / "packages"
        system = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={DEBIAN_PACKAGES}"]
        # In the background: it waits for downloads while Python's packages are unpacked.
        with log.open("ab") as out:
            debian = subprocess.Popen(
                [*system, "bookworm", str(root)], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
            try:
                _install(packages, uv, log)
                torch_cpu.cut(packages)
            except BaseException:
                debian.terminate()  # else it would go on writing below `work`
                debian.wait()
                raise
            if debian.wait() != 0:
                raise DevclusterError(f"Debian's base system could not be made; see {log}")
        layout.write([root, _pack(packages, work / "packages.tar")], CONFIG)
    except subprocess.CalledProcessError as error:
        raise DevclusterError(f"the base image could not be made: {error}; see {log}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _install(packages: Path, uv: Path, log: Path) -> None:
    # Copies, not hard links: the cut changes the files, and uv's cache must keep its own.
    options = ["--no-deps", "--require-hashes", "--link-mode=copy", "--no-compile-bytecode"]
    target = ["--python-version=3.11", "--python-platform=x86_64-manylinux_2_28"]
    files = [part for file in REQUIREMENTS for part in ("-r", str(file))]
    with log.open("ab") as out:
        subprocess.run(
            [str(uv), "pip", "install", *options, *target, f"--target={packages}", *files],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=True,
        )


def _pack(packages: Path, tar: Path) -> Path:
    same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    renamed = f"--transform=s#^\\.#{SITE}#"
    subprocess.run(["tar", "-C", str(packages), *same, renamed, "-cf", str(tar), "."], check=True)
    return tar
