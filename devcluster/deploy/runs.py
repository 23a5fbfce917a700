"""Functions that wait until a stack's runs are scheduled or finished."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from devcluster import DevclusterError
from gitops import prices
from gitops.errors import GitopsError
from gitops.runs.progress import Progress, failure_text
from gitops.runs.snapshot import Cluster, Object, Snapshot, is_scheduled, key, owner
from gitops.runs.status import RunStatus, read_runs, run_pods
from gitops.runs.waiting import repair_command
from gpu_platform.runs.cluster import Member
from gpu_platform.runs.sweeps import rejection, sweep_lines
from kube.kinds import kinds_that_support
from kube.kinds.record import State
from kube.names import TASK_LABEL

POLL_SECONDS = 1.0
OUTAGE_SECONDS = 60.0
"""Time (s) for which the API server may be unavailable, for example while it restarts."""
REPAIR_DELAY_SECONDS = 10.0
"""Time (s) after which a repair command is run, if the gang still needs it."""
Result = TypeVar("Result")
_LAST_LINES: Final = 15
_INACTIVE_PHASES: Final = {"paused", "succeeded", "failed"}
"""Phases in which a trial holds no GPUs."""


@dataclass(frozen=True)
class Run:
    """One training run in the stack's `runs` output."""

    key: str
    name: str
    kind: str
    namespace: str
    queue: str
    nodes: int
    gpus_per_node: int

    @classmethod
    def of(cls, key: str, output: dict[str, Any]) -> "Run":
        """Return the run that an entry of the output describes."""
        return cls(
            key,
            output["name"],
            output["kind"],
            output["namespace"],
            output["queue"],
            output["nodes"],
            output["gpusPerNode"],
        )


class _Repair:
    """Repair commands for a run that Volcano has stopped processing (see `repair_command`)."""

    def __init__(self, kubectl: Sequence[str], run: Run) -> None:
        self._kubectl, self._run = kubectl, run
        self._since: dict[tuple[str, ...], float] = {}

    def run_if_due(self, snapshot: Snapshot) -> None:
        """Run each command that has been needed for at least `REPAIR_DELAY_SECONDS`."""
        now = time.monotonic()
        name = (self._run.namespace, self._run.name)
        groups = [
            group
            for group in snapshot.all("PodGroup")
            if (group["metadata"]["namespace"], owner(group)) == name
        ]
        commands = {tuple(repair_command(snapshot, group)) for group in groups} - {()}
        self._since = {each: self._since.get(each, now) for each in commands}
        for command, since in list(self._since.items()):
            if now - since >= REPAIR_DELAY_SECONDS:
                subprocess.run([*self._kubectl, *command], check=False, capture_output=True)
                del self._since[command]


def wait(kubectl: Sequence[str], run: Run, report: Callable[[str], None]) -> RunStatus:
    """Wait until a run has succeeded or, if it is a notebook, until it is running or suspended.

    Raises:
        DevclusterError: If the run fails or is removed, or if it is suspended and not a notebook.
        GitopsError: If the cluster is unavailable for a minute.
    """
    cluster = Cluster(kubectl)
    repairs = _Repair(kubectl, run)

    def read() -> tuple[Snapshot, RunStatus | None]:
        snapshot = cluster.snapshot()
        repairs.run_if_due(snapshot)
        return snapshot, _status(cluster, snapshot, run)

    while True:
        started = time.monotonic()
        snapshot, status = _retry(read, report)
        if status is None:
            raise DevclusterError(f"run {run.name} no longer exists in {run.namespace}")
        report(describe(status))
        match status.state:
            case State.SUCCEEDED:
                return status
            case State.RUNNING | State.SUSPENDED if run.kind in kinds_that_support("notebook"):
                return status
            case State.FAILED:
                lines = [*status.reasons, *_last_lines(cluster, snapshot, run)]
                if command := status.failure_log_command:
                    lines.append(f"to print log lines and events of its failures: {command}")
                raise DevclusterError("\n".join([f"run {run.name} has failed:", *lines]))
            case State.SUSPENDED:
                resume = "; ".join(status.reasons)
                raise DevclusterError(f"run {run.name} is suspended: {resume}")
        _pause(started)


def wait_scheduled(
    kubectl: Sequence[str], run: Run, report: Callable[[str], None], timeout: float = 120.0
) -> int:
    """Wait until every pod of a run's gang is scheduled, and return the number of pods.

    If the run has succeeded, its pods may have been deleted; their number is still returned.

    Raises:
        DevclusterError: If a pod is not scheduled within `timeout` seconds.
        GitopsError: If the cluster is unavailable for a minute.
    """
    cluster = Cluster(kubectl)
    repairs = _Repair(kubectl, run)
    deadline = time.monotonic() + timeout
    while (started := time.monotonic()) < deadline:
        snapshot = _retry(cluster.snapshot, report)
        repairs.run_if_due(snapshot)
        pods = _pods(snapshot, run)
        scheduled = [pod for pod in pods if is_scheduled(pod) and not _is_step(pod)]
        report(f"{len(scheduled)} of {run.nodes} pods are scheduled")
        if len(scheduled) >= run.nodes:
            return len(scheduled)
        status = _status(cluster, snapshot, run)
        if status is not None and status.state is State.SUCCEEDED:
            return run.nodes
        _pause(started)
    status = _status(cluster, cluster.snapshot(), run)
    reasons = "; ".join(status.reasons) if status else "its job does not exist"
    raise DevclusterError(f"gang {run.name} was not scheduled within {timeout:.0f} s: {reasons}")


def wait_for_sweep(
    kubectl: Sequence[str], namespace: str, key: str, report: Callable[[str], None]
) -> str:
    """Wait until a sweep has finished, and return the name of the winning trial's run.

    Raises:
        DevclusterError: If the sweep ends, but none of its trials has finished.
        GitopsError: If the cluster is unavailable for a minute.
    """
    member = Member(kubectl, namespace)
    while True:
        started = time.monotonic()
        summary = _retry(member.sweeps, report).get(key, {})
        line = next(sweep_lines({key: summary}))
        report("; ".join(filter(None, (line, rejection(summary)))))
        if summary.get("winner") is not None:
            return str(summary["winner"])
        phases = {trial["phase"] for trial in summary.get("trials", ())}
        if summary and summary["state"] != "running" and phases <= _INACTIVE_PHASES:
            raise DevclusterError(f"sweep {key} has ended, but none of its trials finished")
        _pause(started)


def _retry(read: Callable[[], Result], report: Callable[[str], None]) -> Result:
    """Call `read` until it succeeds. Raise its last error if it fails for `OUTAGE_SECONDS`."""
    began = time.monotonic()
    while True:
        started = time.monotonic()
        try:
            return read()
        except GitopsError as error:
            if time.monotonic() - began > OUTAGE_SECONDS:
                raise
            report(str(error))
            _pause(started)


def _pause(started: float) -> None:
    """Sleep until the next poll is due; the last poll began at `started`.

    Polls take at most a third of the time, so that they do not slow down other work on a busy host.
    """
    time.sleep(max(POLL_SECONDS, 2 * (time.monotonic() - started)))


def describe(status: RunStatus) -> str:
    """Return the state of a run on one line."""
    text = f"{status.state}, {status.stage}" if status.stage else str(status.state)
    progress = status.progress
    if progress is not None and progress.epochs is not None:
        text += f", epoch {progress.epoch:g} of {progress.epochs:g}"
        if progress.loss is not None:
            text += f", loss {progress.loss:.4f}"
    return f"{text}: {'; '.join(status.reasons)}" if status.reasons else text


def describe_result(progress: Progress | None) -> str:
    """Return a finished run's accuracy and duration, or an empty string if they are unknown."""
    if progress is None or progress.accuracy is None or progress.seconds is None:
        return ""
    return f"accuracy {progress.accuracy:.2%} in {progress.seconds:.1f} s"


def _status(cluster: Cluster, snapshot: Snapshot, run: Run) -> RunStatus | None:
    name = (run.namespace, run.name)
    statuses = read_runs(cluster, prices.load(), datetime.now(UTC), snapshot=snapshot, name=name)
    return next(iter(statuses), None)


def _pods(snapshot: Snapshot, run: Run) -> list[Object]:
    return run_pods(snapshot).get((run.namespace, run.name), [])


def _last_lines(cluster: Cluster, snapshot: Snapshot, run: Run) -> list[str]:
    logs = (cluster.logs(*key(pod), _LAST_LINES) for pod in _pods(snapshot, run))
    texts = ("\n".join(failure_text("", lines, _LAST_LINES)).strip() for lines in logs)
    return [text for text in texts if text]


def _is_step(pod: Object) -> bool:
    """Return whether a pod belongs to a step before or after training."""
    return bool(pod["metadata"].get("labels", {}).get(TASK_LABEL) == "step")
