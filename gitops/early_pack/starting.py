"""Starts a pack before the engine asks for it."""

import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from gitops.engine import Pack, Stack

_HERE = Path(__file__).parent
_PROJECT = "PulumiPolicy.yaml"
_PIPES = ("stdout", "stderr")


@contextmanager
def started(pack: Pack, stack: Stack) -> Iterator[Pack]:
    """The pack to give the engine in place of `pack`, which has been started; it ends on leaving.

    A pack that does not say which Python environment is its own is given back as it is.
    """
    project = yaml.safe_load((pack.folder / _PROJECT).read_text("utf-8"))
    python = _interpreter(pack.folder, project)
    if python is None:
        yield pack
        return
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="gpu-platform-pack-")))
        _prepare(folder, project)
        server = _serve(python, pack.folder, folder, stack)
        ends.callback(server.wait)
        if server.stdin is not None:
            ends.callback(server.stdin.close)
        yield Pack(folder, pack.configuration)


def _interpreter(folder: Path, project: Any) -> Path | None:
    runtime = project.get("runtime") if isinstance(project, dict) else None
    options = runtime.get("options") if isinstance(runtime, dict) else None
    environment = options.get("virtualenv") if isinstance(options, dict) else None
    if not isinstance(environment, str):
        return None
    python = folder / environment / "bin" / "python"
    return python if python.exists() else None


def _prepare(folder: Path, project: dict[str, Any]) -> None:
    """Makes what the engine takes for the pack: the same project, whose program is the relay."""
    # Nothing is in this environment, so what the engine tries to import there fails at once.
    venv.create(folder / "venv", symlinks=True)
    runtime = {"name": "python", "options": {"virtualenv": "venv"}}
    (folder / _PROJECT).write_text(yaml.safe_dump({**project, "runtime": runtime}))
    shutil.copy(_HERE / "relay.py", folder / "__main__.py")
    for name in _PIPES:
        os.mkfifo(folder / name)


def _serve(python: Path, pack: Path, folder: Path, stack: Stack) -> "subprocess.Popen[bytes]":
    # Opened for both, a pipe is open at once and keeps what is said until somebody reads it.
    out, error = (os.open(folder / name, os.O_RDWR) for name in _PIPES)
    try:
        return subprocess.Popen(
            [python, "-P", _HERE / "server.py", pack],
            cwd=stack.project,
            env={**os.environ, **stack.variables, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            # An interrupt is the engine's to answer, which ends its packs when it is done.
            process_group=0,
            stdout=out,
            stderr=error,
        )
    finally:
        os.close(out)
        os.close(error)
