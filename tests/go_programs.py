"""Test programs that are built from Go modules."""

import shutil
import subprocess
from pathlib import Path

from devcluster.paths import cache_root
from devcluster.toolchain import go
from tests.platforms import unavailable


def program(package: str) -> Path:
    """Return the program of a package with its version, such as `example.com/a@v1`, built once."""
    name, _, version = package.rpartition("/")[2].partition("@")
    folder = cache_root() / "tools" / f"{name}-{version}"
    if not (folder / name).exists():
        if shutil.which("go") is None:
            unavailable(f"{name} is built from its Go module, and Go is not installed")
        environment = {**go.environment(), "GOBIN": str(folder), "GOFLAGS": "-trimpath"}
        done = subprocess.run(
            ["go", "install", package], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            unavailable(f"{name} cannot be built: {done.stderr}")
    return folder / name
