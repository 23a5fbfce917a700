"""Containers of pods: their resources, accelerators and claims."""

from __future__ import annotations

from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

from kube.accelerators import Accelerators, device_counts
from kube.quantities import quantity_or_none
from policies.pod_parts import ContainerKind
from policies.values import UNKNOWN, Node

if TYPE_CHECKING:
    from policies.workloads import Pod


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
