"""The role of each pod, which determines the rules that apply to the pod.

The roles are:

- `training`: pods or GPUs that work together; they need a queue, a gang and shared memory;
- `batch`: jobs with a single GPU, such as smoke tests;
- `serving`: servers, which need probes and graceful shutdown;
- `interactive`: notebooks and similar pods with a single GPU;
- `system`: pods without GPUs, unless the kind or a label assigns another role.

The registry of kinds defines which roles a kind allows and which one is its default. A label on the
pod template or on the resource selects one of these roles, unless the role is too lenient for the
pod: a pod that runs to completion is never `serving`, and if the kind can be `training`, pods with
several GPUs in total are neither `batch` nor `interactive`.

A label cannot exempt a pod from the rules that apply to every pod. Only the configuration can
exempt the pod, by naming its workload.

If the label is not known yet, the pod has no role-specific requirements during the preview.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol

from kube.accelerators import Accelerators
from kube.workloads.record import NO_RECORD, Role
from policies.counts import UNLIMITED, product
from policies.values import UNKNOWN, Unknown

if TYPE_CHECKING:
    from policies.workloads import Pod

_SMALL_ROLES: Final[tuple[Role, ...]] = ("batch", "interactive")


class RoleSettings(Protocol):
    """The part of a rule's configuration that `Pod.role` needs."""

    @property
    def component_labels(self) -> Sequence[str]:
        """Labels that determine the role of a pod."""

    @property
    def component_roles(self) -> Mapping[str, Role]:
        """Roles, keyed by the value of a label in `component_labels`."""

    @property
    def small_gpus(self) -> int:
        """Maximum total number of GPUs with which a workload may be `batch` or `interactive`."""

    @property
    def accelerators(self) -> Accelerators:
        """Definition of accelerators."""

    @property
    def role_key(self) -> tuple[Any, ...]:
        """All settings that determine a role, as a cache key."""


def role_of(pod: Pod, settings: RoleSettings) -> Role:
    """Return the role of a pod."""
    if pod.location.additional:
        return "system"
    record = pod.resource.record or NO_RECORD
    accelerators, small = settings.accelerators, settings.small_gpus
    requests_gpu = bool(pod.gpu_containers(accelerators))
    if pod.location.machine:
        requests_gpu = bool(pod.gpus(accelerators))
    roles = list(record.roles)
    runs_to_completion = record.ends
    if runs_to_completion is None:
        runs_to_completion = pod.spec["restartPolicy"].value in ("Never", "OnFailure")
    if runs_to_completion:
        roles = [role for role in roles if role != "serving"]
    if record.roles[0] == "batch":
        # The pods of the kind work independently, so only the GPUs of a single pod count.
        gpus = sum(pod.gpus(accelerators).values(), Decimal(0))
    elif record.completed:
        # Another object runs the pods and sets their number, so the number counts as unlimited.
        gpus = UNLIMITED
    else:
        gpus = _total_gpus(pod.siblings, accelerators)
    if requests_gpu and "training" in roles and gpus > small:
        roles = [role for role in roles if role not in _SMALL_ROLES]
    chosen = _role_from_labels(pod, settings)
    if chosen is UNKNOWN:
        return "system"
    if chosen in roles:
        return chosen
    if not requests_gpu and not record.always:
        return "system"
    return "batch" if record.ends is None and runs_to_completion and "batch" in roles else roles[0]


def _role_from_labels(pod: Pod, settings: RoleSettings) -> Role | Unknown | None:
    for labels in (pod.metadata["labels"], pod.resource.labels):
        for label in settings.component_labels:
            if labels[label].awaited:
                return UNKNOWN
            role = settings.component_roles.get(labels[label].text or "")
            if role is not None:
                return role
    return None


def _total_gpus(pods: Sequence[Pod], accelerators: Accelerators) -> Decimal:
    """Return the total number of GPUs of the pods; GPUs in claims count as unlimited."""
    total = Decimal(0)
    for pod in pods:
        if pod.gpu_containers(accelerators):
            maximum = pod.max_replicas()
            # If nothing limits the number of pods, the requested number determines the role.
            maximum = pod.replicas if maximum == UNLIMITED else maximum
            gpus = sum(pod.gpus(accelerators).values(), Decimal(0))
            claimed = any(container.gpu_claims(accelerators) for container in pod.containers)
            number = product([UNLIMITED if claimed else gpus, maximum])
            total += gpus if number is None else number
    return total
