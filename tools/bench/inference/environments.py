"""The peers' packages, each in a virtual environment of its own that borrows our PyTorch."""

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
from tools.bench.outcome import say

REQUIREMENTS = CHECKOUT / "requirements"


def cache() -> Path:
    """Where everything is kept that need not be made twice."""
    return cache_root() / "bench-inference"


def python_of(name: str) -> Path:
    """The interpreter with requirements/bench-<name>.txt installed; ours where the name is empty.

    What a peer does not pin comes from our environment, above all PyTorch, which is not installed
    once more. Raises subprocess.CalledProcessError when something cannot be installed.
    """
    if not name:
        return Path(sys.executable)
    pins = REQUIREMENTS / f"bench-{name}.txt"
    own = sysconfig.get_path("purelib")
    digest = hashlib.sha256(pins.read_bytes() + own.encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        say(f"installing {name} …")
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        _uv("pip", "install", "--python", str(python), "--require-hashes", "-r", str(pins))
        packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (packages / "zz-project.pth").write_text(f"{own}\n")
        done.touch()
    return python


def _uv(*arguments: str) -> None:
    subprocess.run(["uv", "--quiet", *arguments], check=True)


_ASK: Final = "import importlib.metadata as m, json; print(json.dumps(m.version('{}')))"


def versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    """PyTorch's, and each peer's."""
    found = {"PyTorch": version("torch")}
    for one in contestants:
        if one.environment:
            command = [str(python_of(one.environment)), "-c", _ASK.format(one.environment)]
            found[one.name] = json.loads(subprocess.check_output(command))
    return found
