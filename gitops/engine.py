"""Pulumi CLI calls for one stack.

Events are read from the engine's event log, not from the output. Every preview has its own event
log in a temporary directory, so several previews of one checkout can run at the same time.
"""

import csv
import io
import json
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
    """A stack of the project in the directory `project`.

    `configuration` replaces the project's `Pulumi.<name>.yaml`, and `variables` are added to the
    environment. `notices` state what a preview of the stack cannot show.
    """

    name: str
    project: Path = PROJECT
    configuration: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Path of the stack's configuration file."""
        return self.configuration or self.project / f"Pulumi.{self.name}.yaml"


@dataclass(frozen=True)
class Pack:
    """A policy pack and its configuration file, if it has one."""

    directory: Path
    configuration: Path | None = None

    @property
    def options(self) -> list[str]:
        """Options for `pulumi preview` and `pulumi up`."""
        chosen = ["--policy-pack", _csv(self.directory)]
        if self.configuration is not None:
            chosen += ["--policy-pack-config", _csv(self.configuration)]
        return chosen


@dataclass(frozen=True)
class Result:
    """Result of a command: exit status, output, and stdout if it was captured separately."""

    status: int
    output: str
    stdout: str = ""


class Preview:
    """Context manager that runs a preview in the background. Leaving the context stops the preview.

    With `refresh`, the preview compares the state with the cluster and does not run the program.
    `plan` is the file to which the update plan is written.
    """

    def __init__(
        self, stack: Stack, pack: Pack | None, *, refresh: bool = False, plan: Path | None = None
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gpu-platform-preview-")
        self.log = Path(self._directory.name) / "events"
        self._output = Path(self._directory.name) / "output"
        command = ["refresh", "--preview-only"] if refresh else ["preview"]
        options = pack.options if pack else []
        if plan is not None:
            plan.parent.mkdir(parents=True, exist_ok=True)
            options = [*options, "--save-plan", str(plan)]
        # --event-log is a hidden flag of the CLI.
        options = [
            *options,
            "--event-log",
            str(self.log),
            "--suppress-outputs",
            "--suppress-progress",
        ]
        with self._output.open("wb") as output:
            self._process = _start(
                stack,
                [*command, *_preview_options(stack), *options],
                output,
                {"PULUMI_DEBUG_COMMANDS": "1"},
            )

    def __enter__(self) -> "Preview":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._directory.cleanup()

    def wait(self, progress: Callable[[int], None] = lambda _: None) -> Result:
        """Wait until the preview finishes. The event log exists until the context exits.

        `progress` is called about once per second with the number of resources processed so far.
        """
        # A thread reports the progress, because `Popen.wait` with a timeout would poll every 50 ms.
        finished = threading.Event()

        def report() -> None:
            while not finished.wait(_TICK_SECONDS):
                progress(self._count_processed_resources())

        reporter = threading.Thread(target=report)
        reporter.start()
        try:
            status = self._process.wait()
        finally:
            finished.set()
            reporter.join()
        return Result(status, self._output.read_text("utf-8", "replace"))

    def _count_processed_resources(self) -> int:
        return self.log.read_bytes().count(b'"resourcePreEvent"') if self.log.exists() else 0


def run(stack: Stack, *arguments: str, directory: Path | None = None) -> Result:
    """Run a Pulumi command and return its result. The output is stdout followed by stderr."""
    process = _start(
        stack,
        [*arguments, "--non-interactive"],
        subprocess.PIPE,
        directory=directory,
        separate_stderr=True,
    )
    try:
        out, err = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    stdout = out.decode("utf-8", "replace")
    return Result(process.returncode, stdout + err.decode("utf-8", "replace"), stdout)


def run_or_fail(stack: Stack, *arguments: str, directory: Path | None = None) -> str:
    """Run a Pulumi command and return its output.

    Raises:
        GitopsError: If the command fails; the message contains its output.
    """
    result = run(stack, *arguments, directory=directory)
    if result.status != 0:
        shown = " ".join(argument for argument in arguments if len(argument) < 80)
        raise GitopsError(f"`pulumi {shown}` failed:\n{result.output.strip()}")
    return result.output


def external_resources(stack: Stack) -> frozenset[str]:
    """Return the URNs of resources that the program reads but does not manage.

    Raises:
        GitopsError: If the state cannot be read.
    """
    result = run(stack, "stack", "export", "--stack", stack.name)
    if result.status != 0:
        raise GitopsError(f"`pulumi stack export` failed:\n{result.output.strip()}")
    resources = json.loads(result.stdout)["deployment"].get("resources") or []
    return frozenset(each["urn"] for each in resources if each.get("external"))


def stack_options(stack: Stack) -> list[str]:
    """Return the options that select the stack and its configuration."""
    chosen = ["--stack", stack.name]
    if stack.configuration is not None:
        chosen += ["--config-file", str(stack.configuration)]
    return chosen


def _csv(path: Path) -> str:
    """Return a path as CSV, which the CLI expects in options that can be repeated."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([path])
    return line.getvalue()


def _preview_options(stack: Stack) -> list[str]:
    return [*stack_options(stack), "--non-interactive", "--color", "never"]


def _start(
    stack: Stack,
    arguments: list[str],
    output: Any,
    extra: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    separate_stderr: bool = False,
) -> subprocess.Popen[bytes]:
    variables = {"PULUMI_SKIP_UPDATE_CHECK": "1", **os.environ, **stack.variables, **(extra or {})}
    # The engine waits for a line that the policy pack prints, so Python must not buffer the output.
    variables["PYTHONUNBUFFERED"] = "1"
    try:
        return subprocess.Popen(
            ["pulumi", *arguments],
            cwd=directory or stack.project,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if separate_stderr else subprocess.STDOUT,
        )
    except FileNotFoundError as problem:
        raise GitopsError(
            "`pulumi` is not on the PATH: install it (https://www.pulumi.com/docs/install), or add "
            'the embedded cluster\'s tools to the PATH with eval "$(make env)"'
        ) from problem
