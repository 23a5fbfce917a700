"""The pods of a resource, and the role of each pod.

**The role of a pod** decides which rules apply to it:

- `training`: pods or GPUs that work together; they need a queue, a gang and shared memory;
- `batch`: jobs of a single GPU, such as smoke tests;
- `serving`: servers, which need probes and a graceful end;
- `interactive`: notebooks and similar pods of a single GPU;
- `system`: pods without GPUs that no label assigns to another role.

The registry of kinds states which roles a kind allows and which one is its default. A label on the
pod template or on the resource chooses among them, but never a role that asks for less than the
GPUs of the pod need: where the kind can be `training`, a pod of several GPUs is neither `batch` nor
`interactive`, and a pod that runs to completion does not serve.

A label cannot exempt a pod from the rules for every pod. Only workloads named in the configuration
have privileges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Protocol

from kube.accelerators import Accelerators
from kube.quantities import quantity_or_none
from kube.workloads.record import Pods, Role, WorkloadKind, steps
from policies.places import (
    UNLIMITED,
    ContainerKind,
    JoinedNode,
    LayeredNode,
    containers_at,
    counted,
    devices_at,
    images_at,
    largest,
    requested,
    structural_counts,
    structural_specs,
)
from policies.resources import Resource
from policies.values import UNKNOWN, Key, Node, nodes_at

_UNRECORDED: Final = WorkloadKind(group="", kind="")
_ANYWHERE: Final = Pods(at="")
_SMALL: Final[tuple[Role, ...]] = ("batch", "interactive")


class RoleSettings(Protocol):
    """The part of a rule's configuration that `Pod.role` needs."""

    @property
    def component_labels(self) -> Sequence[str]:
        """Labels that state the role of a pod."""

    @property
    def component_roles(self) -> Mapping[str, Role]:
        """Roles by value of these labels."""

    @property
    def small_gpus(self) -> int:
        """Number of GPUs up to which a workload may be batch or interactive."""

    @property
    def accelerators(self) -> Accelerators:
        """Definition of accelerators."""

    @property
    def role_key(self) -> tuple[Any, ...]:
        """All of them, as a key of a cache."""


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
        """Requests and limits."""
        return self.node["resources"]

    def level(self, resource: str) -> Node:
        """Return the resources that state CPU or memory: its own, or else those of the pod."""
        shared = self._pod.spec["resources"] if self._pod is not None else Node(None)
        # Of a pod that is partial, what replaces the other part is all there is.
        alone = self.node.partial and not self.resources.partial
        for level in [self.resources] if alone else [self.resources, shared]:
            if any(not level[fields][resource].absent for fields in ("requests", "limits")):
                return level
        return self.resources

    @property
    def is_long_running(self) -> bool:
        """True if it runs next to the others, unlike init and ephemeral containers."""
        return self.kind in ("main", "sidecar")

    @property
    def is_init_sidecar(self) -> bool:
        """True if it starts among the init containers and goes on next to the others."""
        return self.kind == "sidecar" and "initContainers" in self.node.steps

    def gpu_counts(self, accelerators: Accelerators) -> dict[str, Decimal]:
        """Return the GPUs that it requests by resource."""
        return {
            name: quantity_or_none((request if limit.absent else limit).value) or Decimal(0)
            for name, request, limit in self.gpus(accelerators)
        }

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
    """A pod specification with its surroundings.

    `place` is the record of its place, and `siblings` are all pods of the resource.
    """

    def __init__(self, resource: Resource, spec: Node, place: Pods = _ANYWHERE) -> None:
        self.resource = resource
        self.spec = spec
        self.place = place
        self.siblings: Sequence[Pod] = (self,)
        self._roles: dict[tuple[Any, ...], Role] = {}

    @cached_property
    def steps(self) -> tuple[Key, ...]:
        """The keys from the object that states the pod down to its specification."""
        return self.spec.steps[len(self.resource.root.steps) :]

    @cached_property
    def metadata(self) -> Node:
        """Metadata of the template, or of the Pod itself."""
        if self.place.metadata:
            return counted(self.resource.root, self.place.metadata, self.steps)
        holder = self.spec.parent
        found = (holder if holder is not None else self.spec)["metadata"]
        return Node(found.value, found.parent, found.key, partial=True) if self.partial else found

    @property
    def partial(self) -> bool:
        """True if the rest of the pod is stated elsewhere."""
        return self.spec.partial

    @cached_property
    def containers(self) -> list[Container]:
        """All containers: main, init, sidecars (restartable init containers) and ephemeral."""
        found = containers_at(self.spec, self.place)
        return [Container(node, kind, self) for node, kind in found]

    @cached_property
    def images(self) -> list[Node]:
        """Images that it names outside of its containers and volumes."""
        return [image for image in images_at(self.spec, self.place) if image.present]

    @cached_property
    def volumes(self) -> Node:
        """The list of volumes."""
        if isinstance(self.spec, LayeredNode):
            stated = self.spec.every("volumes")
            if len(stated) > 1:
                return JoinedNode(stated)
        return self.spec["volumes"]

    @cached_property
    def replicas(self) -> Decimal | None:
        """Number of such pods that the resource requests; None if unknown."""
        if self.place is _ANYWHERE:
            return self._structural_replicas()
        root, steps = self.resource.root, self.steps
        return _product(requested(root, count, steps) for count in self.place.count)

    def replicas_within(self, job: str) -> Decimal | None:
        """Return how many of them one of several jobs at a path requests; None if unknown."""
        if not self.place.at.startswith(f"{job}."):
            return self.replicas
        counts = [
            count
            for count in self.place.count
            if not count.paths or count.paths[0].startswith(f"{job}.")
        ]
        root, steps = self.resource.root, self.steps
        return _product(requested(root, count, steps) for count in counts)

    def most(self, scaled: Decimal | None = None) -> Decimal | None:
        """Return the largest number of such pods that may ever run; None if unknown.

        `scaled` is the number of replicas up to which an autoscaler may go.
        """
        if self.place is _ANYWHERE:
            return self._structural_replicas()
        root, steps = self.resource.root, self.steps
        field = (self.resource.record or _UNRECORDED).scaled
        return _product(
            scaled if scaled is not None and field in count.paths else largest(root, count, steps)
            for count in self.place.count
        )

    def _structural_replicas(self) -> Decimal | None:
        counts = list(structural_counts(self.spec))
        if not all(count.known for count in counts):
            return None
        return _product(quantity_or_none(count.value) or Decimal(1) for count in counts)

    def replica_counts(self) -> Iterator[Node]:
        """Return the numbers that multiply the pod, which must be integers."""
        if self.place is _ANYWHERE:
            yield from structural_counts(self.spec)
            return
        for count in self.place.count:
            for path in (*count.paths, *count.maxima) if not count.words else ():
                if "annotations" not in path:
                    yield counted(self.resource.root, path, self.steps)

    @cached_property
    def _volumes_by_name(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for volume in self.volumes.items():
            if name := volume["name"].text:
                found.setdefault(name, volume)
        return found

    def volume(self, name: Node) -> Node | None:
        """Return the volume that a mount names, if it is declared."""
        return self._volumes_by_name.get(name.text or "")

    @cached_property
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

    def gpus(self, accelerators: Accelerators) -> dict[str, Decimal]:
        """Return the GPUs of one pod by resource, as the scheduler counts them.

        Init containers run one after the other before the main ones and next to the sidecars that
        precede them. Claims count as unlimited, because other objects state their devices.
        """
        running: dict[str, Decimal] = {}
        peak: dict[str, Decimal] = {}
        for container in sorted(self.containers, key=_start_order):
            own = container.gpu_counts(accelerators)
            if container.is_long_running:
                running = _sum(running, own)
            peak = _largest_of(peak, running if container.is_long_running else _sum(running, own))
        return _largest_of(peak, self._machine_gpus(accelerators))

    def _machine_gpus(self, accelerators: Accelerators) -> dict[str, Decimal]:
        devices = devices_at(self.spec, self.place.devices) if self.place.machine else {}
        return {
            name: quantity_or_none(count) or Decimal(0)
            for name, count in devices.items()
            if accelerators.includes(name)
        }

    def role(self, settings: RoleSettings) -> Role:
        """Return the role of the pod, as described at the top of this file."""
        key = settings.role_key
        if key not in self._roles:
            self._roles[key] = self._find_role(settings)
        return self._roles[key]

    def _find_role(self, settings: RoleSettings) -> Role:
        record = self.resource.record or _UNRECORDED
        accelerators, small = settings.accelerators, settings.small_gpus
        wants_gpu = bool(self.gpu_containers(accelerators))
        roles = list(record.roles)
        ends = record.ends
        if ends is None:
            ends = self.spec["restartPolicy"].value in ("Never", "OnFailure")
        if ends:
            roles = [role for role in roles if role != "serving"]
        # Where batch is the default, each pod works on its own.
        together = _total(self.siblings, accelerators)
        if record.roles[0] == "batch":
            together = sum(self.gpus(accelerators).values(), Decimal(0))
        if wants_gpu and "training" in roles and together > small:
            roles = [role for role in roles if role not in _SMALL]
        chosen = self._labelled(settings)
        if chosen in roles:
            return chosen
        if not wants_gpu and not record.always:
            return "system"
        return "batch" if record.ends is None and ends and "batch" in roles else roles[0]

    def _labelled(self, settings: RoleSettings) -> Role | None:
        for labels in (self.metadata["labels"], self.resource.labels):
            for label in settings.component_labels:
                role = settings.component_roles.get(labels[label].text or "")
                if role is not None:
                    return role
        return None


def _total(pods: Sequence[Pod], accelerators: Accelerators) -> Decimal:
    """Return the number of GPUs of pods; those in claims count as unlimited."""
    total = Decimal(0)
    for pod in pods:
        if pod.gpu_containers(accelerators):
            most = pod.most()
            # A role depends on what is requested if nothing limits how often.
            most = pod.replicas if most == UNLIMITED else most
            own = sum(pod.gpus(accelerators).values(), Decimal(0))
            claimed = any(container.gpu_claims(accelerators) for container in pod.containers)
            number = _product(iter([UNLIMITED if claimed else own, most]))
            total += own if number is None else number
    return total


def _start_order(container: Container) -> int:
    """Return the order of start: init containers and sidecars as listed, then all others."""
    return 0 if container.kind == "init" or container.is_init_sidecar else 1


def _sum(first: Mapping[str, Decimal], second: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = {**first, **second}
    return {name: first.get(name, Decimal(0)) + second.get(name, Decimal(0)) for name in names}


def _largest_of(first: Mapping[str, Decimal], second: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = {**first, **second}
    return {name: max(first.get(name, Decimal(0)), second.get(name, Decimal(0))) for name in names}


def _product(factors: Iterator[Decimal | None]) -> Decimal | None:
    product = Decimal(1)
    for factor in factors:
        if factor is None:
            return None
        product = product * factor if product and factor else Decimal(0)
    return product


def find_pods(resource: Resource) -> list[Pod]:
    """Return every pod specification in a resource, whatever its kind and nesting."""
    return [pod for pod in find_all_pods(resource) if not pod.place.machine]


def find_all_pods(resource: Resource) -> list[Pod]:
    """Return the pod specifications of a resource, and what else requests its devices."""
    record = resource.record or _UNRECORDED
    if not resource.is_manifest or "" in record.patterns:
        return []
    pods = list(_recorded(resource, record))
    known = {pod.spec.steps for pod in pods if not pod.place.machine}
    listed = {c.node.steps for pod in pods if pod.place.containers for c in pod.containers}
    embedded = (*record.patterns, *record.objects)
    for node in structural_specs(resource.root, embedded):
        if node.steps not in known and not _is_listed(node, listed):
            pods.append(Pod(resource, node))
    for pod in pods:
        pod.siblings = pods
    return pods


def _is_listed(spec: Node, listed: set[tuple[Any, ...]]) -> bool:
    """Return whether all containers of what looks like a pod belong to a recorded pod."""
    containers = [node for node, _ in containers_at(spec, _ANYWHERE)]
    return bool(containers) and all(node.steps in listed for node in containers)


def _recorded(resource: Resource, record: WorkloadKind) -> Iterator[Pod]:
    seen = set()
    for place in record.pods:
        for node in nodes_at(resource.root, steps(place.at)):
            if node.steps not in seen or place.machine:
                pod = _pod_at(resource, node, place)
                if pod is not None:
                    seen.add(node.steps)
                    yield pod


def _pod_at(resource: Resource, node: Node, place: Pods) -> Pod | None:
    """Return the pod at a place; only a patch or a pod specification may have no containers."""
    if not isinstance(node.value, dict):
        return Pod(resource, node, place) if resource.is_patch and not place.containers else None
    partial = resource.is_partial or (place.partial and "containers" not in node.value)
    own = node.steps[len(resource.root.steps) :]
    stated = [counted(resource.root, path, own) for path in place.defaults]
    defaults = [default for default in stated if isinstance(default.value, dict)]
    if defaults:
        node = LayeredNode(node, defaults, partial, place.inherited)
    elif partial != node.partial:
        node = Node(node.value, node.parent, node.key, partial)
    pod = Pod(resource, node, place)
    return None if place.containers and not pod.containers else pod
