"""Resource requests of a stack's pods, for every workload kind that the policy pack supports.

Requests are computed as in Kubernetes. A pod's request is the larger of two values: the sum over
its long-running containers, and the maximum request of an init container plus the sidecars before
it. A limit without a request counts as a request. If the pod itself sets a request, that
request applies instead.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from kube.accelerators import DEVICE_CLASS_PREFIX, device_counts
from kube.names import (
    GPU_PRODUCT_LABEL,
    KUEUE_QUEUE_LABEL,
    RUN_LABEL,
    SWEEP_GPU_HOURS_ANNOTATION,
    SWEEP_SHARE_ANNOTATION,
)
from kube.quantities import quantity_or_none
from kube.workloads.kubernetes import CONCURRENCY
from kube.workloads.record import Role
from policies.controllers import Workload
from policies.counts import UNLIMITED
from policies.demand import max_pods, queue_of
from policies.resources import Resource
from policies.rules.claims import claimed_devices
from policies.settings import RoleConfig
from policies.values import Node
from policies.views import Stack, View
from policies.workloads import Pod

_ROLES = RoleConfig()


@dataclass(frozen=True)
class Demand:
    """Resource demand of all pods that share one pod specification. Amounts are per pod."""

    workload: str
    run: str
    """Name of the run, followed by the step if the run has several steps.

    If the pods do not belong to a run, this is the name of the workload.
    """
    namespace: str
    queue: str
    role: Role
    product: str | None
    """GPU model that the pods select; None if they accept any."""
    labels: Mapping[str, str]
    """Node labels that the pods require."""
    pods: Decimal | None
    """Number of pods (with an autoscaler: the maximum). None if it is unknown."""
    min_pods: Decimal | None
    """Minimum number of pods. None without an autoscaler."""
    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]
    deadline: Decimal | None = None
    """Seconds after which the workload or each attempt is terminated. None without a deadline."""
    each_attempt: bool = False
    """True if the deadline applies to each attempt, not to the workload as a whole."""
    gpu_hours: Decimal | None = None
    """GPU-hour budget of a sweep if the pods belong to its trial template; otherwise None."""
    expected_share: Decimal | None = None
    """Fraction of the maximum epochs or steps that a sweep's trials are expected to run; 1 without
    early stopping."""

    @property
    def gpus(self) -> dict[str, Decimal]:
        """Number of GPUs per pod, by resource name."""
        included = _ROLES.accelerators.includes
        requested = {name: amount for name, amount in self.requests.items() if included(name)}
        return {name: count for name, count in device_counts(requested).items() if count}

    def total(self, amounts: Mapping[str, Decimal], name: str) -> Decimal:
        """Return the sum of a resource over all pods, or 0 if the number of pods is unknown."""
        return amounts.get(name, Decimal(0)) * (self.pods or 0)


def demands(views: Iterable[View]) -> list[Demand]:
    """Return the demand of every pod specification in a stack.

    A ResourceClaim that several pods share is counted once, as a separate demand of one pod.
    """
    stack, counted, found = Stack(list(views)), set[str](), list[Demand]()
    for workload in stack.workloads:
        for pod in (*workload.pods, *workload.machines):
            demand, claimed = _demand(stack, workload, pod), _claimed_devices(stack, pod)
            own = {**demand.requests, **claimed.pop("", {})}
            found.append(replace(demand, requests=own))
            shared = replace(demand, pods=Decimal(1), min_pods=None, limits={})
            new = sorted(claimed.keys() - counted) if demand.pods != 0 else []
            found += [replace(shared, requests=claimed[claim]) for claim in new]
            counted.update(new)
    return found


def _claimed_devices(stack: Stack, pod: Pod) -> dict[str, dict[str, Decimal]]:
    """Map each claim that a pod shares with other pods to the accelerators in the claim.

    The key "" stands for all claims that the pod does not share. Claims for an unlimited number of
    devices, which the policies reject, are omitted.
    """
    found: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for shared, device_class, amount in claimed_devices(stack, pod, _ROLES.accelerators):
        if amount != UNLIMITED:
            found[shared][DEVICE_CLASS_PREFIX + device_class] += amount
    return found


def _demand(stack: Stack, workload: Workload, pod: Pod) -> Demand:
    resource = workload.resource
    pods = _pod_count(max_pods(stack, pod, surge=False), pod)
    min_pods = stack.scalings.minimum(resource)
    jobs = stack.runs_of(resource)
    if is_suspended(resource) or (jobs and all(is_suspended(job) for job in jobs)):
        min_pods, pods = None, Decimal(0)
    labels = _labels(pod)
    return Demand(
        workload=f"{resource.kind} {resource.name}",
        run=run_title(resource.name, pod),
        namespace=resource.namespace or "default",
        queue=queue_of(stack, workload, pod),
        role=pod.role(_ROLES),
        product=labels.get(GPU_PRODUCT_LABEL),
        labels=labels,
        pods=pods,
        min_pods=min_pods,
        requests={**_pod_amounts(pod, "requests", "limits"), **_machine_gpus(pod)},
        limits=_pod_amounts(pod, "limits"),
        deadline=seconds(workload.deadline) or seconds(pod.spec["activeDeadlineSeconds"]),
        each_attempt=seconds(workload.deadline) is None or workload.has_pod_deadline,
        gpu_hours=quantity_or_none(resource.annotations[SWEEP_GPU_HOURS_ANNOTATION].value),
        expected_share=quantity_or_none(resource.annotations[SWEEP_SHARE_ANNOTATION].value),
    )


def run_title(workload: str, pod: Pod) -> str:
    """Return the name of a pod's run, with the step if the workload is the template of a step."""
    run = pod.metadata["labels"][RUN_LABEL].text
    if run is None or run == workload:
        return workload
    # A run is named `<key>-<hash>`, and the templates of its steps are named `<hash>-<step>`.
    step = workload.removeprefix(f"{run.rpartition('-')[2]}-")
    return f"{run} ({step})"


def seconds(node: Node | None) -> Decimal | None:
    """Return a duration (s) in a manifest; None if the field is missing or its value is unknown."""
    return None if node is None else quantity_or_none(node.value)


def _pod_count(maximum: Decimal, pod: Pod) -> Decimal | None:
    """Return the number of pods, or None if it is unknown or unlimited."""
    return None if maximum == UNLIMITED or pod.max_replicas() is None else maximum


def is_suspended(resource: Resource) -> bool:
    """Return whether a job's specification suspends the job.

    Jobs in Kueue's queues do not count as suspended: they are created suspended, and Kueue resumes
    them.
    """
    if resource.labels[KUEUE_QUEUE_LABEL].text:
        return False
    paths = resource.record.suspend if resource.record is not None else ()
    return any(resource.root.at(path).value is True for path in paths)


def is_schedule(resource: Resource) -> bool:
    """Return whether an object, such as a CronJob, creates other objects repeatedly."""
    record = resource.record
    return record is not None and any(CONCURRENCY in pods.count for pods in record.pods)


def _machine_gpus(pod: Pod) -> dict[str, Decimal]:
    """Return the GPUs of a virtual machine, which are not requested by containers."""
    return pod.gpus(_ROLES.accelerators) if pod.location.machine else {}


def _pod_amounts(pod: Pod, *fields: str) -> dict[str, Decimal]:
    running: dict[str, Decimal] = defaultdict(Decimal)
    peak: dict[str, Decimal] = defaultdict(Decimal)
    # Init containers, including sidecars, start in the listed order, before other containers.
    for container in sorted(
        pod.containers, key=lambda c: not (c.kind == "init" or c.is_init_sidecar)
    ):
        for name, amount in _amounts(container.resources, fields).items():
            peak[name] = max(peak[name], running[name] + amount)
            if container.is_long_running:
                running[name] += amount
    if pod.location.containers or pod.location.machine:
        return dict(sorted(peak.items()))
    # Pod-level requests replace the sum. Pod-level limits are the default for pod-level requests.
    own, default = (_amounts(pod.spec["resources"], each) for each in (fields[:1], fields[1:]))
    return dict(sorted({**default, **peak, **own}.items()))


def _amounts(resources: Node, fields: tuple[str, ...]) -> dict[str, Decimal]:
    amounts: dict[str, Decimal] = {}
    for field in reversed(fields):
        for name, node in resources[field].fields():
            amount = quantity_or_none(node.value)
            if amount is not None:
                amounts[name] = amount
    return amounts


def _labels(pod: Pod) -> dict[str, str]:
    """Return the node labels that a pod requires; alternative values are joined with `or`."""
    required = pod.spec["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    terms = list(required["nodeSelectorTerms"].items())
    found = {}
    # Terms are alternatives, so they determine labels only if there is exactly one term.
    for expression in terms[0]["matchExpressions"].items() if len(terms) == 1 else ():
        values = sorted(value.text or "" for value in expression["values"].items())
        if expression["operator"].text == "In" and values:
            found[expression["key"].text or ""] = " or ".join(values)
    return found | {key: node.text or "" for key, node in pod.spec["nodeSelector"].fields()}


def with_gpus(demands: Iterable[Demand]) -> Iterator[Demand]:
    """Yield the demands that include GPUs."""
    return (demand for demand in demands if demand.gpus)
