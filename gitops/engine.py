"""Runs `pulumi` for one stack: its events by the engine's event log, never by what it prints.

Every call has an event log of its own in a temporary folder, so previews of one checkout may run at
the same time.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gitops.errors import GitopsError

PROJECT = Path(__file__).resolve().parent.parent
_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Stack:
    """A stack of the project in a folder.

    `configuration` is a file to use in place of the project's own `Pulumi.<name>.yaml`, `variables`
    are added to the environment.
    """

    name: str
    project: Path = PROJECT
    configuration: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The file that holds the stack's configuration."""
        return self.configuration or self.project / f"Pulumi.{self.name}.yaml"


@dataclass(frozen=True)
class Pack:
    """A policy pack and its configuration file, if it has one."""

    folder: Path
    configuration: Path | None = None

    @property
    def options(self) -> list[str]:
        """The options of `pulumi preview` and `pulumi up`."""
        chosen = ["--policy-pack", str(self.folder)]
        if self.configuration is not None:
            chosen += ["--policy-pack-config", str(self.configuration)]
        return chosen


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status, what it said in all, and stdout alone where it is apart."""

    status: int
    said: str
    out: str = ""


class Preview:
    """A preview that runs in the background; `wait` gives what came of it.

    Used as a context manager, which ends the engine where it is left early.
    """

    def __init__(self, stack: Stack, pack: Pack | None, *, refresh: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-platform-preview-")
        self.log = Path(self._folder.name) / "events"
        self._output = Path(self._folder.name) / "output"
        options = [*(pack.options if pack else []), *(["--refresh"] if refresh else [])]
        # --event-log is one of the CLI's hidden flags
        options += ["--event-log", str(self.log), "--suppress-outputs", "--suppress-progress"]
        with self._output.open("wb") as output:
            self._process = _start(
                stack,
                ["preview", *_common(stack), *options],
                output,
                {"PULUMI_DEBUG_COMMANDS": "1"},
            )

    def __enter__(self) -> "Preview":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def wait(self, progress: Callable[[int], None] = lambda _: None) -> Ended:
        """Waits for the end; the event log is there until the context ends.

        `progress` is called about every second with the number of resources that were looked at.
        """
        # Waiting with a limit of time would look for the end every 50 ms.
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(_TICK_SECONDS):
                progress(self._looked_at())

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            status = self._process.wait()
        finally:
            ended.set()
            teller.join()
        return Ended(status, self._output.read_text("utf-8", "replace"))

    def _looked_at(self) -> int:
        return self.log.read_bytes().count(b'"resourcePreEvent"') if self.log.exists() else 0


def run(stack: Stack, *arguments: str, folder: Path | None = None) -> Ended:
    """Runs a command to its end; what it printed is stdout and then stderr."""
    process = _start(
        stack, [*arguments, "--non-interactive"], subprocess.PIPE, folder=folder, error=True
    )
    try:
        out, error = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    answer = out.decode("utf-8", "replace")
    return Ended(process.returncode, answer + error.decode("utf-8", "replace"), answer)


def run_or_fail(stack: Stack, *arguments: str, folder: Path | None = None) -> str:
    """Like `run`; raises GitopsError with what was said where the command fails."""
    ended = run(stack, *arguments, folder=folder)
    if ended.status != 0:
        shown = " ".join(argument for argument in arguments if len(argument) < 80)
        raise GitopsError(f"`pulumi {shown}` failed:\n{ended.said.strip()}")
    return ended.said


def common(stack: Stack) -> list[str]:
    """The options that name the stack and its configuration."""
    chosen = ["--stack", stack.name]
    if stack.configuration is not None:
        chosen += ["--config-file", str(stack.configuration)]
    return chosen


def _common(stack: Stack) -> list[str]:
    return [*common(stack), "--non-interactive", "--color", "never"]


def _start(
    stack: Stack,
    arguments: list[str],
    output: Any,
    more: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    error: bool = False,
) -> subprocess.Popen[bytes]:
    variables = {"PULUMI_SKIP_UPDATE_CHECK": "1", **os.environ, **stack.variables, **(more or {})}
    # A pack whose first line is buffered keeps the engine waiting for ever.
    variables["PYTHONUNBUFFERED"] = "1"
    try:
        return subprocess.Popen(
            ["pulumi", *arguments],
            cwd=folder or stack.project,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if error else subprocess.STDOUT,
        )
    except FileNotFoundError as problem:
        raise GitopsError(
            "there is no `pulumi` on PATH: install https://www.pulumi.com/docs/install, or use "
            'the embedded cluster\'s own with eval "$(make env)"'
        ) from problem
