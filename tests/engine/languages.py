"""What Pulumi needs for programs in YAML and TypeScript, built or fetched once."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from devcluster.paths import cache_root
from devcluster.toolchain import builder, files, pins
from devcluster.toolchain.store import Store
from tests.tiers import unavailable

HERE = Path(__file__).parent
PINS = pins.load(pins.HERE / "languages.toml")
TYPESCRIPT = HERE / "data" / "typescript"


def language_hosts() -> Path:
    """A folder for PATH with the language hosts; a test without Go is skipped, and fails in CI."""
    store, logs = Store(cache_root() / "tools"), cache_root() / "logs"
    hosts = store.root / f"languages-{PINS.digest()}"
    pinned = [(module, program) for module in PINS.modules for program in module.programs]
    if missing := [p for p in pinned if not store.place(*p).exists()]:
        if shutil.which("go") is None:
            unavailable("Pulumi's language hosts are built from Go modules, and there is no Go")
        orders = [builder.Order(module, (program,)) for module, program in missing]
        with store.workshop(print) as scratch:
            builder.build(orders, store, scratch, logs, print)
    for module, program in pinned:
        files.put(store.place(module, program), hosts / program.name, own=True)
    return hosts


def node_modules() -> Path:
    """The packages of package-lock.json, fetched once; without npm the test is skipped."""
    lock = (TYPESCRIPT / "package-lock.json").read_bytes()
    made = cache_root() / "tools" / f"node-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not (made / "node_modules").exists():
        if shutil.which("npm") is None:
            unavailable("a program in TypeScript needs Node.js, and there is no npm on PATH")
        # Whole or not there: an interrupted one leaves only this folder, which is made anew.
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
            unavailable(f"npm cannot install what TypeScript needs: {done.stderr}")
        fresh.rename(made)
    return made / "node_modules"
