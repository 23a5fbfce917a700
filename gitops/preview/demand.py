"""What the pods of a stack ask for, for every kind of workload that the policy pack finds pods in.

The arithmetic is that of Kubernetes: a pod's request is the larger of the sum over its long-running
containers and of each init container, and a limit without a request is one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from kube.names import GROUP_ANNOTATION
from kube.quantities import quantity_or_none
from policies.resources import Resource
from policies.settings import RoleConfig
from policies.values import Node
from policies.views import View
from policies.workloads import Container, Pod, Role, is_gpu

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""The label that NVIDIA's feature discovery gives to nodes."""
_ROLES = RoleConfig()


@dataclass(frozen=True)
class Demand:
    """What all pods made of one pod specification ask for together."""

    workload: str
    namespace: str
    queue: str
    role: Role
    product: str | None
    """The model of GPU that the pods choose; None where they take any."""
    labels: Mapping[str, str]
    """The node labels that the pods choose."""
    pods: Decimal | None
    """How many; None while that is not known."""
    fewest: Decimal | None
    """How many at least, where an autoscaler decides; `pods` is the most then."""
    requests: Mapping[str, Decimal]
    limits: Mapping[str, Decimal]

    @property
    def gpus(self) -> dict[str, Decimal]:
        """GPUs of one pod by resource name."""
        return {
            name: amount
            for name, amount in self.requests.items()
            if is_gpu(name, _ROLES.gpu_resources) and amount
        }

    def total(self, amounts: Mapping[str, Decimal], name: str) -> Decimal:
        """An amount of all pods together; 0 while their number is not known."""
        return amounts.get(name, Decimal(0)) * (self.pods or 0)


def demands(views: Iterable[View]) -> list[Demand]:
    """The demand of every pod specification in a stack."""
    found = list(views)
    scalers = _autoscalers(found)
    groups = _queues_of_groups(found)
    idle = _runtimes_of_suspended_jobs(found)
    return [
        _demand(view, pod, scalers.get(view.resource.address), groups, idle)
        for view in found
        for pod in view.workload.pods
    ]


def _demand(
    view: View,
    pod: Pod,
    scaled: tuple[Decimal, Decimal] | None,
    groups: Mapping[str, str],
    idle: frozenset[str],
) -> Demand:
    resource = view.resource
    fewest, pods = scaled or (None, _pods(pod))
    if is_suspended(resource) or resource.address in idle:
        fewest, pods = None, Decimal(0)
    requests = _of_pod(pod, "requests", "limits")
    return Demand(
        workload=f"{resource.kind} {resource.name}",
        namespace=resource.namespace or "default",
        queue=view.workload.queue(pod).text or _group_queue(pod, groups),
        role=pod.role(_ROLES),
        product=_product(pod),
        labels=_labels(pod.spec["nodeSelector"]),
        pods=pods,
        fewest=fewest,
        requests=requests,
        limits=_of_pod(pod, "limits"),
    )


def is_suspended(resource: Resource) -> bool:
    """Whether a job is told to have no pods, until it is told otherwise."""
    spec = resource.root["spec"]
    return spec["suspend"].value is True or spec["runPolicy"]["suspend"].value is True


def _runtimes_of_suspended_jobs(views: list[View]) -> frozenset[str]:
    """Addresses of the TrainingRuntimes whose TrainJob is suspended: the pods are theirs."""
    return frozenset(
        f"{view.resource.namespace}/TrainingRuntime/{name}"
        for view in views
        if view.resource.is_kind("trainer.kubeflow.org", "TrainJob")
        and is_suspended(view.resource)
        and (name := view.resource.root["spec"]["runtimeRef"]["name"].text)
    )


def _queues_of_groups(views: list[View]) -> dict[str, str]:
    """The queues of declared PodGroups by their address."""
    return {
        view.resource.address: view.resource.root["spec"]["queue"].text or ""
        for view in views
        if view.resource.is_kind("scheduling.volcano.sh", "PodGroup")
    }


def _group_queue(pod: Pod, groups: Mapping[str, str]) -> str:
    name = pod.metadata["annotations"][GROUP_ANNOTATION].text
    return groups.get(f"{pod.resource.namespace}/PodGroup/{name}", "")


def _pods(pod: Pod) -> Decimal | None:
    # A TrainJob counts nodes, and of a missing number only its runtime knows.
    if any(container.kind == "trainer" for container in pod.containers):
        return quantity_or_none(pod.spec["numNodes"].value)
    return pod.replicas


def _of_pod(pod: Pod, *places: str) -> dict[str, Decimal]:
    running: dict[str, Decimal] = defaultdict(Decimal)
    starting: dict[str, Decimal] = defaultdict(Decimal)
    for container in pod.containers:
        for name, amount in _of_container(container, places).items():
            if container.is_long_running:
                running[name] += amount
            else:
                starting[name] = max(starting[name], amount)
    return {name: max(running[name], starting[name]) for name in sorted({*running, *starting})}


def _of_container(container: Container, places: tuple[str, ...]) -> dict[str, Decimal]:
    amounts: dict[str, Decimal] = {}
    for place in reversed(places):
        for name, node in container.resources[place].fields():
            amount = quantity_or_none(node.value)
            if amount is not None:
                amounts[name] = amount
    return amounts


def _product(pod: Pod) -> str | None:
    chosen = pod.spec["nodeSelector"][PRODUCT_LABEL].text
    if chosen is not None:
        return chosen
    required = pod.spec["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    terms = list(required["nodeSelectorTerms"].items())
    # Terms are alternatives, so a model is chosen only where there is one term.
    for expression in terms[0]["matchExpressions"].items() if len(terms) == 1 else ():
        if expression["key"].text == PRODUCT_LABEL and expression["operator"].text == "In":
            values = [value.text or "" for value in expression["values"].items()]
            return " or ".join(sorted(values)) or None
    return None


def _labels(selector: Node) -> dict[str, str]:
    return {key: node.text or "" for key, node in selector.fields()}


def _autoscalers(views: list[View]) -> dict[str, tuple[Decimal, Decimal]]:
    """Fewest and most replicas by the address of what is scaled."""
    return dict(_autoscaler(view) for view in views if _scales(view))


def _scales(view: View) -> bool:
    own = view.resource.is_kind("autoscaling", "HorizontalPodAutoscaler")
    return own or _of_keda(view)


def _of_keda(view: View) -> bool:
    return view.resource.is_kind("keda.sh", "ScaledObject")


def _autoscaler(view: View) -> tuple[str, tuple[Decimal, Decimal]]:
    """KEDA's has other names and other defaults: from none to a hundred."""
    spec = view.resource.root["spec"]
    target = spec["scaleTargetRef"]
    suffix, least, highest = ("ReplicaCount", 0, 100) if _of_keda(view) else ("Replicas", 1, 1)
    kind = target["kind"].text or "Deployment"
    address = f"{view.resource.namespace}/{kind}/{target['name'].text}"
    fewest = quantity_or_none(spec[f"min{suffix}"].value)
    most = quantity_or_none(spec[f"max{suffix}"].value)
    return address, (Decimal(least) if fewest is None else fewest, most or Decimal(highest))


def with_gpus(found: Iterable[Demand]) -> Iterator[Demand]:
    """The demands that take GPUs."""
    return (demand for demand in found if demand.gpus)
