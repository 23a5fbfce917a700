"""Virtual environments for third-party programs with conflicting requirements."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]


def environment(name: str, *, inherits: bool = False) -> Path:
    """Install requirements/NAME.txt in an environment if necessary, and return its interpreter.

    With `inherits`, the interpreter can also import the packages of the current environment, such
    as torch. Dependencies that the file does not list are then not installed.
    """
    pins = ROOT / f"requirements/{name}.txt"
    directory = Path(sys.prefix).resolve() / name
    python, stamp = directory / "bin/python", directory / "pins.txt"
    with FileLock(f"{directory}.lock"):
        if not stamp.exists() or stamp.read_text() != pins.read_text():
            uv = str(Path(sys.prefix) / "bin/uv")
            run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(directory)])
            options = ["--quiet", "--python", str(python), "--require-hashes", "-r", str(pins)]
            run([uv, "pip", "install", *options, *(["--no-deps"] if inherits else [])])
            if inherits:
                # Resolve symbolic links: a checkout may link to an environment that it shares with
                # other checkouts, and the link may be deleted later.
                packages = Path(sysconfig.get_path("purelib")).resolve()
                (found,) = directory.glob("lib/python*/site-packages")
                (found / "tests.pth").write_text(str(packages))
            stamp.write_text(pins.read_text())
    return python


def run(command: list[str]) -> str:
    """Run a program and return its standard output. Raise RuntimeError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout
