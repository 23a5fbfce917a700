"""The pods of a resource: containers, volumes, GPUs, and the number of pods that can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from kube.accelerators import Accelerators, device_counts
from kube.quantities import quantity_or_none
from kube.workloads.record import NO_RECORD, Pods, Role, steps
from policies.counts import (
    copies,
    product,
    requested,
    structural_counts,
    upper_bound,
    value_near_pod,
    with_surge,
)
from policies.pod_parts import (
    ContainerKind,
    JoinedNode,
    LayeredNode,
    containers_at,
    devices_at,
    images_at,
)
from policies.resources import Resource
from policies.roles import RoleSettings, role_of
from policies.values import UNKNOWN, Key, Node, nodes_at

ANYWHERE: Final = Pods(at="")
"""Location of a pod specification that the registry does not list."""


class Container:
    """A container of any type in a pod."""

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
        """Requests and limits of the container."""
        return self.node["resources"]

    def effective_resources(self, resource: str) -> Node:
        """Return the container's resources, or the pod's if only the pod sets `resource`."""
        shared = self._pod.spec["resources"] if self._pod is not None else Node(None)
        # If the pod is only partially known, but the `resources` of this container are complete,
        # they override everything that is defined elsewhere, including the resources of the pod.
        alone = self.node.partial and not self.resources.partial
        for resources in [self.resources] if alone else [self.resources, shared]:
            if any(not resources[fields][resource].absent for fields in ("requests", "limits")):
                return resources
        return self.resources

    @property
    def is_long_running(self) -> bool:
        """True if the container runs alongside the others, unlike init and ephemeral containers."""
        return self.kind in ("main", "sidecar")

    @property
    def is_init_sidecar(self) -> bool:
        """True if the container is an init container that keeps running as a sidecar."""
        return self.kind == "sidecar" and "initContainers" in self.node.steps

    def gpu_counts(self, accelerators: Accelerators) -> dict[str, Decimal]:
        """Map GPU resources to the numbers of devices that the container requests."""
        return device_counts(
            {
                name: quantity_or_none((request if limit.absent else limit).value) or Decimal(0)
                for name, request, limit in self.gpus(accelerators)
            }
        )

    def gpus(self, accelerators: Accelerators) -> list[tuple[str, Node, Node]]:
        """Return (resource, request, limit) per GPU resource; request or limit may be absent."""
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
        """Return the claims that the container uses and that may contain GPUs."""
        claims = [
            use["name"]
            for use in self.resources["claims"].items()
            if self._pod is None or self._pod.may_claim_gpus(use["name"], accelerators)
        ]
        if self._pod is None or not self._pod.added_claims:
            return claims
        is_main = self.node.steps == self._pod.spec.steps
        return [*claims, *(self._pod.added_gpu_claims(accelerators) if is_main else ())]

    def requests_gpu(self, accelerators: Accelerators) -> bool:
        """Return whether the container requests a GPU, even if the amount is invalid."""
        for _, request, limit in self.gpus(accelerators):
            for amount in (request, limit):
                if amount.value is UNKNOWN:
                    return True
                if amount.present and quantity_or_none(amount.value) != 0:
                    return True
        return bool(self.gpu_claims(accelerators))


class Pod:
    """A pod specification and its context.

    `location` is the entry for the specification's path in the registry of workload kinds, and
    `siblings` are all pods of the resource, including this one.
    """

    def __init__(self, resource: Resource, spec: Node, location: Pods = ANYWHERE) -> None:
        self.resource = resource
        self.spec = spec
        self.location = location
        self.siblings: Sequence[Pod] = (self,)
        self._roles: dict[tuple[Any, ...], Role] = {}

    @cached_property
    def steps(self) -> tuple[Key, ...]:
        """Path of the pod specification, relative to the root of the resource."""
        return self.spec.steps[len(self.resource.root.steps) :]

    @cached_property
    def metadata(self) -> Node:
        """Metadata of the pod template, or of the Pod itself."""
        if self.location.metadata:
            return value_near_pod(self.resource.root, self.location.metadata, self.steps)
        parent = self.spec.parent
        found = (parent if parent is not None else self.spec)["metadata"]
        return Node(found.value, found.parent, found.key, partial=True) if self.partial else found

    @cached_property
    def selectable_labels(self) -> Node:
        """Labels of the pod that selectors can match, including those that its controller adds."""
        labels = self.metadata["labels"]
        own = {} if labels.absent else labels.value
        if not (self.location.labels and isinstance(own, dict)):
            return labels
        name = self.resource.name
        added = {key: text.replace("{name}", name) for key, text in self.location.labels.items()}
        return Node({**own, **added}, labels.parent, labels.key, labels.partial)

    def annotations(self) -> Iterator[tuple[str, Node]]:
        """Yield the annotations of the pod, including those that its controller copies to it."""
        return self._metadata_fields("annotations")

    def labels(self) -> Iterator[tuple[str, Node]]:
        """Yield the labels of the pod, including those that its controller copies to it."""
        return self._metadata_fields("labels")

    def _metadata_fields(self, key: str) -> Iterator[tuple[str, Node]]:
        root, steps = self.resource.root, self.steps
        copied = (value_near_pod(root, path, steps) for path in self.location.copied)
        for metadata in (self.metadata, *copied):
            yield from metadata[key].fields()

    @cached_property
    def priorities(self) -> list[Node]:
        """Fields that set a priority or a priority class.

        The pod's own fields come first, then those that the workload kind defines elsewhere.
        """
        root, steps = self.resource.root, self.steps
        others = (value_near_pod(root, path, steps) for path in self.location.priority)
        return [self.spec["priorityClassName"], self.spec["priority"], *others]

    @property
    def priority_classes(self) -> list[Node]:
        """The fields that name a priority class; if none is set, only the pod's own field."""
        class_name, _, *others = self.priorities
        configured = [field for field in (class_name, *others) if field.text or not field.known]
        return configured or [class_name]

    @property
    def partial(self) -> bool:
        """True if the rest of the pod is defined elsewhere."""
        return self.spec.partial

    @cached_property
    def containers(self) -> list[Container]:
        """All containers: main, init, sidecar and ephemeral.

        Restartable init containers are sidecars.
        """
        nodes = containers_at(self.spec, self.location)
        return [Container(node, kind, self) for node, kind in nodes]

    @cached_property
    def images(self) -> list[Node]:
        """Images that the pod specifies outside of its containers and volumes."""
        return [image for image in images_at(self.spec, self.location) if not image.absent]

    @cached_property
    def volumes(self) -> Node:
        """The list of volumes."""
        if isinstance(self.spec, LayeredNode):
            layers = self.spec.every("volumes")
            if len(layers) > 1:
                return JoinedNode(layers)
        return self.spec["volumes"]

    @cached_property
    def replicas(self) -> Decimal | None:
        """Number of pods that the resource requests for this specification; None if unknown."""
        if self.location is ANYWHERE:
            return self._structural_replicas()
        root, steps = self.resource.root, self.steps
        return product(requested(root, count, steps) for count in self.location.count)

    @property
    def groups(self) -> Decimal | None:
        """Number of replicas (groups with a leader, or single pods); None if unknown."""
        if self.location is ANYWHERE:
            return self.replicas
        root, steps = self.resource.root, self.steps
        counts = [count for count in self.location.count if not count.less_with]
        return product(requested(root, count, steps) for count in counts)

    @property
    def has_leader(self) -> bool:
        """True if another pod of the same replica is the leader, which receives the requests."""
        root, steps = self.resource.root, self.steps
        return any(
            count.less_with and value_near_pod(root, count.less_with, steps).present
            for count in self.location.count
        )

    def replicas_within(self, job: str) -> Decimal | None:
        """Return the number of pods that one job requests for this specification; None if unknown.

        `job` is the path of the job, or of each job, in the object, such as
        `spec.replicatedJobs.*.templateSpec`.
        """
        if not self.location.at.startswith(f"{job}."):
            return self.replicas
        counts = [
            count
            for count in self.location.count
            if not count.paths or count.paths[0].startswith(f"{job}.")
        ]
        root, steps = self.resource.root, self.steps
        return product(requested(root, count, steps) for count in counts)

    def max_replicas(
        self, scaled: Mapping[str, Decimal] | None = None, *, surge: bool = False
    ) -> Decimal | None:
        """Return the maximum number of pods that can run at the same time; None if unknown.

        `scaled` maps parts of the resource to the maximum number of replicas that an autoscaler
        sets. With `surge`, the additional pods of a rolling update are included.
        """
        if self.location is ANYWHERE:
            return self._structural_replicas()
        root, steps = self.resource.root, self.steps
        record = self.resource.record or NO_RECORD
        rollout = record.rollout if surge else None
        factors: list[Decimal | None] = [] if rollout is None else [copies(root, rollout)]
        for count in self.location.count:
            is_scaled = record.scaled in count.paths
            part = _part_name(value_near_pod(root, count.part, steps)) if count.part else ""
            names = (part, part.lower()) if scaled and (is_scaled or part) else ()
            limit = next((scaled[name] for name in names if scaled and name in scaled), None)
            number = upper_bound(root, count, steps) if limit is None else limit
            if is_scaled and rollout is not None and number is not None:
                number = with_surge(root, rollout, number)
            if count.rollout is not None and surge and number is not None:
                number = with_surge(root, count.rollout, number, steps)
                number *= copies(root, count.rollout)
            factors.append(number)
        return product(factors)

    def _structural_replicas(self) -> Decimal | None:
        counts = list(structural_counts(self.spec))
        if not all(count.known for count in counts):
            return None
        return product(quantity_or_none(count.value) or Decimal(1) for count in counts)

    def replica_counts(self) -> Iterator[Node]:
        """Yield the fields that determine the number of pods; they must be integers."""
        if self.location is ANYWHERE:
            yield from structural_counts(self.spec)
            return
        for count in self.location.count:
            for path in (*count.paths, *count.maxima) if not count.words else ():
                if "annotations" not in path:
                    yield value_near_pod(self.resource.root, path, self.steps)

    @cached_property
    def _volumes_by_name(self) -> dict[str, Node]:
        volumes: dict[str, Node] = {}
        for volume in self.volumes.items():
            if name := volume["name"].text:
                volumes.setdefault(name, volume)
        return volumes

    def volume(self, name: Node) -> Node | None:
        """Return the volume that a mount refers to by `name`, or None."""
        return self._volumes_by_name.get(name.text or "")

    @cached_property
    def volume_names_known(self) -> bool:
        """True if all volume names are known, so a name that is not listed is undeclared."""
        names = (volume["name"] for volume in self.volumes.items())
        return self.volumes.complete and all(name.known for name in names)

    def may_claim_gpus(self, name: Node, accelerators: Accelerators) -> bool:
        """Return whether the pod's claim `name` may contain GPUs. An undeclared claim may."""
        for claim in self.spec["resourceClaims"].items():
            if claim["name"].text == name.text:
                return accelerators.in_claim(self.claim_address(claim)) != 0
        return True

    @cached_property
    def added_claims(self) -> list[Node]:
        """The claims that the pod's controller adds to those in `resourceClaims`."""
        added = self.location.claims
        nodes = nodes_at(self.spec, steps(added.at)) if added is not None else ()
        return [Node(n.value, n.parent, n.key) for n in nodes if isinstance(n.value, dict)]

    def added_gpu_claims(self, accelerators: Accelerators) -> list[Node]:
        """Return the added claims that may contain GPUs."""
        found = []
        for claim in self.added_claims:
            created = self.created_devices(claim)
            if any(accelerators.includes_class(device_class) for device_class, _ in created) or (
                not created and accelerators.in_claim(self.claim_address(claim)) != 0
            ):
                found.append(claim)
        return found

    def created_devices(self, claim: Node) -> list[tuple[str, Node]]:
        """Return the device classes and devices of a claim that the pod's controller creates."""
        added = self.location.claims
        if added is None:
            return []
        return [
            (device["deviceClassName"].text or added.device_class, device)
            for device in nodes_at(claim, steps(added.devices))
            if isinstance(device.value, dict)
        ]

    def claim_address(self, claim: Node) -> str:
        """Return `namespace/name` of the ResourceClaim or template that a pod's claim refers to."""
        name = claim["resourceClaimTemplateName"].text or claim["resourceClaimName"].text or ""
        return f"{self.resource.namespace or ''}/{name}"

    def gpu_containers(self, accelerators: Accelerators) -> list[Container]:
        """Return the containers that request a GPU."""
        return [container for container in self.containers if container.requests_gpu(accelerators)]

    def gpus(self, accelerators: Accelerators) -> dict[str, Decimal]:
        """Map GPU resources to the number of devices that the scheduler counts for one pod.

        Init containers run one after the other, before the main containers and alongside the
        sidecars that precede them. Devices in claims are not included, because other objects
        define them.
        """
        running: dict[str, Decimal] = {}
        peak: dict[str, Decimal] = {}
        for container in sorted(self.containers, key=_start_order):
            amounts = container.gpu_counts(accelerators)
            if container.is_long_running:
                running = _sum(running, amounts)
            peak = _largest_of(
                peak, running if container.is_long_running else _sum(running, amounts)
            )
        return _largest_of(peak, self._machine_gpus(accelerators))

    def _machine_gpus(self, accelerators: Accelerators) -> dict[str, Decimal]:
        devices = devices_at(self.spec, self.location.devices) if self.location.machine else {}
        return {
            name: quantity_or_none(count) or Decimal(0)
            for name, count in devices.items()
            if accelerators.includes(name)
        }

    def role(self, settings: RoleSettings) -> Role:
        """Return the role of the pod (see `policies.roles`)."""
        key = settings.role_key
        if key not in self._roles:
            self._roles[key] = role_of(self, settings)
        return self._roles[key]


def _part_name(node: Node) -> str:
    """Return the name of an autoscaled part, given the value at the path `Count.part`."""
    return str(node.key) if isinstance(node.value, dict) else node.text or ""


def _start_order(container: Container) -> int:
    """Return a sort key that places init containers, even restartable ones, before all others."""
    return 0 if container.kind == "init" or container.is_init_sidecar else 1


def _sum(first: Mapping[str, Decimal], second: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = {**first, **second}
    return {name: first.get(name, Decimal(0)) + second.get(name, Decimal(0)) for name in names}


def _largest_of(first: Mapping[str, Decimal], second: Mapping[str, Decimal]) -> dict[str, Decimal]:
    names = {**first, **second}
    return {name: max(first.get(name, Decimal(0)), second.get(name, Decimal(0))) for name in names}
