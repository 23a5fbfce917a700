"""The Pulumi stack, by the CLI: preview under the policy pack, update, outputs.

The engine's own event log (one JSON object a line) tells what happens; what it prints for people
goes to a log file and is shown when something is refused.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from devcluster.errors import DevclusterError
from devcluster.paths import CHECKOUT, Layout

UNCHANGED = frozenset({"same", "read"})
Report = Callable[[str], None]


@dataclass(frozen=True)
class Stack:
    """One stack of the project in this checkout."""

    name: str
    layout: Layout
    environment: Mapping[str, str]

    def select(self) -> None:
        """Selects the stack, creating it where it is not there, and frees a dead one's lock."""
        self._capture("stack", "select", "--create", self.name)
        if self._locked_by_the_dead():
            self._capture("cancel", "--yes", "--stack", self.name)

    def pending_operations(self) -> list[dict[str, Any]]:
        """What an update was about when it was killed, as the stack's state has it."""
        state = json.loads(self._capture("stack", "export", "--stack", self.name))
        return list(state["deployment"].get("pending_operations") or [])

    def clear_pending_creates(self) -> None:
        """Compares the state with the cluster, and forgets what was being created."""
        options = ["--yes", "--skip-preview", "--clear-pending-creates", "--stack", self.name]
        self._capture("refresh", *options)

    def preview(self, report: Report) -> dict[str, int]:
        """Counts of resources by operation. DevclusterError when it is refused; nothing changes."""
        return self._run("preview", [], report)

    def update(self, report: Report) -> dict[str, int]:
        """Updates what the preview, just done, has shown."""
        return self._run("up", ["--yes", "--skip-preview"], report)

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs; secrets stay hidden."""
        text = self._capture("stack", "output", "--json", "--stack", self.name)
        return dict(json.loads(text))

    def _locked_by_the_dead(self) -> bool:
        locks = list((self.layout.pulumi_backend / ".pulumi" / "locks").rglob("*.json"))
        for lock in locks:
            try:
                holder = psutil.Process(json.loads(lock.read_text())["pid"])
                if "pulumi" in holder.name():
                    return False
            except psutil.NoSuchProcess:
                continue
            except (OSError, ValueError, KeyError):
                return False  # it is being written, or was removed: somebody is at work
        return bool(locks)

    def _capture(self, *arguments: str) -> str:
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=CHECKOUT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise DevclusterError(f"`pulumi {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
        return done.stdout

    def _run(self, command: str, options: list[str], report: Report) -> dict[str, int]:
        log = self.layout.logs / f"pulumi-{command}.log"
        events = self.layout.logs / f"pulumi-{command}.events"
        events.unlink(missing_ok=True)
        pack = ["--policy-pack", "policies", "--policy-pack-config"]
        config = CHECKOUT / "policies" / "config" / f"{self.name}.json"
        quiet = ["--non-interactive", "--color", "never", "--suppress-outputs"]
        fixed = ["--stack", self.name, *quiet]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    "pulumi",
                    command,
                    *options,
                    *fixed,
                    *pack,
                    str(config),
                    "--event-log",
                    str(events),
                ],
                cwd=CHECKOUT,
                # --event-log is one of the CLI's hidden flags
                env={**os.environ, **self.environment, "PULUMI_DEBUG_COMMANDS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            follower = EventFollower(events)
            try:
                while process.poll() is None:
                    follower.follow(report)
                    _pause(process)
            except BaseException:
                # Pulumi finishes the step at hand, so that its state stays whole.
                process.terminate()
                process.wait()
                raise
        follower.follow(report)
        if process.returncode != 0:
            raise DevclusterError(_explain(command, log.read_text(), log))
        return follower.changes


def _pause(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.3)
    except subprocess.TimeoutExpired:
        return


def _explain(command: str, text: str, log: Path) -> str:
    """What pulumi said, without the tree of resources above it."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(("Diagnostics:", "Policies:"))]
    said = "\n".join(lines[min(starts) :] if starts else lines[-30:])
    return f"`pulumi {command}` was refused or failed, and its log is {log}\n{said}"


class EventFollower:
    """Reads the engine's event log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.changes: dict[str, int] = {}
        self._done = 0

    def follow(self, report: Report) -> None:
        """Takes in what is new, and reports the resource at hand."""
        if not self._path.exists():
            return
        # Bytes: a line may be cut off within a character.
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                self._offset = file.tell()
                self._take(json.loads(line), report)

    def _take(self, event: dict[str, Any], report: Report) -> None:
        if summary := event.get("summaryEvent"):
            self.changes = dict(summary["resourceChanges"] or {})
        elif resource := event.get("resourcePreEvent"):
            metadata = resource["metadata"]
            if metadata["op"] not in UNCHANGED:
                self._done += 1
                report(f"{self._done}: {metadata['op']} {metadata['urn'].rsplit('::', 1)[-1]}")


def describe(changes: Mapping[str, int]) -> str:
    """Such as `12 created, 1 updated`, or `unchanged`."""
    words = {"create": "created", "update": "updated", "delete": "deleted", "replace": "replaced"}
    said = [f"{n} {words.get(op, op)}" for op, n in changes.items() if op not in UNCHANGED and n]
    return ", ".join(said) or "unchanged"


def describe_plan(changes: Mapping[str, int]) -> str:
    """Such as `12 to create, 1 to update`, or `unchanged`."""
    said = [f"{n} to {op}" for op, n in changes.items() if op not in UNCHANGED and n]
    return ", ".join(said) or "unchanged"


def is_unchanged(changes: Mapping[str, int]) -> bool:
    """True where an update would do nothing."""
    return not any(n for op, n in changes.items() if op not in UNCHANGED)
