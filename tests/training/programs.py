"""Real programs in processes that do not have to import PyTorch.

A fork server imports PyTorch once. Every program is forked from the server and runs like
`python -m PROGRAM`, with its own environment, arguments and output.
"""

import contextlib
import json
import multiprocessing
import os
import resource
import runpy
import secrets
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import inference.engine.process  # noqa: F401 - sets its own preload list when it is imported
from tests import fork_server
from workload.manifest import read_manifest

fork_server.preload()

SLOWLY = "--step-delay=0.1"
SAVING = "--checkpoint-steps=2"


def _run_program(
    program: str, arguments: list[str], environment: dict[str, str], output: str
) -> None:
    descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    if "PYTHONPATH" in environment:  # Python reads this variable only when it starts.
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    # A daemonic process may not have children.
    multiprocessing.current_process().daemon = False
    fork_server.share()
    sys.argv = [program, *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    runpy.run_module(program, run_name="__main__", alter_sys=True)


@dataclass
class Program:
    """A running program and its output file."""

    process: BaseProcess
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def limit_files(self, size: int) -> None:
        """Limit the size of files that the program writes after this call."""
        assert self.process.pid is not None
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, size))

    def exit_code(self, seconds: float = 500) -> int:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running:\n{self.text}"
        return self.process.exitcode

    def await_output(self, text: str, seconds: float = 500) -> None:
        until(lambda: text in self.text or not self.process.is_alive(), seconds)
        assert text in self.text, self.text


def start(
    program: str, arguments: list[str], environment: Mapping[str, str], output: Path
) -> Program:
    """Start a program like `python -m`, forked from the fork server."""
    process = fork_server.SERVER.Process(
        target=_run_program, args=(program, arguments, dict(environment), str(output)), daemon=True
    )
    process.start()
    return Program(process, output)


def run_with(python: Path, program: str, arguments: list[str], output: Path) -> None:
    """Run a program with the additional packages of the environment of `python`."""
    packages = sysconfig.get_path("purelib", vars={"base": str(python.parents[1])})
    running = start(program, arguments, {"PYTHONPATH": packages}, output)
    assert running.exit_code() == 0, running.text


def kill(programs: Iterable[Program]) -> None:
    """Kill all processes of a gang together: a process exits by itself once a peer is dead."""
    running = list(programs)
    for program in running:
        with contextlib.suppress(ProcessLookupError):
            program.signal(signal.SIGKILL)
    for program in running:
        program.exit_code()


def start_gang(
    arguments: list[str],
    size: int,
    folder: Path,
    program: str = "training",
    environment: Mapping[str, str] | None = None,
) -> list[Program]:
    """Start one process per rank, like a scheduler that creates one pod per process."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= environment or {}
    return [
        start(program, arguments, {"RANK": str(rank), **shared}, folder / f"rank-{rank}")
        for rank in range(size)
    ]


def arguments(run_dir: Path, *options: str) -> list[str]:
    """Return the arguments for a run of 64 steps that logs every step."""
    settings = ["--model=digits-net", "--dataset=synthetic", "--epochs=2", "--batch-size=64"]
    return [*settings, "--learning-rate=0.01", f"--run-dir={run_dir}", "--log-every=1", *options]


def saved(run_dir: Path) -> bool:
    """Return whether there is a complete checkpoint."""
    return any((run_dir / "checkpoints").glob("step-*"))


def digest(run_dir: Path) -> str:
    """Return the digest of the exported weights."""
    return read_manifest(run_dir / "export").weights.sha256


def free_port() -> int:
    """Return a free port outside the range that the kernel assigns to outgoing connections."""
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        # Not from `random`: forked processes share its state and would draw the same ports.
        port = 10_000 + secrets.randbelow(first_outgoing - 10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(condition: Callable[[], bool], seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def all_events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the events that programs in this process have printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the printed events except checkpoints, which may complete long after their step."""
    return [event for event in all_events(capsys) if event["event"] != "checkpoint"]
