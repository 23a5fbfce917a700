"""Access to the runs in a cluster through kubectl, with the permissions of a team member."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, TypeVar

from gitops.errors import GitopsError
from gitops.runs.snapshot import PERMISSION_REMEDY, error_of, is_scheduled
from gitops.runs.states import is_controlled, state_of
from infra.manifests import DESCRIPTION, DESCRIPTION_KEY, Manifest
from kube.kinds import RESOURCES, TRAINING_RUNTIME
from kube.kinds.record import Resource, State
from kube.kinds.volcano import FLOW, JOB, TEMPLATE, command
from kube.names import (
    RUN_LABEL,
    SCHEDULING_GROUP,
    SWEEP_PARALLEL_ANNOTATION,
    SWEEP_SUMMARY_ANNOTATION,
    WORKLOAD_LABEL,
)
from kube.workloads import WORKLOAD_KINDS, find

_Content = TypeVar("_Content")
_POLL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 900.0
"""Time (s) for which `follow` retries requests, for example while the control plane is upgraded."""
_EXISTS: Final = "AlreadyExists"
_NO_OPERATOR: Final = "the server doesn't have a resource type"
_NO_PERMISSION: Final = re.compile(r" cannot \w+ resource ")
"""Part of the API server's error if RBAC denies a request. The `Forbidden` reason alone could also
mean that an admission policy denied the request."""
SUPPLEMENTS: Final = (
    f"podgroups.{SCHEDULING_GROUP}",
    TRAINING_RUNTIME.name,
    "services",
    "networkpolicies.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
)
"""API resources of objects that are created under the name of a run in addition to its job. The job
does not own these objects."""


class RequestError(GitopsError):
    """Error for a list that the API server did not return. The objects may exist."""


@dataclass(frozen=True)
class Member:
    """A team member's access to a namespace. `kubectl` is the command with its options."""

    kubectl: Sequence[str]
    namespace: str

    def description(self) -> str:
        """Return the stack's description of the platform.

        Raises:
            GitopsError: If the description cannot be read or does not exist.
        """
        done = self._run("get", "configmap", DESCRIPTION, "--output=json", "--ignore-not-found")
        if done.returncode != 0:
            raise GitopsError(
                f"the platform description in namespace {self.namespace} cannot be read: "
                f"{_error(done)}"
            )
        if not done.stdout:
            raise GitopsError(
                f"namespace {self.namespace} has no ConfigMap {DESCRIPTION}: use the namespace of "
                "a stack that sets tenancy.groups.members, or pass --platform FILE"
            )
        return str(_parsed(done.stdout, lambda configmap: configmap["data"][DESCRIPTION_KEY]))

    def create(self, manifests: Sequence[Manifest]) -> bool:
        """Create the objects of a run, and return False if all of them already exist.

        Existing objects are kept, so a second call completes an interrupted creation.

        Raises:
            GitopsError: If the API server rejects an object; the message states its reason.
        """
        created = False
        for manifest in manifests:
            done = self._run("create", "--filename=-", stdin=json.dumps(manifest))
            if done.returncode == 0:
                created = True
            elif _EXISTS not in done.stderr:
                title = f"{manifest['kind']} {manifest['metadata']['name']}"
                raise GitopsError(f"{title} was not created: {_error(done)}")
            elif manifest["kind"] == TEMPLATE.kind:
                self._check_owner(manifest)
        return created

    def _check_owner(self, template: Manifest) -> None:
        """Raise GitopsError if an existing template belongs to another run.

        Runs of jobs with different keys and the same settings have templates with the same names.
        """
        name, run = template["metadata"]["name"], template["metadata"]["labels"][RUN_LABEL]
        for item in self._list(TEMPLATE.name, f"--field-selector=metadata.name={name}"):
            owner = item["metadata"].get("labels", {}).get(RUN_LABEL)
            if owner != run:
                raise GitopsError(
                    f"{run} was not created: {TEMPLATE.kind} {name} belongs to run {owner}, which "
                    "has the same settings; set a different `attempt`"
                )

    def find(self, run: str) -> list[tuple[Resource, dict[str, Any]]]:
        """Return the objects of a run. Raise GitopsError if there are none.

        Jobs that other programs created have no run label and are found by name.
        """
        selector = f"--selector={RUN_LABEL}={run}"
        objects = [
            (resource, item)
            for resource in (*RESOURCES, TEMPLATE)
            for item in self._list(resource.name, selector)
        ] or [
            (resource, item)
            for resource in RESOURCES
            for item in self._list(resource.name, f"--field-selector=metadata.name={run}")
        ]
        # Jobs that a JobFlow created are deleted with the JobFlow. The objects of a scheduled run
        # have an owner, the CronJob's Job, but no controller.
        uncontrolled = [(resource, item) for resource, item in objects if not is_controlled(item)]
        if not uncontrolled:
            raise GitopsError(
                f"namespace {self.namespace} has no run {run!r}: `python -m gpu_platform list` "
                "prints the names"
            )
        return uncontrolled

    def suspend(self, run: str, suspended: bool) -> None:
        """Suspend or resume a run. Raise GitopsError if it has finished or cannot be suspended.

        When a notebook is suspended, its server exits, and Volcano keeps the terminated pod. If the
        Job were resumed, this pod would still count, and the Job would end immediately. A notebook
        is therefore resumed by re-creating its Job.
        """
        for resource, item in self.find(run):
            if resource in (FLOW, TEMPLATE):
                raise GitopsError(
                    f"{run} cannot be suspended: it has steps, so it is a {FLOW.title}, which "
                    "Volcano cannot suspend"
                )
            if resource is JOB and not suspended and _is_notebook(item):
                self._recreate(item)
                continue
            state = state_of(resource, item, running=0)
            if state.finished and not _is_notebook(item):
                action = "suspended" if suspended else "resumed"
                raise GitopsError(
                    f"{run} cannot be {action}: it has {state}. To start a new run of its job, "
                    "increase `attempt`"
                )
            if resource is JOB:
                self._run_or_raise(
                    "create", "--filename=-", stdin=json.dumps(command(item, suspended=suspended))
                )
                continue
            record = find(WORKLOAD_KINDS, resource.group, resource.kind)
            for path in record.suspend if record is not None else ():
                patch: Any = suspended
                for key in reversed(path.split(".")):
                    patch = {key: patch}
                name = item["metadata"]["name"]
                change = f"-p={json.dumps(patch)}"
                self._run_or_raise("patch", resource.name, name, "--type=merge", change)

    def _recreate(self, job: Mapping[str, Any]) -> None:
        """Delete a Job and its pods, and re-create the Job. Raise GitopsError if it is active.

        The Job is also written to a file, which remains if the Job is not re-created.
        """
        name, state = job["metadata"]["name"], JOB.state(job.get("status", {}))
        if state is None or not (state.finished or state is State.SUSPENDED):
            raise GitopsError(f"{name} cannot be resumed, because it is not suspended")
        manifest = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {
                key: value
                for key, value in job["metadata"].items()
                if key in ("name", "namespace", "labels", "annotations")
            },
            "spec": job["spec"],
        }
        text = json.dumps(manifest, indent=2)
        with NamedTemporaryFile("w", prefix=f"{name}-", suffix=".json", delete=False) as file:
            file.write(text)
        sys.stderr.write(f"{name}: {file.name} contains the Job until it is re-created\n")
        try:
            self._run_or_raise("delete", JOB.name, name, "--cascade=foreground", "--timeout=120s")
            self._run_or_raise("create", "--filename=-", stdin=text)
        except GitopsError as error:
            raise GitopsError(
                f"{name} was not re-created: {error}. Fix the cause, and then run `kubectl create "
                f"--filename={file.name}`"
            ) from None
        Path(file.name).unlink()

    def stop(self, run: str) -> None:
        """Delete the objects of a run. Its checkpoints and logs remain on the volume."""
        deletion = ("--wait=false", "--ignore-not-found")
        found = self.find(run)
        for resource, item in found:
            self._run_or_raise("delete", resource.name, item["metadata"]["name"], *deletion)
        if not any(item["metadata"].get("labels", {}).get(RUN_LABEL) == run for _, item in found):
            return  # Another program created the job.
        for name in SUPPLEMENTS:
            done = self._run("delete", name, run, *deletion)
            # A user without the permission to delete these objects cannot have created them.
            acceptable = _NO_OPERATOR in done.stderr or _NO_PERMISSION.search(done.stderr)
            if done.returncode != 0 and not acceptable:
                raise GitopsError(error_of(done))

    def logs(self, run: str) -> bool:
        """Print the logs of a run's pods, and return whether kubectl succeeded.

        Raises:
            GitopsError: If the run does not exist.
        """
        self.find(run)
        return subprocess.run(self._logs_command(run, "--tail=-1"), check=False).returncode == 0

    def follow(self, run: str) -> State:
        """Print the logs of a run's pods, including restarted pods, and return the final state.

        Raises:
            GitopsError: If the run does not exist, or is deleted while its logs are followed, or if
                the API server cannot be reached.
        """
        since = ""
        reached, outage = False, math.inf
        printed: dict[str, str] = {}
        announced = False
        while True:
            try:
                final_state = self._final_state(run)
                pods = self._list("pods", f"--selector={RUN_LABEL}={run}")
            except RequestError as error:
                now = time.monotonic()
                if not reached or now - outage > _RETRY_SECONDS:
                    raise
                if outage == math.inf:
                    sys.stderr.write(f"{error}; retrying\n")
                outage = min(outage, now)
                time.sleep(_POLL_SECONDS)
                continue
            reached, outage = True, math.inf
            # Pods of a gang start together, but additional pods of an elastic gang may wait longer.
            scheduled = [pod for pod in pods if is_scheduled(pod)]
            if scheduled and all(map(_has_started, scheduled)):
                since = self._follow_logs(run, since, printed)
                announced = False
            elif not final_state and not announced:
                sys.stderr.write(f"{run} is waiting for its pods; Ctrl-C leaves it in the queue\n")
                announced = True
            if final_state:
                return final_state
            time.sleep(_POLL_SECONDS)

    def _final_state(self, run: str) -> State | None:
        """Return the final state of a run, or None if it has not finished."""
        states = [
            state_of(resource, item, running=0)
            for resource, item in self.find(run)
            if resource is not TEMPLATE
        ]
        return next((state for state in states if state.finished), None)

    def _follow_logs(self, run: str, since: str, printed: dict[str, str]) -> str:
        """Print log lines until all containers terminate, skipping lines printed by earlier calls.

        `printed` maps containers to the timestamps of their last printed lines. The return value is
        `since` for the next call: the timestamp of the first line that this call printed. The clock
        of this host is not used, because lines would be lost if it were ahead of the nodes' clocks.
        """
        before, first = dict(printed), ""
        limit = f"--since-time={since}" if since else "--tail=-1"
        command = self._logs_command(run, limit, "--follow", "--timestamps")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            # Only \n ends a line. kubectl does not repeat the prefix after the \r of a progress
            # bar.
            for raw in process.stdout or ():
                line = raw.decode(errors="replace")
                container, _, rest = line.rstrip("\n").partition(" ")
                timestamp, _, text = rest.partition(" ")
                if not container.startswith("[pod/"):
                    sys.stdout.write(line)  # a message from kubectl
                elif timestamp > before.get(container, ""):
                    printed[container] = timestamp
                    first = min(first or timestamp, timestamp)
                    sys.stdout.write(f"{container} {text}\n")
                sys.stdout.flush()
        return first or since

    def _logs_command(self, run: str, *options: str) -> list[str]:
        selected = ["--selector", f"{RUN_LABEL}={run}", "--all-containers", "--prefix"]
        # Without --ignore-errors, kubectl exits if a container of one of the pods has not started.
        limits = ["--max-log-requests=1024", "--ignore-errors"]
        command = [*self.kubectl, "logs", "--namespace", self.namespace]
        return [*command, *selected, *limits, *options]

    def quota(self, resource: str) -> Iterator[tuple[str, str, str]]:
        """Yield the name, usage and limit of each quota for a resource in the namespace."""
        for item in self._list("resourcequotas"):
            status = item.get("status", {})
            for key in (f"requests.{resource}", f"limits.{resource}"):
                if key in status.get("hard", {}):
                    name = item["metadata"]["name"]
                    yield name, status.get("used", {}).get(key, "0"), status["hard"][key]
                    break

    def queue(self, name: str, resource: str) -> tuple[str, str | None]:
        """Return the number of devices allocated in a queue, and the queue's limit, if any.

        Raises:
            GitopsError: If the queue cannot be read, for example because the member lacks the
                permission, or if Volcano has not set the queue's status yet.
        """
        done = self._run("get", "queues.scheduling.volcano.sh", name, "--output=json")
        if done.returncode != 0:
            denied = _NO_PERMISSION.search(done.stderr)
            remedy = "; an administrator can grant this permission (docs/teams.md)"
            raise GitopsError(f"{error_of(done)}{remedy if denied else ''}")
        content = _parsed(done.stdout, dict)
        allocated = content.get("status", {}).get("allocated")
        if allocated is None:
            raise GitopsError("Volcano has not set the queue's status yet")
        limit = content.get("spec", {}).get("capability", {}).get(resource)
        return str(allocated.get(resource, "0")), None if limit is None else str(limit)

    def sweeps(self) -> dict[str, dict[str, Any]]:
        """Map sweep keys to summaries, which are empty until the controller has started."""
        return {
            item["metadata"]["labels"]["app.kubernetes.io/name"]: _parsed(
                item["metadata"]["annotations"].get(SWEEP_SUMMARY_ANNOTATION, "{}"), dict
            )
            for item in self._list(TEMPLATE.name)
            if SWEEP_PARALLEL_ANNOTATION in item["metadata"].get("annotations", {})
        }

    def _list(self, resource: str, *selector: str) -> list[dict[str, Any]]:
        done = self._run("get", resource, *selector, "--output=json")
        if done.returncode != 0:
            # The operator of this kind is not installed.
            if _NO_OPERATOR in done.stderr:
                return []
            raise RequestError(f"{resource} cannot be listed: {_error(done)}")
        return _parsed(done.stdout, lambda document: list(document["items"]))

    def _run_or_raise(self, *arguments: str, stdin: str | None = None) -> None:
        done = self._run(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise GitopsError(_error(done))

    def _run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.kubectl, "--namespace", self.namespace, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except FileNotFoundError:
            raise GitopsError("kubectl is not on the PATH: install it") from None


def _error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error that kubectl printed, with a remedy if the user lacks a permission."""
    error = error_of(done)
    if not _NO_PERMISSION.search(error):
        return error
    return f"{error}; {PERMISSION_REMEDY}"


def _parsed(text: str, content: Callable[[Any], _Content]) -> _Content:
    """Return the content of kubectl's output. Raise GitopsError if the output is unexpected."""
    try:
        return content(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise GitopsError(f"expected JSON from kubectl, but got {text[:80]!r}") from None


def _is_notebook(job: Mapping[str, Any]) -> bool:
    return bool(job["metadata"].get("labels", {}).get(WORKLOAD_LABEL) == "interactive")


def _has_started(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")
