"""Virtual environments for the peers (the other servers). The environments reuse our PyTorch."""

import hashlib
import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from devcluster.paths import CHECKOUT, cache_root
from tools.bench.inference.contestants import Contestant
from tools.bench.outcome import print_line

REQUIREMENTS = CHECKOUT / "requirements"


def cache() -> Path:
    """Return the cache directory of the benchmark."""
    return cache_root() / "bench-inference"


def python_of(name: str) -> Path:
    """Return the interpreter of a peer's environment, or our interpreter if `name` is empty.

    The environment contains the packages of requirements/bench-<name>.txt. Packages that the peer
    does not pin come from our environment, so that PyTorch is not installed again. Raise
    subprocess.CalledProcessError if the installation fails.
    """
    if not name:
        return Path(sys.executable)
    pins = REQUIREMENTS / f"bench-{name}.txt"
    site_packages = sysconfig.get_path("purelib")
    digest = hashlib.sha256(pins.read_bytes() + site_packages.encode()).hexdigest()[:12]
    directory = cache() / f"{name}-{digest}"
    python = directory / "bin" / "python"
    complete = directory / "complete"
    if not complete.exists():
        print_line(f"installing {name} …")
        _uv("venv", "--clear", "--python", sys.executable, str(directory))
        _uv("pip", "install", "--python", str(python), "--require-hashes", "-r", str(pins))
        packages = directory / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (packages / "zz-project.pth").write_text(f"{site_packages}\n")
        complete.touch()
    return python


def _uv(*arguments: str) -> None:
    subprocess.run(["uv", "--quiet", *arguments], check=True)


_VERSION_CODE: Final = "import importlib.metadata as m, json; print(json.dumps(m.version('{}')))"


def versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    """Return the versions of PyTorch and of each peer."""
    found = {"PyTorch": version("torch")}
    for one in contestants:
        if one.environment:
            code = _VERSION_CODE.format(one.environment)
            command = [str(python_of(one.environment)), "-c", code]
            found[one.name] = json.loads(subprocess.check_output(command))
    return found
