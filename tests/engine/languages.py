"""Requirements of Pulumi programs in YAML and TypeScript, built or downloaded once."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from devcluster.paths import cache_root
from devcluster.toolchain import ensure
from tests.platforms import unavailable

HERE = Path(__file__).parent
TYPESCRIPT = HERE / "data" / "typescript"


def language_hosts() -> Path:
    """Return a directory of language hosts for PATH. Without Go, skip the test or fail in CI."""
    if shutil.which("go") is None:
        unavailable("Pulumi's language hosts are built from Go modules, but Go is not installed")
    return ensure("engine", cache_root(), print, ["languages"]).bin


def node_modules() -> Path:
    """Return the packages of package-lock.json, downloaded once. Skip the test without npm."""
    lock = (TYPESCRIPT / "package-lock.json").read_bytes()
    made = cache_root() / "tools" / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (made / "node_modules").exists():
        if shutil.which("npm") is None:
            unavailable("TypeScript programs require Node.js, but npm is not on PATH")
        # An interrupted installation leaves only this directory, never an incomplete target.
        fresh = made.with_name(f"{made.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(TYPESCRIPT / name, fresh)
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=fresh,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            unavailable(f"npm failed to install the TypeScript packages: {done.stderr}")
        fresh.rename(made)
    return made / "node_modules"
