"""Cluster under load: a served model with clients, and gangs into which faults are injected."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.cluster.load import Load, Seen
from tests.cluster.platform import Platform, await_
from tests.faults.gangs import Change, Gang, resolve_rank_0
from tests.faults.losses import Losses, no_losses, repeated, standstill
from tests.faults.table import Row, Table
from tests.faults.timeline import Timeline
from tests.faults.units import Units

NAMESPACE: Final = "ml-dev"
NODES: Final = ("gpu-node-0", "gpu-node-1")
JOBS: Final = "jobs.batch.volcano.sh"
WRITING: Final = 10
"""Maximum number of steps while a checkpoint is written. It is usable only when complete."""


@dataclass
class Trial:
    """Observations of a fault; `began` and `since` are seconds of time.time()."""

    fault: str
    load: Load
    before: Seen
    began: float = field(default_factory=time.time)
    since: float = field(default_factory=time.time)
    gang: Gang | None = None
    new_gang: float | None = None

    @property
    def slug(self) -> str:
        """Part of the names of Kubernetes objects."""
        return re.sub(r"[^a-z0-9]+", "-", self.fault.lower())[:24].strip("-")

    def begin(self, gang: Gang) -> None:
        """Start the fault and observe this gang."""
        self.gang, self.before, self.since = gang, self.load.seen(), time.time()

    def check_requests(self, lost: Callable[[dict[str, int]], bool]) -> None:
        """Assert that `lost` permits the number and kinds of failed requests."""
        failed = self.load.since(self.before).failed
        assert lost(failed), failed

    def row(self, verdict: str) -> Row:
        """Return the current row."""
        events = self.gang.timeline.events() if self.gang else []
        seen = self.load.since(self.before)
        return Row(
            self.fault,
            repeated(events, self.since),
            standstill(events, self.since),
            seen.failed,
            seen.answered,
            self.new_gang,
            verdict,
            time.time() - self.began,
        )


@contextlib.contextmanager
def recorded(fault: str, load: Load, table: Table) -> Iterator[Trial]:
    """Add the fault's row at the end; the fault passes if nothing was raised."""
    trial, verdict = Trial(fault, load, load.seen()), "yes"
    try:
        yield trial
    except KeyboardInterrupt:
        verdict = ""
        raise
    except BaseException as error:
        verdict = f"no: {error or type(error).__name__}"
        raise
    finally:
        table.add(trial.row(verdict))


@dataclass
class Arena:
    """Platform and fixtures shared by all faults."""

    platform: Platform
    environment: dict[str, str]
    units: Units
    job: dict[str, Any]
    """Job of the stack, whose manifest is the template of every gang."""
    losses: Losses
    load: Load
    table: Table

    def kubectl(self, *arguments: str, text: str = "", check: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", "--request-timeout=20s", *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
        )
        assert not check or done.returncode == 0, f"kubectl {arguments}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return kubectl's output as JSON, empty if there is none."""
        output = self.kubectl("get", *arguments, "--output=json", check=False)
        return dict(json.loads(output or "{}"))

    def submit(self, name: str, change: Change | None = None) -> None:
        """Create a copy of the stack's job, retrying until the API server accepts it."""
        original = self.job["metadata"]["name"]
        job = json.loads(json.dumps(self.job).replace(original, name))
        if change is not None:
            for task in job["spec"]["tasks"]:
                change(task["template"]["spec"])
        text = json.dumps(job)

        def accepted() -> bool:
            self.kubectl("create", "--filename=-", text=text, check=False)
            return bool(self.get(JOBS, name, "-n", NAMESPACE))

        await_(accepted, f"the API server has {name}")

    @contextlib.contextmanager
    def gang(self, slug: str, change: Change | None = None, epochs: float = 3.5) -> Iterator[Gang]:
        """Yield a gang that has trained for `epochs`, and delete it at the end."""
        name = f"fault-{slug}-{int(time.time()) % 100_000}"
        pods = (f"{name}-master-0", f"{name}-worker-0")
        with Timeline(self.units.state, pods[0]) as timeline:
            self.submit(name, change)
            made = Gang(name, timeline, pods)
            try:
                made.await_step(round(epochs * self.losses.interval))
                yield made
            finally:
                self.kubectl("delete", JOBS, name, "-n", NAMESPACE, check=False)
                # A kubelet still unmounting the volumes would also unmount later mounts there.
                await_(lambda: not self.pods_of(name), f"the pods of {name} are gone")

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        """Return the pods of a job, including terminating ones."""
        selector = f"volcano.sh/job-name={job}"
        return list(self.get("pods", "-n", NAMESPACE, "-l", selector)["items"])

    def container(self, pod: str) -> str:
        """Return the ID of a pod's only container."""
        (status,) = self.get("pod", pod, "-n", NAMESPACE)["status"]["containerStatuses"]
        return str(status["containerID"]).rpartition("/")[2]

    def servers(self) -> list[dict[str, Any]]:
        """Return the pods of the inference service that have not ended and are not terminating."""
        selector = "gpu-platform.dev/service=digits"
        found = self.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        return [
            pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") != "Failed"
        ]

    def new_gang(self, slug: str, since: float) -> float:
        """Submit a gang and return the seconds from `since` until it has completed."""
        name = f"new-{slug}-{int(time.time()) % 100_000}"
        self.submit(name, resolve_rank_0)
        ended = {"Completed", "Failed", "Terminated", "Aborted"}
        try:
            await_(lambda: self.phase(name) in ended, f"{name} has run")
            assert self.phase(name) == "Completed"
            return time.time() - since
        finally:
            self.kubectl("delete", JOBS, name, "-n", NAMESPACE, check=False)

    def phase(self, job: str) -> str:
        return str(
            self.get(JOBS, job, "-n", NAMESPACE).get("status", {}).get("state", {}).get("phase")
        )

    def survive(
        self,
        fault: str,
        inject: Callable[[Gang], object],
        *,
        intervals: int = 0,
        lost: Callable[[dict[str, int]], bool] = no_losses,
        new_gang: bool = False,
        change: Change | None = None,
    ) -> None:
        """Inject a fault into a run and the service, and record the recovery.

        The run may repeat the steps of `intervals` checkpoint intervals and of one write; 0 means
        that it must not restart. `lost` returns whether the failed requests are acceptable. With
        `new_gang`, another gang is submitted during the fault.
        """
        with recorded(fault, self.load, self.table) as trial, self.gang(trial.slug, change) as gang:
            trial.begin(gang)
            inject(gang)
            if new_gang:
                trial.new_gang = self.new_gang(trial.slug, trial.since)
            gang.await_end()
            events = gang.timeline.events()
            self.losses.check(events)
            assert repeated(events) <= (intervals and intervals * self.losses.interval + WRITING)
            assert bool(intervals) == bool(gang.timeline.events("resume"))
            await_(lambda: self.phase(gang.name) == "Completed", "the job is Completed")
            self.settle()
            trial.check_requests(lost)

    def unaffected(
        self,
        fault: str,
        gang: Gang,
        inject: Callable[[], object],
        lost: Callable[[dict[str, int]], bool] = no_losses,
    ) -> None:
        """Inject a fault that must not disturb training, submit a gang and record the duration."""
        with recorded(fault, self.load, self.table) as trial:
            trial.begin(gang)
            inject()
            trial.new_gang = self.new_gang(trial.slug, trial.since)
            self.settle()
            trial.check_requests(lost)
            events = gang.timeline.events
            assert events("finished") or any(event.at > trial.since for event in events("step"))

    def settle(self) -> None:
        """Wait until nodes, GPUs, system pods and the service are ready."""
        not_ready: list[str] = []

        def settled() -> bool:
            not_ready[:] = self.parts_not_ready()
            return not not_ready

        try:
            await_(settled, "the cluster has recovered")
        except AssertionError as error:
            raise AssertionError(f"{error}: {not_ready}") from None

    def parts_not_ready(self) -> list[str]:
        """Return the names of the parts that are not ready."""
        found = []
        nodes = self.get("nodes").get("items", [])
        for node in nodes:
            ready = {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"]
            gpus = node["status"]["allocatable"].get("nvidia.com/gpu")
            if (ready, gpus) != ("True", "4") or node["spec"].get("unschedulable"):
                found.append(node["metadata"]["name"])
        pods = self.get("pods", "--all-namespaces").get("items", [])
        for pod in pods:
            # A restarted kubelet rejects pods before the device plugin is registered. Kubernetes
            # keeps these failed pods, and creates others.
            done = pod["status"].get("phase") in ("Succeeded", "Failed")
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
            leaving = "deletionTimestamp" in pod["metadata"]
            if leaving or not (done or conditions.get("Ready") == "True"):
                found.append(pod["metadata"]["name"])
        if len(self.servers() if pods else []) != 2 or len(nodes) != len(NODES):
            found.append("the service or a node")
        return found
