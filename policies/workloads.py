"""Search for pod specifications in any resource, and the role of each pod.

`find_pods` searches by structure and not by kind: every object with a list of containers is a pod
specification, in a Deployment, a Volcano task, a PyTorchJob's replica, a JobSet in a
TrainingRuntime, or an unknown kind.

**The role of a pod** decides which rules apply to it:

- `training` and `inference` come from the label `app.kubernetes.io/component` or
  `gpu-platform.dev/workload` on the pod template, or else on the resource itself (the labels and
  their values are configuration);
- kinds that exist for training (a Volcano Job, PyTorchJob, TFJob, MPIJob, TrainJob, TrainingRuntime
  and similar kinds) are training whatever their labels are;
- without such a label, a pod that requests a GPU is training if it runs to completion (a Job,
  CronJob or JobSet, or any pod with restartPolicy Never or OnFailure), and inference if it belongs
  to a Deployment, ReplicaSet or StatefulSet;
- everything else is `other`.

A label cannot exempt a pod from the rules for every pod. Only workloads named in the configuration
have privileges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, Protocol

from kube.accelerators import Accelerators
from kube.quantities import quantity_or_none
from kube.workload_kinds import WORKLOAD_KINDS
from policies.resources import Resource
from policies.values import UNKNOWN, Node, nodes_at

Role = Literal["training", "inference", "other"]
ContainerKind = Literal["main", "init", "sidecar", "ephemeral", "trainer"]

_LISTS: tuple[tuple[str, ContainerKind], ...] = (
    ("containers", "main"),
    ("initContainers", "init"),
    ("ephemeralContainers", "ephemeral"),
)
_TRAINING_GROUPS = frozenset({"batch.volcano.sh", "trainer.kubeflow.org"})
_KUBEFLOW_JOBS = frozenset(
    {"pytorchjob", "tfjob", "mpijob", "xgboostjob", "paddlejob", "jaxjob", "mxjob"}
)
_ENDING_KINDS = frozenset({"job", "cronjob", "jobset"})
_SERVING_KINDS = frozenset({"deployment", "replicaset", "statefulset", "inferenceservice"})
_NO_MANIFEST_KINDS = frozenset({"customresourcedefinition"})


class RoleSettings(Protocol):
    """The part of a rule's configuration that `Pod.role` needs."""

    @property
    def component_labels(self) -> Sequence[str]:
        """Labels that state the role of a pod."""

    @property
    def training_components(self) -> Sequence[str]:
        """Their values that mean training."""

    @property
    def inference_components(self) -> Sequence[str]:
        """Their values that mean inference."""

    @property
    def accelerators(self) -> Accelerators:
        """Definition of accelerators."""


class Container:
    """One container of a pod, of any type."""

    def __init__(self, node: Node, kind: ContainerKind, pod: Pod | None = None) -> None:
        self.node = node
        self.kind = kind
        self._pod = pod
        self._gpus: dict[Accelerators, list[tuple[str, Node, Node]]] = {}

    @property
    def name(self) -> str:
        """Name of the container, or its path if it has none."""
        return self.node["name"].text or self.node.path

    @cached_property
    def resources(self) -> Node:
        """Requests and limits; those of a TrainJob replace its runtime's as a whole."""
        if self.kind != "trainer":
            return self.node["resources"]
        declared = self.node["resourcesPerNode"]
        replaced = isinstance(declared.value, dict)
        return Node(declared.value, self.node, "resourcesPerNode") if replaced else declared

    def level(self, resource: str) -> Node:
        """Return the resources that state CPU or memory: its own, or else those of the pod."""
        shared = self._pod.spec["resources"] if self._pod is not None else Node(None)
        levels = [self.resources] if self.kind == "trainer" else [self.resources, shared]
        for level in levels:
            if any(not level[fields][resource].absent for fields in ("requests", "limits")):
                return level
        return self.resources

    @property
    def is_long_running(self) -> bool:
        """True if it runs next to the others, unlike init and ephemeral containers."""
        return self.kind in ("main", "sidecar", "trainer")

    def gpus(self, accelerators: Accelerators) -> list[tuple[str, Node, Node]]:
        """Return the GPU resources it names: (resource, request, limit), any of them absent."""
        if accelerators not in self._gpus:
            self._gpus[accelerators] = self._find_gpus(accelerators)
        return self._gpus[accelerators]

    def _find_gpus(self, accelerators: Accelerators) -> list[tuple[str, Node, Node]]:
        requests, limits = self.resources["requests"], self.resources["limits"]
        names: dict[str, None] = {}
        for fields in (requests, limits):
            for name, _ in fields.fields():
                if accelerators.includes(name):
                    names[name] = None
        return [(name, requests[name], limits[name]) for name in names]

    def gpu_claims(self, accelerators: Accelerators) -> list[Node]:
        """Return the names of the claims that it uses and that may contain GPUs."""
        return [
            use["name"]
            for use in self.resources["claims"].items()
            if self._pod is None or self._pod.may_claim_gpus(use["name"], accelerators)
        ]

    def wants_gpu(self, accelerators: Accelerators) -> bool:
        """Return whether it requests a GPU, correctly spelled or not."""
        for _, request, limit in self.gpus(accelerators):
            for amount in (request, limit):
                if amount.value is UNKNOWN:
                    return True
                if amount.present and quantity_or_none(amount.value) != 0:
                    return True
        return bool(self.gpu_claims(accelerators))


class Pod:
    """A pod specification with its surroundings."""

    def __init__(self, resource: Resource, spec: Node, trainer: bool = False) -> None:
        self.resource = resource
        self.spec = spec
        self._trainer = trainer
        self._roles: dict[tuple[Any, ...], Role] = {}

    @cached_property
    def metadata(self) -> Node:
        """Metadata of the template, or of the Pod itself."""
        holder = self.spec.parent
        return (holder if holder is not None else self.spec)["metadata"]

    @cached_property
    def containers(self) -> list[Container]:
        """All containers: main, init, sidecars (restartable init containers) and ephemeral."""
        if self._trainer:
            return [Container(self.spec, "trainer", self)]
        found = []
        for key, kind in _LISTS:
            for node in self.spec[key].items():
                sidecar = kind == "init" and node["restartPolicy"].value == "Always"
                found.append(Container(node, "sidecar" if sidecar else kind, self))
        return found

    @cached_property
    def volumes(self) -> Node:
        """The list of volumes."""
        return self.spec["volumes"]

    @cached_property
    def replicas(self) -> Decimal | None:
        """Number of such pods that the resource requests; None if unknown."""
        product = Decimal(1)
        for count in self.replica_counts():
            if not count.known:
                return None
            factor = quantity_or_none(count.value)
            product *= factor if factor is not None else 1
        return product

    def replica_counts(self) -> Iterator[Node]:
        """Return the numbers around the pod that multiply it, innermost first."""
        node = self.spec.parent
        while node is not None:
            for key in ("replicas", "parallelism"):
                if isinstance(node.value, dict) and node.value.get(key) is not None:
                    yield node[key]
            node = node.parent

    def volume(self, name: Node) -> Node | None:
        """Return the volume that a mount names, if it is declared."""
        for volume in self.volumes.items():
            if volume["name"].text == name.text and name.text:
                return volume
        return None

    @property
    def volume_names_known(self) -> bool:
        """Return whether a name that no volume has is really missing."""
        names = (volume["name"] for volume in self.volumes.items())
        return self.volumes.complete and all(name.known for name in names)

    def may_claim_gpus(self, name: Node, accelerators: Accelerators) -> bool:
        """Return whether one of its claims may contain GPUs; only the configuration denies it."""
        for claim in self.spec["resourceClaims"].items():
            if claim["name"].text == name.text:
                return accelerators.in_claim(self.claim_address(claim)) != 0
        return True

    def claim_address(self, claim: Node) -> str:
        """Return `namespace/name` of the ResourceClaim or template of an item of its claims."""
        name = claim["resourceClaimTemplateName"].text or claim["resourceClaimName"].text or ""
        return f"{self.resource.namespace or ''}/{name}"

    def gpu_containers(self, accelerators: Accelerators) -> list[Container]:
        """Return the containers that request a GPU."""
        return [container for container in self.containers if container.wants_gpu(accelerators)]

    def role(self, settings: RoleSettings) -> Role:
        """Return the role of the pod, as described at the top of this file."""
        key = (
            tuple(settings.component_labels),
            tuple(settings.training_components),
            tuple(settings.inference_components),
            settings.accelerators,
        )
        if key not in self._roles:
            self._roles[key] = self._find_role(settings)
        return self._roles[key]

    def _find_role(self, settings: RoleSettings) -> Role:
        kind, group = self.resource.kind.lower(), self.resource.group
        if group in _TRAINING_GROUPS or (group == "kubeflow.org" and kind in _KUBEFLOW_JOBS):
            return "training"
        for labels in (self.metadata["labels"], self.resource.labels):
            for label in settings.component_labels:
                component = labels[label].text
                if component in settings.training_components:
                    return "training"
                if component in settings.inference_components:
                    return "inference"
        if self.gpu_containers(settings.accelerators):
            ends = self.spec["restartPolicy"].value in ("Never", "OnFailure")
            if kind in _ENDING_KINDS or ends:
                return "training"
            if kind in _SERVING_KINDS:
                return "inference"
        return "other"


def find_pods(resource: Resource) -> list[Pod]:
    """Return every pod specification in a resource, whatever its kind and nesting."""
    if not resource.is_manifest or resource.kind.lower() in _NO_MANIFEST_KINDS:
        return []
    specs = {node.steps: node for node in _pod_specs(resource.root)}
    for node in _recorded_specs(resource):
        specs.setdefault(node.steps, node)
    pods = [Pod(resource, node) for node in specs.values()]
    trainer = resource.root["spec"]["trainer"]
    if resource.is_kind("trainer.kubeflow.org", "TrainJob") and isinstance(trainer.value, dict):
        pods.append(Pod(resource, trainer, trainer=True))
    return pods


def _recorded_specs(resource: Resource) -> Iterator[Node]:
    """Yield pod specifications by their place in the kind, since a patch may omit containers."""
    record = WORKLOAD_KINDS.get((resource.group, resource.kind.lower()))
    for path in record.pods if record is not None else ():
        for node in nodes_at(resource.root, path):
            if resource.is_patch or isinstance(node.value, dict):
                yield node


def _pod_specs(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node.value, dict):
            if any(key in node.value for key, _ in _LISTS):
                yield node
            children = [child for key, child in node.fields() if key != "status"]
        else:
            children = list(node.items())
        pending.extend(
            child for child in reversed(children) if isinstance(child.value, dict | list)
        )
