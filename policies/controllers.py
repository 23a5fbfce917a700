"""Properties of a whole workload: gang, queue, retries, and whether Pulumi waits for it.

Kinds store these properties in different fields. The registry of kinds contains the paths of the
fields, so a rule reads `queue` regardless of the kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

from kube.names import (
    GROUP_ANNOTATION,
    KUEUE_QUEUE_LABEL,
    MIN_MEMBER_ANNOTATION,
    QUEUE_ANNOTATION,
    QUEUE_LABEL,
    SKIP_AWAIT_ANNOTATION,
)
from kube.workloads.control import Job
from kube.workloads.record import NO_RECORD, steps
from policies.counts import value_near_pod
from policies.pod_search import find_all_pods
from policies.resources import Resource
from policies.values import UNKNOWN, Node, nodes_at
from policies.workloads import Pod


@dataclass(frozen=True)
class Gang:
    """Size of a gang.

    `minimum` is the number of pods that must start together, and `size` is the total number of
    pods (None if unknown). With `defaults_to_all`, an absent minimum means all pods.
    """

    minimum: Node
    size: Decimal | None
    defaults_to_all: bool


class Workload:
    """A resource that runs pods, or one of the jobs in it.

    `job` is the part of the manifest that sets the queue, gang and retries. `machines` are objects
    that request devices but are not pods, such as virtual machines.
    """

    def __init__(
        self, resource: Resource, pods: list[Pod], job: Node, machines: list[Pod] | None = None
    ) -> None:
        self.resource = resource
        self.pods = pods
        self.machines = machines or []
        self._job = job

    @property
    def _record(self) -> Job:
        return (self.resource.record or NO_RECORD).job

    def _field(self, path: str) -> Node:
        return self._job.at(path)

    @property
    def is_template(self) -> bool:
        """True if this object is a template that another object completes and runs.

        An example is the TrainingRuntime of a TrainJob.
        """
        return (self.resource.record or NO_RECORD).completed

    @property
    def counts_each_pod(self) -> bool:
        """True if the failure of any pod counts as a retry of the job."""
        return self._record.each_pod

    @property
    def min_retry_limit(self) -> int:
        """Smallest retry limit that the controller accepts (Volcano replaces 0 with 3)."""
        return self._record.least

    @property
    def additional_retries(self) -> int:
        """1 if the job fails as soon as its retries reach the limit, otherwise 0.

        To allow N retries, the limit must be N plus this number.
        """
        return self._record.extra

    @property
    def counts_container_restarts(self) -> bool:
        """True if container restarts by the kubelet count towards the retry limit."""
        return self._record.in_place

    @cached_property
    def size(self) -> Decimal | None:
        """Number of pods; None if unknown."""
        return self.count(self.pods)

    def count(self, pods: Iterable[Pod]) -> Decimal | None:
        """Return how many of the workload's pods have these specifications; None if unknown."""
        if not self._is_complete():
            return None
        counts = [pod.replicas_within(self._record.at) for pod in pods]
        known = [count for count in counts if count is not None]
        return sum(known, Decimal(0)) if len(known) == len(counts) else None

    def replicas(self, pods: Iterable[Pod]) -> Decimal | None:
        """Return the number of replicas (pods or groups) that the pods form; None if unknown."""
        if self.size is None:
            return None
        return sum((pod.groups or Decimal(0) for pod in pods if not pod.has_leader), Decimal(0))

    def _is_complete(self) -> bool:
        """Return whether all lists and objects on the paths to the pods are known."""
        for location in (self.resource.record or NO_RECORD).pods:
            keys = steps(location.at)
            stars = [index for index, key in enumerate(keys) if key == "*"]
            for index in (*stars, len(keys)):
                for node in nodes_at(self.resource.root, keys[:index]):
                    if not _is_known(node):
                        return False
        return True

    def scheduler(self, pod: Pod) -> Node:
        """Return the scheduler's name; a job may set a default for its pods."""
        scheduler = pod.spec["schedulerName"]
        return (
            self._field(self._record.scheduler)
            if scheduler.value in (None, "") and self._record.scheduler
            else scheduler
        )

    def queue(self, pod: Pod) -> Node:
        """Return the `Node` that contains the queue's name; it is absent if no queue is set."""
        if self.is_grouped:
            queue = self._field(self._record.group_queue)
            return self.local_queue(pod) or queue if queue.absent else queue
        locations = [self._field(self._record.queue)] if self._record.queue else []
        if self._record.annotations:
            annotations = pod.metadata["annotations"]
            locations += [annotations[QUEUE_ANNOTATION], self.resource.labels[QUEUE_LABEL]]
        present = next((location for location in locations if not location.absent), None)
        return present or self.local_queue(pod) or locations[0]

    def local_queue(self, pod: Pod) -> Node | None:
        """Return the label that names a Kueue queue, or None.

        The label may be on the pod, on the resource or on a template between them.

        Kueue does not manage Volcano Jobs, and ignores an empty label and the label of a Kubeflow
        runtime. If the label is on a pod template, Kueue admits each pod separately; if it is on
        one of several jobs, Kueue does not admit them together. The label of an object may be
        unknown during a preview.
        """
        node: Node | None = pod.spec.parent if self._record.annotations else None
        if node is not None and node.steps != self.resource.root.steps:
            node = node.parent
        while node is not None and not (self.is_template and node.parent is None):
            label = node["metadata"]["labels"][KUEUE_QUEUE_LABEL]
            is_set = label.awaited or bool((label.text or "").strip())
            steps_in_object = node.steps[len(self.resource.root.steps) :]
            in_list = any(isinstance(step, int) for step in steps_in_object)
            if isinstance(node.value, dict) and is_set and not in_list:
                return label
            node = node.parent
        return None

    def joins_pod_group(self, pod: Pod) -> bool:
        """Return whether an annotation assigns the pod to a PodGroup, which then sets the queue.

        Controllers that create PodGroups also set this annotation.
        """
        if not self._record.annotations:
            return False
        return not pod.metadata["annotations"][GROUP_ANNOTATION].absent

    def uses_volcano(self, pod: Pod) -> bool:
        """Return whether the pod uses Volcano's scheduler, a PodGroup or a Volcano queue."""
        queue = pod.metadata["annotations"][QUEUE_ANNOTATION]
        joins = self.is_grouped or self.joins_pod_group(pod)
        return joins or not (queue.absent and self.scheduler(pod).absent)

    @property
    def is_grouped(self) -> bool:
        """True if the controller creates a PodGroup of all pods."""
        return self.group_policy is not None and not self.group_policy.absent

    @property
    def group_policy(self) -> Node | None:
        """The field that makes the controller create a PodGroup; None if the kind has none."""
        return self._field(self._record.grouped) if self._record.grouped else None

    @cached_property
    def gang(self) -> Gang | None:
        """Gang of the workload; None if its kind does not define one."""
        if self._record.gang:
            return Gang(self._field(self._record.gang), self.size, self._record.whole)
        joins = any(self.joins_pod_group(pod) for pod in self.pods)
        if self._record.member_annotation and not joins:
            minimum = self.resource.annotations[MIN_MEMBER_ANNOTATION]
            return Gang(minimum, self.size, defaults_to_all=self.size == 1)
        return None

    @cached_property
    def retry_limit(self) -> Node | None:
        """The retry limit; None if the kind has none, or if its default applies."""
        record = self._record
        if not record.retries:
            return None
        limit = self._field(record.retries)
        limits_each = bool(record.retries_each) and self._field(record.retries_each).present
        optional = record.retries_default or limits_each
        return None if optional and limit.absent else limit

    @cached_property
    def deadline(self) -> Node | None:
        """The deadline; None if the kind has none."""
        if self._record.pod_deadline:
            return next((pod.spec["activeDeadlineSeconds"] for pod in self.pods), None)
        return self._field(self._record.deadline) if self._record.deadline else None

    @property
    def has_pod_deadline(self) -> bool:
        """True if the deadline applies to each pod, and therefore to each attempt."""
        return self._record.pod_deadline

    def claims(self) -> Iterator[Node]:
        """Yield the names of the claims that all of the job's pods mount."""
        if self._record.claims:
            yield from nodes_at(self._job, steps(self._record.claims))

    def restart_policy(self, pod: Pod) -> Node:
        """Return the restart policy; the policy of a Kubeflow replica overrides the pod's."""
        policy = pod.spec["restartPolicy"]
        if pod.location.restart:
            outer = value_near_pod(self.resource.root, pod.location.restart, pod.steps)
            if outer.absent and policy.absent:
                return Node(pod.location.restart_default or None, outer.parent, outer.key)
            return policy if outer.absent else outer
        # The controller sets the restart policy of containers outside of the pod's usual lists.
        return Node(UNKNOWN) if policy.absent and pod.location.containers else policy

    @property
    def skip_await_annotation(self) -> Node | None:
        """The annotation that disables waiting for completion; None if Pulumi does not wait."""
        record = self.resource.record or NO_RECORD
        return self.resource.annotations[SKIP_AWAIT_ANNOTATION] if record.awaited else None


def find_workloads(resource: Resource) -> list[Workload]:
    """Return one workload for each job in a resource. Most resources contain a single job."""
    found = find_all_pods(resource)
    pods = [pod for pod in found if not pod.location.machine]
    machines = [pod for pod in found if pod.location.machine]
    if not found:
        return []
    job = (resource.record or NO_RECORD).job
    nodes = list(nodes_at(resource.root, steps(job.at)))
    if len(nodes) == 1:
        return [Workload(resource, pods, nodes[0], machines)]
    groups = [
        Workload(resource, [pod for pod in pods if _is_within(pod, node)], node) for node in nodes
    ]
    return [group for group in groups if group.pods]


def _is_within(pod: Pod, job: Node) -> bool:
    return pod.spec.steps[: len(job.steps)] == job.steps


def _is_known(node: Node) -> bool:
    values = node.value.values() if isinstance(node.value, dict) else ()
    return node.complete and all(Node(value).known for value in values)
