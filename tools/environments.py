"""Virtual environments for third-party programs with conflicting requirements."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]


def environment(name: str, *, inherits: bool = False) -> Path:
    """Python with the packages of requirements/NAME.txt, installed again if they changed.

    With `inherits` it also imports the packages of the tests, such as torch, and installs only the
    listed ones.
    """
    pins = ROOT / f"requirements/{name}.txt"
    folder = Path(sys.prefix) / name
    python, stamp = folder / "bin/python", folder / "pins.txt"
    with FileLock(f"{folder}.lock"):
        if not stamp.exists() or stamp.read_text() != pins.read_text():
            uv = str(Path(sys.prefix) / "bin/uv")
            run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
            options = ["--quiet", "--python", str(python), "--require-hashes", "-r", str(pins)]
            run([uv, "pip", "install", *options, *(["--no-deps"] if inherits else [])])
            if inherits:
                (found,) = folder.glob("lib/python*/site-packages")
                (found / "tests.pth").write_text(sysconfig.get_path("purelib"))
            stamp.write_text(pins.read_text())
    return python


def run(command: list[str]) -> str:
    """Return the standard output of a program that must succeed."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {ended.stderr[-2000:]}")
    return ended.stdout
