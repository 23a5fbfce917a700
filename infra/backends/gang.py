"""What every kind of job is built from: a gang of equal pods that start and fail together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from infra.manifests import ADOPTED, NOT_AWAITED, Manifest, compact
from infra.pods import Pod
from kube.names import GROUP_ANNOTATION, QUEUE_ANNOTATION, ROLE_LABEL, RUN_LABEL
from workload.exit_codes import BAD_INPUT

RENDEZVOUS_PORT: Final = 23456
"""Port of rank 0's rendezvous; also the default of Volcano's pytorch plugin."""

RUN_ANNOTATIONS: Final = {**NOT_AWAITED, **ADOPTED}

LEADER: Final = {ROLE_LABEL: "leader"}
WORKER: Final = {ROLE_LABEL: "worker"}
"""Labels that tell the pods apart in kinds where one starts the others."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pod that runs before or after the gang, once the steps in `after` have ended well."""

    name: str
    pod: Pod
    after: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A run: `nodes` pods made from `pod`, whose command a backend completes with the rendezvous.

    `pod.command` holds what torchrun is to start (`-m`, module, arguments), or where `own_command`
    says so a command that is left as it is. `leader` is the pod that starts the others, in kinds
    that have one. Times are seconds.
    """

    name: str
    namespace: str
    queue: str
    nodes: int
    processes: int
    pod: Pod
    retries: int
    own_command: bool = False
    min_nodes: int | None = None
    leader: Pod | None = None
    fatal_exit_codes: Sequence[int] = (BAD_INPUT,)
    success: str | None = None
    suspend: bool = False
    priority_class: str | None = None
    deadline_seconds: int | None = None
    ttl_seconds: int | None = None
    network_topology: Mapping[str, object] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    after: Sequence[str] = ()

    @property
    def selector(self) -> dict[str, str]:
        """The label that this run's pods have and no others."""
        return {RUN_LABEL: self.name}

    @property
    def fewest(self) -> int:
        """Pods that must find room together."""
        return self.min_nodes or self.nodes

    @property
    def is_elastic(self) -> bool:
        """Whether it may run with less pods than it could have."""
        return self.fewest < self.nodes


def metadata(gang: Gang, annotations: Mapping[str, str] | None = None) -> Manifest:
    """Metadata of an object that belongs to the run."""
    return {
        "name": gang.name,
        "namespace": gang.namespace,
        "labels": {k: v for k, v in gang.pod.labels.items() if k not in WORKER},
        "annotations": {**RUN_ANNOTATIONS, **(annotations or {})},
    }


def group_annotations(gang: Gang) -> dict[str, str]:
    """Annotations of pods that belong to the run's own PodGroup."""
    return {GROUP_ANNOTATION: gang.name, QUEUE_ANNOTATION: gang.queue}


def pod_group(gang: Gang, *, others: int = 0) -> Manifest:
    """The PodGroup of kinds that are not Volcano's own, with `others` pods beside the gang's."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata(gang),
        "spec": compact(
            {
                "minMember": gang.fewest + others,
                "queue": gang.queue,
                "priorityClassName": gang.priority_class,
                "networkTopology": dict(gang.network_topology),
            }
        ),
    }
