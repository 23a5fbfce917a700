"""The components as users install them: a wheel of the checkout in a virtual environment."""

import subprocess
import sys
import venv
from pathlib import Path

from tests.cluster.platform import ROOT

UV = Path(sys.executable).with_name("uv")
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements.txt")
FOLDERS = ("gpu_platform", "kube", "workload", "infra", "training", "inference", "policies")


def copy_sources(target: Path) -> Path:
    """Return a copy of the checkout that contains only the sources of the package and plugin."""
    for name in SOURCES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((ROOT / name).read_bytes())
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                copy = target / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
    return target


def environment(folder: Path) -> Path:
    """Create a virtual environment with the package and the pinned versions of its dependencies.

    Pulumi lists installed packages with pip, so the environment gets the interpreter's bundled
    pip: `uv venv --seed` would install the newest release.
    """
    source, wheels, made = copy_sources(folder / "source"), folder / "wheels", folder / "venv"
    # setuptools is already installed, so nothing has to be downloaded.
    build = ["build", "--wheel", "--no-build-isolation", "--out-dir", str(wheels), str(source)]
    uv(*build, "--python", sys.executable)
    (wheel,) = wheels.glob("*.whl")
    venv.create(made, with_pip=True)
    wanted = f"gpu-platform[components,policies] @ {wheel.as_uri()}"
    uv(
        *("pip", "install", "--python", str(made / "bin" / "python")),
        *("--constraint", str(ROOT / "requirements.txt"), wanted),
    )
    return made


def uv(*arguments: str) -> None:
    done = subprocess.run(
        [str(UV), *arguments], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}: {done.stderr}"
