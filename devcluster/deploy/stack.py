"""Access to the Pulumi stack through the CLI: preview with the policy pack, update, outputs.

Progress is read from the engine's event log (one JSON object per line). The CLI's output is written
to a log file and printed only after an error.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from devcluster import DevclusterError
from devcluster.paths import CHECKOUT, Layout
from gitops.engine import Pack
from gitops.preview import events
from gitops.preview.changes import changes
from policies.resources import RELEASE

UNCHANGED = frozenset({"same", "read"})
Report = Callable[[str], None]


@dataclass(frozen=True)
class Stack:
    """One stack of the project in this checkout."""

    name: str
    layout: Layout
    environment: Mapping[str, str]

    def select(self) -> None:
        """Select the stack, creating it if necessary, and remove locks left by dead processes."""
        self._capture("stack", "select", "--create", self.name)
        if self._has_stale_lock():
            self._capture("cancel", "--yes", "--stack", self.name)

    def pending_operations(self) -> list[dict[str, Any]]:
        """Return the pending operations that an interrupted update left in the stack's state."""
        state = json.loads(self._capture("stack", "export", "--stack", self.name))
        return list(state["deployment"].get("pending_operations") or [])

    def clear_pending_creates(self) -> None:
        """Refresh the state from the cluster, and drop the pending creations."""
        options = ["--yes", "--skip-preview", "--clear-pending-creates", "--stack", self.name]
        self._capture("refresh", *options)

    def preview(self) -> "Operation":
        """Start a preview with the policy pack."""
        return self._start("preview")

    def update(self, *options: str) -> "Operation":
        """Start an update with the policy pack, without another preview."""
        return self._start("up", "--yes", "--skip-preview", *options)

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs, with secrets hidden."""
        text = self._capture("stack", "output", "--json", "--stack", self.name)
        return dict(json.loads(text))

    def _has_stale_lock(self) -> bool:
        directory = self.layout.pulumi_backend / ".pulumi" / "locks"
        locks = list(directory.glob(f"*/*/{self.name}/*.json"))
        for lock in locks:
            try:
                process = psutil.Process(json.loads(lock.read_text())["pid"])
                if "pulumi" in process.name():
                    return False
            except psutil.NoSuchProcess:
                continue
            except (OSError, ValueError, KeyError):
                return False  # another process is writing the lock or has removed it
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

    def _start(self, command: str, *options: str) -> "Operation":
        log = self.layout.logs / f"pulumi-{command}.log"
        events = self.layout.logs / f"pulumi-{command}.events"
        events.unlink(missing_ok=True)
        pack = Pack(Path("policies"), CHECKOUT / "policies" / "config" / f"{self.name}.json")
        quiet = ("--non-interactive", "--color", "never", "--suppress-outputs")
        common = ("--stack", self.name, *quiet, *pack.options, "--event-log", str(events))
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["pulumi", command, *options, *common],
                cwd=CHECKOUT,
                # The variable enables --event-log, a hidden flag of the CLI.
                env={**os.environ, **self.environment, "PULUMI_DEBUG_COMMANDS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        return Operation(command, process, log, EventFollower(events))


@dataclass(frozen=True)
class Operation:
    """A running preview or update."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path
    follower: "EventFollower"

    def finish(self, report: Report) -> dict[str, int]:
        """Wait until the operation finishes, and return the number of resources per type of change.

        Raises:
            DevclusterError: If the command fails or the policy pack rejects the plan.
        """
        try:
            while self.process.poll() is None:
                self.follower.follow(report)
                _pause(self.process)
        except BaseException:
            self.end()
            raise
        self.follower.follow(report)
        if self.process.returncode != 0:
            raise DevclusterError(_error_text(self.command, self.log.read_text(), self.log))
        return self.follower.changes

    def deletes_new_objects(self) -> bool:
        """Return whether the update ends by deleting objects that it should keep.

        `Change.is_deleted_last` describes the cause.
        """
        plan = events.plan(events.read(self.follower.path))
        return any(change.is_deleted_last for change in changes(plan.steps))

    def end(self) -> None:
        """Terminate the command. Pulumi finishes the current step, so the state is consistent."""
        self.process.terminate()
        self.process.wait()


def _pause(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.3)
    except subprocess.TimeoutExpired:
        return


def _error_text(command: str, text: str, log: Path) -> str:
    """Return the errors in Pulumi's output, without the resource tree above them."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(("Diagnostics:", "Policies:"))]
    excerpt = "\n".join(lines[min(starts) :] if starts else lines[-30:])
    return f"`pulumi {command}` failed; see the log at {log}\n{excerpt}"


class EventFollower:
    """Reader of the event log that the engine writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self.changes: dict[str, int] = {}
        self._done = 0

    def follow(self, report: Report) -> None:
        """Read new events and report the current resource."""
        if not self.path.exists():
            return
        # Read as bytes, because an incomplete line may end in the middle of a character.
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                self._offset = file.tell()
                self._process(json.loads(line), report)

    def _process(self, event: dict[str, Any], report: Report) -> None:
        if summary := event.get("summaryEvent"):
            self.changes = dict(summary["resourceChanges"] or {})
        elif resource := event.get("resourcePreEvent"):
            metadata = resource["metadata"]
            if metadata["op"] not in UNCHANGED:
                self._done += 1
                report(f"{self._done}: {metadata['op']} {metadata['urn'].rsplit('::', 1)[-1]}")


def describe(changes: Mapping[str, int]) -> str:
    """Return text such as `12 created, 1 updated`, or `unchanged`."""
    participles = {
        "create": "created",
        "update": "updated",
        "delete": "deleted",
        "replace": "replaced",
    }
    counts = [
        f"{n} {participles.get(op, op)}" for op, n in changes.items() if op not in UNCHANGED and n
    ]
    return ", ".join(counts) or "unchanged"


def describe_plan(changes: Mapping[str, int]) -> str:
    """Return text such as `12 to create, 1 to update`, or `unchanged`."""
    counts = [f"{n} to {op}" for op, n in changes.items() if op not in UNCHANGED and n]
    return ", ".join(counts) or "unchanged"


def is_unchanged(changes: Mapping[str, int]) -> bool:
    """Return whether an update would change nothing."""
    return not any(n for op, n in changes.items() if op not in UNCHANGED)


_SELECTOR_SUFFIXES = {"creating": "", "updating": ",status=pending-upgrade"}
"""Maps the type of a pending operation to a suffix of the label selector.

With an empty suffix, the Secrets of all revisions are deleted.
"""


@dataclass(frozen=True)
class Release:
    """A Helm release whose installation or upgrade was interrupted."""

    namespace: str
    selector: str
    """Label selector of the Secrets to delete."""


def recover(stack: Stack, pending: Sequence[dict[str, Any]], kubectl: Sequence[str]) -> None:
    """Clear the pending operations of an interrupted update, which would block the next update.

    The next update uses server-side apply, so it adopts the Kubernetes objects that the interrupted
    update created. It cannot adopt a Helm release: Helm refuses to install or upgrade a release
    while another operation on this release is pending. This function therefore deletes the Secrets
    in which Helm stores the pending revision or, if the first installation was interrupted, all
    revisions. The objects that Helm already installed have annotations with the release's name, so
    the next installation adopts them.

    Raises:
        DevclusterError: If a Pulumi command fails.
        CalledProcessError: If a kubectl command fails.
    """
    for release in interrupted_releases(pending):
        selection = ["-n", release.namespace, f"--selector={release.selector}"]
        subprocess.run([*kubectl, "delete", "secret", *selection], check=True, capture_output=True)
    stack.clear_pending_creates()


def interrupted_releases(pending: Sequence[dict[str, Any]]) -> Iterator[Release]:
    """Yield the explicitly named Helm releases whose creation or update is pending."""
    for operation in pending:
        resource = operation["resource"]
        inputs = resource.get("inputs", {})
        name = inputs.get("name")
        if operation["type"] in _SELECTOR_SUFFIXES and resource["type"] == RELEASE and name:
            selector = f"owner=helm,name={name}{_SELECTOR_SUFFIXES[operation['type']]}"
            yield Release(inputs.get("namespace", "default"), selector)
