"""Training runs as the cluster shows them: state, progress and result, for every job kind."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from devcluster.errors import DevclusterError
from infra.step_names import job_prefix
from kube.names import RUN_LABEL, TASK_LABEL

POLL_SECONDS = 1.0
# An API server that is being restarted does not answer for a while.
SILENCE_SECONDS = 60.0
SUCCEEDED = frozenset({"Completed", "Complete", "Succeeded"})
ENDED = SUCCEEDED | {"Failed", "Aborted", "Terminated"}
_VOLCANO_JOB = "jobs.batch.volcano.sh"
_JOB_FLOW = "jobflows.flow.volcano.sh"
_RESOURCES = {
    "indexed": "jobs.batch",
    "pytorch": "pytorchjobs.kubeflow.org",
    "trainjob": "trainjobs.trainer.kubeflow.org",
}


@dataclass(frozen=True)
class Run:
    """One training run, as the stack's output `runs` names it."""

    key: str
    name: str
    kind: str
    namespace: str
    queue: str
    nodes: int
    gpus_per_node: int

    @classmethod
    def of(cls, key: str, output: dict[str, Any]) -> "Run":
        """Reads one entry of the output."""
        return cls(
            key,
            output["name"],
            output["kind"],
            output["namespace"],
            output["queue"],
            output["nodes"],
            output["gpusPerNode"],
        )


class Epoch(BaseModel):
    """What the training program prints after an epoch."""

    event: Literal["epoch"]
    epoch: int
    epochs: int
    loss: float


class Finished(BaseModel):
    """The last line of the training program."""

    event: Literal["finished"]
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How far a run is. `event` is the last JSON line that its program printed.

    The program may be one of the user's own, whose lines have other fields.
    """

    phase: str
    event: dict[str, Any]
    reason: str = ""

    def __str__(self) -> str:
        with contextlib.suppress(ValidationError):
            told = Epoch.model_validate(self.event)
            return f"{self.phase}, epoch {told.epoch} of {told.epochs}, loss {told.loss:.4f}"
        return self.phase + (f": {self.reason}" if self.reason else "")

    @property
    def result(self) -> str:
        """What a finished run has achieved; empty where its program does not say."""
        try:
            done = Finished.model_validate(self.event)
        except ValidationError:
            return ""
        return f"accuracy {done.accuracy:.2%} in {done.seconds:.1f} s"


class Runs:
    """Asks about runs through kubectl, on whatever cluster it is pointed at."""

    def __init__(self, kubectl: Sequence[str]) -> None:
        self._kubectl = list(kubectl)

    def progress(self, run: Run) -> Progress:
        """The run's state now; phase `Gone` where its job does not exist (any more).

        Raises DevclusterError where the cluster does not answer.
        """
        job = self._get(run.namespace, _resource(run), run.name)
        if job is None and _resource(run) == _VOLCANO_JOB:
            job = self._flow(run)
        if job is None:
            return Progress("Gone", {})
        pods = self._pods(run)
        phase = _phase(run, job, pods)
        # Of a run that goes on, what a pod left that is no more is old news.
        event = (self._last_line(run, _running(pods)) if phase == "Running" else {}) or _result(
            pods
        )
        if not event and phase in SUCCEEDED:
            # The program ran in a pod that is gone, and the launcher has passed on what it printed.
            event = self._last_line(run, pods)
        reason = self._why_pending(run) if phase in ("Pending", "Inqueue") else ""
        return Progress(phase, event, reason)

    def wait(self, run: Run, report: Callable[[str], None]) -> Progress:
        """Waits for the run's end. DevclusterError when it fails, with its last lines."""
        heard = time.monotonic()
        while True:
            try:
                now = self.progress(run)
            except DevclusterError as error:
                if time.monotonic() - heard > SILENCE_SECONDS:
                    raise
                report(str(error))
                time.sleep(POLL_SECONDS)
                continue
            heard = time.monotonic()
            report(str(now))
            if now.phase in ENDED:
                break
            if now.phase == "Gone":
                raise DevclusterError(f"the run {run.name} is not in {run.namespace} any more")
            time.sleep(POLL_SECONDS)
        if now.phase not in SUCCEEDED:
            raise DevclusterError(f"the run {run.name} ended as {now.phase}:\n{self._tail(run)}")
        return now

    def wait_bound(self, run: Run, report: Callable[[str], None], timeout: float = 120.0) -> int:
        """Waits until every pod of the gang has a node; returns the number of pods."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pods = self._pods(run)
            bound = [pod for pod in pods if pod["spec"].get("nodeName") and not _is_step(pod)]
            report(f"{len(bound)} of {run.nodes} pods have a node")
            if len(bound) >= run.nodes:
                return len(bound)
            time.sleep(POLL_SECONDS)
        why = self._why_pending(run)
        raise DevclusterError(f"the gang {run.name} got no nodes in {timeout:.0f} s: {why}")

    def _flow(self, run: Run) -> dict[str, Any] | None:
        """The JobFlow that a run with steps is, on a cluster that knows of them."""
        what = ("get", _JOB_FLOW, run.name, "-n", run.namespace, "--output=json")
        found = self._ask(*what, "--ignore-not-found")
        return dict(json.loads(found)) if found else None

    def _pods(self, run: Run) -> list[dict[str, Any]]:
        found = self._get(run.namespace, "pods", "--selector", f"{RUN_LABEL}={run.name}")
        return list((found or {}).get("items", []))

    def _last_line(self, run: Run, pods: list[dict[str, Any]]) -> dict[str, Any]:
        text = self._ask("logs", "--tail=3", "-n", run.namespace, _first_pod(pods)) or ""
        for line in reversed(text.splitlines()):
            if (event := _event(line)) is not None:
                return event
        return {}

    def _tail(self, run: Run) -> str:
        pods = self._pods(run)
        texts = [
            self._ask("logs", "--tail=15", "-n", run.namespace, pod["metadata"]["name"]) or ""
            for pod in pods
        ]
        return "\n".join(text.strip() for text in texts if text.strip())

    def _why_pending(self, run: Run) -> str:
        # An Indexed Job may run on a cluster that does not know of pod groups.
        what = ("podgroups.scheduling.volcano.sh", "-n", run.namespace, "--output=json")
        groups = json.loads(self._ask("get", *what) or "{}")
        for group in groups.get("items", []):
            owners = group["metadata"].get("ownerReferences", [])
            # Of kinds that are not Volcano's own it is nobody's, and has the run's name itself.
            names = {group["metadata"].get("name"), *(owner["name"] for owner in owners)}
            if run.name in names or any(
                str(name).startswith(job_prefix(run.name)) for name in names
            ):
                for condition in reversed(group.get("status", {}).get("conditions", [])):
                    if condition.get("status") == "True" and condition.get("message"):
                        return str(condition["message"])
        return ""

    def _get(self, namespace: str, *what: str) -> dict[str, Any] | None:
        done = self._run("get", *what, "-n", namespace, "--output=json", "--ignore-not-found")
        if done.returncode != 0:
            raise DevclusterError(f"the cluster does not answer: {done.stderr.strip()}")
        return dict(json.loads(done.stdout)) if done.stdout else None

    def _ask(self, *arguments: str) -> str | None:
        done = self._run(*arguments)
        return done.stdout if done.returncode == 0 else None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._kubectl, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )


def _phase(run: Run, job: dict[str, Any], pods: list[dict[str, Any]]) -> str:
    status = job.get("status", {})
    if job.get("kind") == "JobFlow":
        return _flow_phase(status, pods)
    if _resource(run) == _VOLCANO_JOB:
        return str(status.get("state", {}).get("phase", "Pending"))
    for condition in status.get("conditions", []):
        if condition["type"] in ENDED and condition["status"] == "True":
            return str(condition["type"])
    return "Running" if len(_running(pods)) == run.nodes else "Pending"


def _flow_phase(status: dict[str, Any], pods: list[dict[str, Any]]) -> str:
    if status.get("state", {}).get("phase") == "Succeed":
        return "Completed"
    # Volcano calls a JobFlow running whose step has failed, after which nothing begins.
    phases = [str(step.get("state", "")) for step in status.get("jobStatusList", [])]
    failed = [phase for phase in phases if phase in ENDED - SUCCEEDED]
    return failed[0] if failed else "Running" if _running(pods) else "Pending"


def _is_step(pod: dict[str, Any]) -> bool:
    """Whether it is the pod of a step, which is none of the gang."""
    return bool(pod["metadata"].get("labels", {}).get(TASK_LABEL) == "step")


def _resource(run: Run) -> str:
    return _RESOURCES.get(run.kind, _VOLCANO_JOB)


def _running(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def _first_pod(pods: list[dict[str, Any]]) -> str:
    # Volcano's first task is `master` or `launcher`, which sort before `worker`; the pods of the
    # other kinds sort by their index.
    return min((str(pod["metadata"]["name"]) for pod in pods), default="")


def _result(pods: list[dict[str, Any]]) -> dict[str, Any]:
    """The `finished` object that the program left as its termination message, else an `error`."""
    found: dict[str, Any] = {}
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            ended = status.get("state", {}).get("terminated", {})
            if (event := _event(ended.get("message", ""))) is not None:
                if event["event"] == "finished":
                    return event
                found = event
    return found


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
