"""The runs of a cluster: their jobs, pods and groups put together."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gitops.prices import Prices
from gitops.runs.cluster import Cluster
from gitops.runs.jobs import is_controlled
from gitops.runs.picture import Object, Picture, group_of, key, owner, placed, queue_of, request
from gitops.runs.queueing import positions
from gitops.runs.run import RunStatus
from gitops.runs.said import Progress, last_words, progress
from gitops.runs.spent import moment, spent
from gitops.runs.states import JOB_KINDS, State, stage, state_of, steps
from gitops.runs.waiting import Waiting, waiting
from infra.failure_recorder import RECORDER, SELECTOR
from kube.names import QUEUE_ANNOTATION, QUEUE_LABEL, RUN_LABEL

LINES: Final = 400
"""Of a log, that are looked at; enough for the beginning of most runs."""


@dataclass(frozen=True)
class _Found:
    """A job object with what belongs to it."""

    kind: str
    job: Object
    pods: Sequence[Object]
    groups: Sequence[Object]
    """Of a JobFlow one for each step that has not ended, the newest first; else one."""

    @property
    def running(self) -> list[Object]:
        return [pod for pod in self.pods if pod.get("status", {}).get("phase") == "Running"]

    @property
    def ended(self) -> list[Object]:
        """Pods that are over."""
        phases = ("Succeeded", "Failed")
        return [pod for pod in self.pods if pod.get("status", {}).get("phase") in phases]

    @property
    def failed(self) -> list[Object]:
        return [pod for pod in self.pods if pod.get("status", {}).get("phase") == "Failed"]


def runs(
    cluster: Cluster,
    prices: Prices,
    now: datetime,
    *,
    product: str = "",
    picture: Picture | None = None,
) -> list[RunStatus]:
    """Every run in the cluster, those that are over last. Raises GitopsError.

    `product` is the model of GPUs whose nodes do not say.
    """
    picture = picture or cluster.picture()
    why = {(item.namespace, item.job): item for item in waiting(picture)}
    look = _Look(cluster, prices, product, now, picture, positions(picture), why)
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(look.status, _jobs(picture)))
    return sorted(told, key=lambda run: (run.state.over, run.namespace, run.name))


@dataclass(frozen=True)
class _Look:
    """One look at the cluster, and everything that a run is told from."""

    cluster: Cluster
    prices: Prices
    product: str
    now: datetime
    picture: Picture
    places: Mapping[tuple[str, str], int]
    why: Mapping[tuple[str, str], Waiting]

    def status(self, one: _Found) -> RunStatus:
        namespace, name = key(one.job)
        state = state_of(one.kind, one.job, len(one.running))
        counted = [pod for pod in one.pods if state.over or pod not in one.ended]
        group = next((g for g in one.groups if key(g) in self.places), None)
        group = group or next(iter(one.groups), None)
        least = int(group["spec"].get("minMember", 1)) if group else 1
        used = spent(one.pods, self.picture, self.prices, self.now, self.product)
        held = self.why.get((namespace, owner(group) if group else name))
        waits = state is State.WAITING
        return RunStatus(
            namespace=namespace,
            name=name,
            kind=JOB_KINDS[one.kind],
            queue=_queue(one, group, self.picture),
            state=state,
            stage=stage(one.job),
            pods=sum(map(placed, counted)),
            wanted=max(len(counted), least),
            gpus=sum((request(pod) for pod in one.running), Counter[str]()),
            restarts=_restarts(one),
            created=moment(one.job["metadata"].get("creationTimestamp")),
            progress=None if waits else _progress(one, self.cluster, self.now),
            position=self.places.get(key(group)) if group and waits else None,
            held="" if held is None or state.over else f"{held.name}: {held.state}",
            reasons=() if held is None or state.over else held.reasons,
            last_words=tuple(_last_words(one, self.cluster)) if state is State.FAILED else (),
            kept=self._kept(one, state),
            gpu_hours=used.gpu_hours,
            cost=used.cost,
        )

    def _kept(self, one: _Found, state: State) -> str:
        """Shows what is kept of a run that failed or was restarted, where something keeps it."""
        namespace, name = key(one.job)
        failed = state in (State.FAILED, State.RESTARTING) or _restarts(one) > 0
        if not failed or state is State.SUCCEEDED:
            return ""
        for pod in self.picture.active():
            metadata = pod["metadata"]
            recorder = SELECTOR.items() <= metadata.get("labels", {}).items()
            if recorder and metadata["namespace"] == namespace:
                shown = f"python3 -m recorder show {name}"
                return f"kubectl exec -n {namespace} deploy/{RECORDER} -- {shown}"
        return ""


def _jobs(picture: Picture) -> Iterator[_Found]:
    pods: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in picture.all("Pod"):
        if name := pod["metadata"].get("labels", {}).get(RUN_LABEL):
            pods[pod["metadata"]["namespace"], name].append(pod)
    for kind in JOB_KINDS:
        for job in picture.all(kind):
            metadata = job["metadata"]
            name = metadata.get("labels", {}).get(RUN_LABEL)
            # A run's own Job may be made of further ones, which are owned by it.
            if name is None or is_controlled(job):
                continue
            own = sorted(pods[metadata["namespace"], name], key=key)
            yield _Found(kind, job, own, _groups(picture, metadata["namespace"], job, own))


def _groups(picture: Picture, namespace: str, job: Object, pods: Sequence[Object]) -> list[Object]:
    names = {group_of(pod) for pod in pods} | {key(job)}
    owners = {(namespace, name) for name in (job["metadata"]["name"], *steps(job))}
    found = [
        group
        for group in picture.all("PodGroup")
        if key(group) in names or (group["metadata"]["namespace"], owner(group)) in owners
    ]
    return sorted(found, key=lambda g: str(g["metadata"].get("creationTimestamp")), reverse=True)


def _queue(one: _Found, group: Object | None, picture: Picture) -> str:
    if group is not None:
        return queue_of(group)
    spec, metadata = one.job.get("spec", {}), one.job["metadata"]
    for step in steps(one.job):
        # All steps of a run are in the same queue.
        spec = (picture.find("Job", metadata["namespace"], step) or {}).get("spec", {})
    labels = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
    found = (labels.get(name) for name in (QUEUE_LABEL, QUEUE_ANNOTATION))
    return str(spec.get("queue") or next((text for text in found if text), ""))


def _restarts(one: _Found) -> int:
    of_containers = max(
        (sum(s.get("restartCount", 0) for s in _containers(p)) for p in one.pods), default=0
    )
    status = one.job.get("status", {})
    of_steps = sum(int(step.get("restartCount", 0)) for step in status.get("jobStatusList", ()))
    return max(int(status.get("retryCount", 0)), of_steps, of_containers)


def _progress(one: _Found, cluster: Cluster, now: datetime) -> Progress | None:
    """Of the first pod that tells something: rank 0, or the one that starts the others."""
    for pod in [*one.running, *one.pods][:3]:
        if told := progress(cluster.logs(*key(pod), LINES), now):
            return told
    return None


def _last_words(one: _Found, cluster: Cluster) -> list[str]:
    for pod in one.failed:
        messages = [
            str(status.get("state", {}).get("terminated", {}).get("message", ""))
            for status in _containers(pod)
        ]
        if words := last_words("".join(messages), cluster.logs(*key(pod), 12)):
            return [f"{pod['metadata']['name']}:", *words]
    return []


def _containers(pod: Object) -> list[dict[str, Any]]:
    return list(pod.get("status", {}).get("containerStatuses", []))
