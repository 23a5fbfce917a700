"""Properties of a whole workload: gang, queue, retries, and whether Pulumi waits for it.

Each controller has different fields for these. This module hides the differences, so that a rule
reads "the queue" and does not depend on the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, reduce

from kube.kinds import KINDS
from kube.names import (
    GROUP_ANNOTATION,
    KUEUE_QUEUE_LABEL,
    MIN_MEMBER_ANNOTATION,
    QUEUE_ANNOTATION,
    QUEUE_LABEL,
    SKIP_AWAIT_ANNOTATION,
)
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.values import UNKNOWN, Node
from policies.workloads import Pod

_KUBEFLOW = "kubeflow.org"


@dataclass(frozen=True)
class Gang:
    """Number of pods that must start together, and of all pods (None if unknown)."""

    minimum: Node
    size: Decimal | None
    defaults_to_all: bool


def _count(member: Node) -> Decimal | None:
    """Return the replicas of one task, by default one; None if unknown."""
    replicas = member["replicas"]
    if not replicas.known:
        return None
    return Decimal(1) if replicas.absent else quantity_or_none(replicas.value)


class Workload:
    """A resource that runs pods."""

    def __init__(self, resource: Resource, pods: list[Pod]) -> None:
        self.resource = resource
        self.pods = pods

    @property
    def _spec(self) -> Node:
        return self.resource.root["spec"]

    @property
    def is_volcano_job(self) -> bool:
        """True for a Volcano Job, or the template from which a JobFlow creates one."""
        return self.resource.is_kind("batch.volcano.sh", "Job") or self.is_step

    @property
    def is_step(self) -> bool:
        """True for the template of a step of a JobFlow."""
        return self.resource.is_kind("flow.volcano.sh", "JobTemplate")

    @property
    def is_batch_job(self) -> bool:
        """True for the Job of Kubernetes."""
        return self.resource.is_kind("batch", "Job")

    @property
    def is_kubeflow_job(self) -> bool:
        """True for a job of Kubeflow's training operator."""
        replicas = any(key.lower().endswith("replicaspecs") for key, _ in self._spec.fields())
        return self.resource.group == _KUBEFLOW and replicas

    @property
    def counts_each_pod(self) -> bool:
        """True if the failure of any pod counts as a retry of the job."""
        return self.is_batch_job or self.is_kubeflow_job

    @cached_property
    def size(self) -> Decimal | None:
        """Number of pods; None if unknown."""
        members = self._members()
        if members is None:
            counts = [pod.replicas for pod in self.pods]
        else:
            counts = [_count(member) for member in members]
        known = [count for count in counts if count is not None]
        return sum(known, Decimal(0)) if len(known) == len(counts) else None

    def _members(self) -> list[Node] | None:
        """Tasks or replica specifications, for kinds that have them."""
        if self.is_volcano_job:
            tasks = self._spec["tasks"]
            whole = tasks.complete and isinstance(tasks.value, list)
            return list(tasks.items()) if whole else [Node(UNKNOWN)]
        if self.resource.group != _KUBEFLOW:
            return None
        specs = [node for key, node in self._spec.fields() if key.lower().endswith("replicaspecs")]
        if not all(node.known for node in specs):
            return [Node(UNKNOWN)]
        return [replica for node in specs for _, replica in node.fields()]

    def scheduler(self, pod: Pod) -> Node:
        """Return the scheduler's name; a Volcano Job sets the default of its tasks."""
        own = pod.spec["schedulerName"]
        if own.absent and self.is_volcano_job:
            return self._spec["schedulerName"]
        return own

    def queue(self, pod: Pod) -> Node:
        """Return the queue's name, or its path if there is none."""
        annotations = pod.metadata["annotations"]
        job = self._spec["queue"]
        policy = self._spec["runPolicy"]["schedulingPolicy"]["queue"]
        places = [annotations[QUEUE_ANNOTATION], self.resource.labels[QUEUE_LABEL]]
        if self.is_volcano_job:
            places = [job]
        elif self.resource.group == _KUBEFLOW:
            places = [policy, *places]
        found = next((place for place in places if not place.absent), None)
        return found or self.local_queue(pod) or places[0]

    def local_queue(self, pod: Pod) -> Node | None:
        """Return Kueue's queue: a label of the pod, of the object or of a template between them.

        Kueue does not manage the jobs of Volcano.
        """
        node: Node | None = None if self.resource.group == "batch.volcano.sh" else pod.spec
        while node is not None:
            label = node["metadata"]["labels"][KUEUE_QUEUE_LABEL]
            if isinstance(node.value, dict) and label.present:
                return label
            node = node.parent
        return None

    def joins_pod_group(self, pod: Pod) -> bool:
        """Return whether a PodGroup declared elsewhere, which has the queue, contains the pod."""
        return not pod.metadata["annotations"][GROUP_ANNOTATION].absent

    @cached_property
    def gang(self) -> Gang | None:
        """Gang of the workload, for kinds with a gang of their own."""
        if self.is_volcano_job:
            return Gang(self._spec["minAvailable"], self.size, defaults_to_all=False)
        if self.resource.group == _KUBEFLOW:
            policy = self._spec["runPolicy"]["schedulingPolicy"]
            return Gang(policy["minAvailable"], self.size, defaults_to_all=True)
        if self.is_batch_job and not any(self.joins_pod_group(pod) for pod in self.pods):
            minimum = self.resource.annotations[MIN_MEMBER_ANNOTATION]
            return Gang(minimum, self.size, defaults_to_all=self.size == 1)
        return None

    @cached_property
    def retry_limit(self) -> Node | None:
        """Path of the number of retries, for kinds that have one."""
        if self.is_volcano_job:
            return self._spec["maxRetry"]
        if self.is_batch_job:
            return self._spec["backoffLimit"]
        if self.resource.is_kind("batch", "CronJob"):
            return self._spec["jobTemplate"]["spec"]["backoffLimit"]
        if self.is_kubeflow_job:
            return self._spec["runPolicy"]["backoffLimit"]
        # Without a limit, the other kinds are not retried.
        limit = self._recorded_retry_limit()
        return None if limit is None or limit.absent else limit

    def _recorded_retry_limit(self) -> Node | None:
        for kind in KINDS.values():
            resource = kind.layout.resource
            if self.resource.is_kind(resource.group, resource.kind):
                return reduce(lambda node, key: node[key], kind.layout.retries, self.resource.root)
        return None

    @cached_property
    def deadline(self) -> Node | None:
        """Path of the deadline, if the kind has one."""
        spec = self._spec
        if self.is_kubeflow_job:
            spec = spec["runPolicy"]
        elif self.resource.is_kind("batch", "CronJob"):
            spec = spec["jobTemplate"]["spec"]
        elif not (self.is_volcano_job or self.is_batch_job):
            return None
        return spec["activeDeadlineSeconds"]

    def restart_policy(self, pod: Pod) -> Node:
        """Return the restart policy; in Kubeflow's replicas, theirs overrides the pod's."""
        if self.resource.group == _KUBEFLOW and pod.spec.parent is not None:
            replica = pod.spec.parent.parent
            if replica is not None and not replica["restartPolicy"].absent:
                return replica["restartPolicy"]
        return pod.spec["restartPolicy"]

    @property
    def awaited_flag(self) -> Node | None:
        """Path of the annotation that disables Pulumi's waiting; None if Pulumi does not wait."""
        waits_for_end = self.is_batch_job or self.resource.is_kind("", "Pod")
        return self.resource.annotations[SKIP_AWAIT_ANNOTATION] if waits_for_end else None
