"""Status of all runs in a cluster: state, progress, cost and reasons for waiting."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from gitops.prices import Prices
from gitops.runs.progress import Progress, failure_text, printable, progress, result
from gitops.runs.snapshot import (
    Cluster,
    Object,
    Snapshot,
    accelerators,
    group_of,
    is_scheduled,
    key,
    owner,
    queue_of,
    request,
)
from gitops.runs.states import causes, is_controlled, stage, state_of, steps
from gitops.runs.waiting import Waiting, missing_queue, positions, rejection, waiting
from infra.api_client import ApiClient
from infra.manifests import RECORDER
from kube.kinds import RESOURCES, volcano
from kube.kinds.record import Resource, State
from kube.names import GPU_PRODUCT_LABEL, QUEUE_ANNOTATION, QUEUE_LABEL, RUN_LABEL

LOG_LINES: Final = 400
"""Number of log lines to read from the end of a log. Most logs are read completely."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Status of a run. Times are in UTC."""

    namespace: str
    name: str
    kind: str
    queue: str
    state: State
    pods: int
    """Number of scheduled pods. Finished pods count only after the run itself has finished."""
    wanted: int
    """Number of pods that the run needs: the larger of the gang's `minMember` and the number of
    existing pods (counted as in `pods`)."""
    gpus: Counter[str]
    """Number of accelerators that the running pods use, by resource name."""
    restarts: int
    created: datetime | None
    stage: str = ""
    """Failed steps of a JobFlow or, if there are none, the unfinished steps."""
    progress: Progress | None = None
    position: int | None = None
    """Position in the queue, starting at 1; None if the run is not waiting."""
    waiting_reason: str = ""
    """One-line summary if the run is suspended or its pods wait; otherwise empty."""
    reasons: tuple[str, ...] = ()
    """Reasons for waiting or for the failure."""
    last_log_lines: tuple[str, ...] = ()
    """Last log lines of a failed pod."""
    failure_log_command: str = ""
    """Command that prints the archived log lines and events of failures, or an empty string."""
    gpu_hours: Decimal | None = Decimal(0)
    """GPU-hours of the existing pods. None if the pods of all attempts have been deleted."""
    cost: Decimal | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain data. Unknown numbers are null."""
        reported = self.progress or Progress()
        return {
            "namespace": self.namespace,
            "name": self.name,
            "kind": self.kind,
            "queue": self.queue,
            "state": str(self.state),
            "stage": self.stage or None,
            "pods": {"placed": self.pods, "wanted": self.wanted},
            "gpus": dict(sorted(self.gpus.items())),
            "restarts": self.restarts,
            "created": None if self.created is None else self.created.isoformat(),
            "progress": {
                "epoch": reported.epoch,
                "epochs": reported.epochs,
                "step": reported.step,
                "loss": reported.loss,
                "accuracy": reported.accuracy,
                "secondsLeft": None
                if reported.remaining_seconds is None
                else round(reported.remaining_seconds),
            },
            "queuePosition": self.position,
            "waitingReason": self.waiting_reason,
            "reasons": list(self.reasons),
            "lastLogLines": list(self.last_log_lines),
            "failureLogCommand": self.failure_log_command or None,
            "gpuHours": None if self.gpu_hours is None else float(round(self.gpu_hours, 4)),
            "cost": None if self.cost is None else float(round(self.cost, 2)),
        }


def read_runs(
    cluster: Cluster,
    prices: Prices,
    now: datetime,
    *,
    product: str = "",
    snapshot: Snapshot | None = None,
    name: tuple[str, str] | None = None,
) -> list[RunStatus]:
    """Return the status of every run in the cluster, with finished runs last.

    Args:
        cluster: Cluster from which logs are read.
        prices: Prices of GPUs.
        now: Current time in UTC.
        product: GPU model of nodes without a label.
        snapshot: Snapshot to use. By default, a new one is taken.
        name: Namespace and name of the only run to read.

    Raises:
        GitopsError: If the cluster does not respond.
    """
    snapshot = snapshot or cluster.snapshot()
    waits = {(item.namespace, item.job): item for item in waiting(snapshot)}
    reader = _Reader(cluster, prices, product, now, snapshot, positions(snapshot), waits)
    jobs = [job for job in _jobs(snapshot) if name in (None, key(job.manifest))]
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(reader.status, jobs))
    return sorted(statuses, key=lambda run: (run.state.finished, run.namespace, run.name))


def run_pods(snapshot: Snapshot) -> Mapping[tuple[str, str], list[Object]]:
    """Map the namespace and name of each run to its pods.

    The first pod of each run reports the progress: rank 0 or the launcher. `launcher` and `master`
    sort before `worker`; the pods of other job kinds sort by their index.
    """
    pods: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in sorted(snapshot.all("Pod"), key=key):
        if name := pod["metadata"].get("labels", {}).get(RUN_LABEL):
            pods[pod["metadata"]["namespace"], name].append(pod)
    return pods


@dataclass(frozen=True)
class _Job:
    """A run's job object with its pods and PodGroups."""

    resource: Resource
    manifest: Object
    pods: Sequence[Object]
    groups: Sequence[Object]
    """PodGroups, newest first. A JobFlow has one for each active step; other jobs have one."""

    def pods_in_phase(self, *phases: str) -> list[Object]:
        return [pod for pod in self.pods if pod.get("status", {}).get("phase") in phases]


@dataclass(frozen=True)
class _Reader:
    """Reader that derives run statuses from a snapshot, logs and prices."""

    cluster: Cluster
    prices: Prices
    product: str
    now: datetime
    snapshot: Snapshot
    positions: Mapping[tuple[str, str], int]
    waiting: Mapping[tuple[str, str], Waiting]

    def status(self, job: _Job) -> RunStatus:
        namespace, name = key(job.manifest)
        running = job.pods_in_phase("Running")
        state = state_of(job.resource, job.manifest, len(running))
        finished = job.pods_in_phase("Succeeded", "Failed")
        counted = [pod for pod in job.pods if state.finished or pod not in finished]
        group = next((g for g in job.groups if key(g) in self.positions), None)
        group = group or next(iter(job.groups), None)
        # Volcano deletes the PodGroup of a suspended job.
        minimum = (
            group.get("spec", {}).get("minMember", 1)
            if group
            else job.manifest.get("spec", {}).get("minAvailable", 1)
        )
        restarts = _restarts(job)
        ran = state not in (State.WAITING, State.RUNNING) or restarts > 0
        is_known = any(map(is_scheduled, job.pods)) or not ran
        used = usage(job.pods, self.snapshot, self.prices, self.now, self.product)
        waiting = (
            None
            if state.finished
            else self.waiting.get((namespace, owner(group) if group else name))
        )
        waits = state is State.WAITING
        return RunStatus(
            namespace=namespace,
            name=name,
            kind=job.resource.title,
            queue=_queue(job, group, self.snapshot),
            state=state,
            stage=stage(job.manifest),
            pods=sum(map(is_scheduled, counted)),
            wanted=max(len(counted), int(minimum)),
            gpus=sum((accelerators(request(pod)) for pod in running), Counter[str]()),
            restarts=restarts,
            created=parse_time(job.manifest["metadata"].get("creationTimestamp")),
            progress=None if waits else self._progress(job, state),
            position=self.positions.get(key(group)) if group and waits else None,
            waiting_reason="" if waiting is None else f"{waiting.name}: {waiting.state}",
            reasons=_failure_reasons(job, self.snapshot)
            if state is State.FAILED
            else waiting.reasons
            if waiting
            else (),
            last_log_lines=tuple(self._last_log_lines(job)) if state is State.FAILED else (),
            failure_log_command=self._failure_log_command(job, state),
            gpu_hours=used.gpu_hours if is_known else None,
            cost=used.cost if is_known else None,
        )

    def _progress(self, job: _Job, state: State) -> Progress | None:
        """Return the progress from the logs of the first pods. Running pods take precedence."""
        pods = dict.fromkeys(key(pod) for pod in [*job.pods_in_phase("Running"), *job.pods])
        logs = (self.cluster.logs(*pod, LOG_LINES) for pod in [*pods][:3])
        found = next((read for lines in logs if (read := progress(lines, self.now))), None)
        if state is not State.SUCCEEDED:
            return found
        # If a pod's node is gone, its log cannot be read, but its termination message can.
        finished = result(message for pod in job.pods for message in _messages(pod))
        return found if finished is None else (found or Progress()).after(finished)

    def _last_log_lines(self, job: _Job) -> list[str]:
        for pod in job.pods_in_phase("Failed"):
            lines = self.cluster.logs(*key(pod), 12)
            if text := failure_text("".join(_messages(pod)), lines):
                return [f"{pod['metadata']['name']}:", *text]
        return []

    def _failure_log_command(self, job: _Job, state: State) -> str:
        """Return the command that prints the archived failures of a run."""
        namespace, name = key(job.manifest)
        failed = state in (State.FAILED, State.RESTARTING) or _restarts(job) > 0
        if not failed or state is State.SUCCEEDED:
            return ""
        selector = ApiClient(name=RECORDER, namespace=namespace).selector
        for pod in self.snapshot.active():
            metadata = pod["metadata"]
            recorder = selector.items() <= metadata.get("labels", {}).items()
            if recorder and metadata["namespace"] == namespace:
                command = f"python3 -m recorder show {name}"
                return f"kubectl exec -n {namespace} deploy/{RECORDER} -- {command}"
        return ""


def _jobs(snapshot: Snapshot) -> Iterator[_Job]:
    pods = run_pods(snapshot)
    for resource in RESOURCES:
        for job in snapshot.all(resource.name):
            metadata = job["metadata"]
            name = metadata.get("labels", {}).get(RUN_LABEL)
            # The job of a run may own other jobs, which are not separate runs.
            if name is None or is_controlled(job):
                continue
            job_pods = pods.get((metadata["namespace"], name), [])
            groups = _groups(snapshot, metadata["namespace"], job, job_pods)
            yield _Job(resource, job, job_pods, groups)


def _failure_reasons(job: _Job, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the reasons for the failure of a job.

    Volcano terminates a job whose pods it cannot create, but does not report the reason in the job.
    In this case, the reason is a rejection by the API server (read from events) or a missing queue.
    """
    namespace, name = key(job.manifest)
    failed = [step for step, state in steps(job.manifest).items() if state is State.FAILED]
    rejections = (
        f"the API server rejected pods of the job: {text}"
        for each in failed or [name]
        if (text := rejection(snapshot, (namespace, each)))
    )
    reasons = causes(job.resource, job.manifest, job.pods) or [*rejections]
    queue = _queue(job, None, snapshot)
    if not reasons and queue and (text := missing_queue(snapshot, queue)):
        reasons = [text]
    return tuple(map(printable, reasons))


def _groups(
    snapshot: Snapshot, namespace: str, job: Object, pods: Sequence[Object]
) -> list[Object]:
    names = {group_of(pod) for pod in pods} | {key(job)}
    owners = {(namespace, name) for name in (job["metadata"]["name"], *steps(job))}
    found = [
        group
        for group in snapshot.all("PodGroup")
        if key(group) in names or (group["metadata"]["namespace"], owner(group)) in owners
    ]
    return sorted(found, key=lambda g: str(g["metadata"].get("creationTimestamp")), reverse=True)


def _queue(job: _Job, group: Object | None, snapshot: Snapshot) -> str:
    if group is not None:
        return queue_of(group)
    spec, metadata = job.manifest.get("spec", {}), job.manifest["metadata"]
    for step in steps(job.manifest):
        # All steps of a run are in the same queue.
        spec = (snapshot.find(volcano.JOB.name, metadata["namespace"], step) or {}).get("spec", {})
    labels = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
    queues = (labels.get(name) for name in (QUEUE_LABEL, QUEUE_ANNOTATION))
    return str(spec.get("queue") or next((text for text in queues if text), ""))


def _restarts(job: _Job) -> int:
    container_restarts = max(
        (sum(s.get("restartCount", 0) for s in _containers(p)) for p in job.pods), default=0
    )
    status = job.manifest.get("status", {})
    steps_status = status.get("jobStatusList", ())
    step_restarts = sum(int(step.get("restartCount", 0)) for step in steps_status)
    return max(job.resource.restart_count(status), step_restarts, container_restarts)


def _messages(pod: Object) -> Iterator[str]:
    for status in _containers(pod):
        yield str(status.get("state", {}).get("terminated", {}).get("message", ""))


def _containers(pod: Object) -> list[dict[str, Any]]:
    return list(pod.get("status", {}).get("containerStatuses", []))


@dataclass(frozen=True)
class Usage:
    """GPU-hours and cost of the existing pods. Pods of earlier attempts may have been deleted."""

    gpu_hours: Decimal
    """GPU-hours. For a partial device, such as a MIG device, the price table contains the fraction
    of a GPU that is counted. Without a fraction, the device is not counted."""
    cost: Decimal | None
    """Cost in the price table's currency. None if the table lacks the price of a GPU model, or the
    fraction of a GPU that another accelerator represents."""


def usage(
    pods: Iterable[Object], snapshot: Snapshot, prices: Prices, now: datetime, product: str = ""
) -> Usage:
    """Return the GPU-hours and the cost of pods, from the time at which each pod was scheduled.

    `product` is the GPU model of nodes without a label.
    """
    labels = {node["metadata"]["name"]: _labels(node) for node in snapshot.all("Node")}
    hours, cost = Decimal(0), Decimal(0)
    known = True
    for pod in pods:
        start = scheduled_at(pod)
        if start is None:
            continue
        time = Decimal(str(max(((ended_at(pod) or now) - start).total_seconds(), 0.0))) / 3600
        node = labels.get(pod["spec"].get("nodeName", ""), {})
        for resource, count in accelerators(request(pod)).items():
            share = prices.share(resource)
            if share is None:
                known = False
                continue
            hours += time * count * share
            price = _price(node, prices, product)
            known = known and price is not None
            cost += time * count * share * (price or 0)
    return Usage(hours, cost if known else None)


def _price(labels: Mapping[str, str], prices: Prices, default: str) -> Decimal | None:
    spot = any(labels.get(key) == value for key, value in prices.spot_labels.items())
    return prices.of_product(
        labels.get(GPU_PRODUCT_LABEL, default), "spot" if spot else "on-demand"
    )


def scheduled_at(pod: Object) -> datetime | None:
    """Return the time at which a pod was scheduled, or None if it is not scheduled."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return parse_time(condition.get("lastTransitionTime"))
    return parse_time(pod.get("status", {}).get("startTime"))


def ended_at(pod: Object) -> datetime | None:
    """Return the time at which a pod's last container terminated; None before the pod finishes."""
    if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
        return None
    ends = [
        parse_time(status.get("state", {}).get("terminated", {}).get("finishedAt"))
        for status in pod["status"].get("containerStatuses", [])
    ]
    known = [end for end in ends if end is not None]
    return max(known, default=scheduled_at(pod))


def parse_time(text: str | None) -> datetime | None:
    """Parse a timestamp from the Kubernetes API."""
    return None if not text else datetime.fromisoformat(text).astimezone(UTC)


def _labels(node: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels", {})
    return labels
