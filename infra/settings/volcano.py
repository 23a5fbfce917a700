"""Volcano: its chart, scheduler, controllers, queues and priority classes."""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from infra.settings.types import (
    ChartRepository,
    ChartVersion,
    DnsLabel,
    DnsName,
    PositiveInt,
    Quantity,
    ResourceName,
    Settings,
    check_mappings,
)
from kube.names import SYSTEM_PRIORITY_CLASSES
from kube.quantities import parse_quantity

Eviction = Literal["none", "surplus", "gangs"]
"""Pods that may be evicted: none, only surplus pods (pods of elastic jobs above their minimum), or
any pod. Evicting one pod of a gang terminates the whole gang, and the job returns to its queue.
"""

FIRST_WITH_FLOWS: Final = (1, 10)
"""First release whose chart contains JobFlows, which run the steps of a job."""
FIRST_WITH_TOPOLOGY: Final = (1, 12)
"""First release that supports network topology constraints for jobs."""

OVERCOMMIT: Final = 1.2
"""Volcano's default overcommit factor."""


class SlaSettings(Settings):
    """Limit on a job's waiting time."""

    longest_wait_seconds: PositiveInt = Field(
        description="Waiting time (s) after which a job is admitted even if the cluster is "
        "full. A Volcano Job's `sla-waiting-time` annotation overrides this time."
    )
    reserve: bool = Field(
        default=True,
        description="After longest_wait_seconds, reserve resources for the job as they become "
        "free, until its gang fits.",
    )


class SchedulerSettings(Settings):
    """Scheduler policy, from which Volcano's configuration file is generated."""

    share: Literal["proportion", "capacity"] = Field(
        default="proportion",
        description="Queue shares: proportion divides the cluster by the queues' "
        "`weight`; capacity gives each queue the resources in `deserved`, and supports parent "
        "queues.",
    )
    placement: Literal["binpack", "spread"] = Field(
        default="binpack",
        description="binpack fills one node before it uses the next, which keeps whole nodes free "
        "for gangs. spread prefers the nodes with the most free CPU and memory.",
    )
    pack_by: dict[ResourceName, PositiveInt] | None = Field(
        default=None,
        description="Resources that binpack considers, with their weights. null means the GPU "
        "resource of the stack with weight 10, and cpu and memory with weight 1.",
    )
    preempt: Eviction = Field(
        default="none",
        description="Preemption of lower-priority jobs in the same queue: `surplus` "
        "evicts only the pods of elastic jobs above their minimum; `gangs` evicts any pod, which "
        "restarts that pod's job.",
    )
    reclaim: Eviction = Field(
        default="none",
        description="Eviction of pods from queues above their share in favor of queues below "
        "theirs. Same values as `preempt`.",
    )
    enqueue: bool | None = Field(
        default=None,
        description="Keep jobs queued, without pods, while the cluster has no free capacity "
        "for them. The default is true if `preempt` and `reclaim` are none, and false "
        "otherwise, because a queued job neither preempts nor reclaims.",
    )
    overcommit: float | None = Field(
        default=None,
        ge=1,
        description="Limit on the total requests of admitted jobs, as a multiple of the cluster's "
        f"resources. The default is {OVERCOMMIT} if jobs are queued (`enqueue`); otherwise, "
        "there is no limit.",
    )
    priority: bool = Field(default=True, description="Order the jobs of a queue by priority.")
    drf: bool = Field(
        default=True,
        description="Order jobs of equal priority by dominant resource share, the smallest first.",
    )
    sla: SlaSettings | None = Field(
        default=None, description="Limit on the waiting time. If null, there is none."
    )
    backfill: bool = Field(
        default=True, description="Place pods without resource requests wherever they fit."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._contradictions()):
            raise ValueError("contradicts itself: " + "; ".join(problems))
        return self

    @property
    def evicts(self) -> bool:
        """True if running pods may be evicted in favor of other jobs."""
        return self.preempt != "none" or self.reclaim != "none"

    @property
    def enqueues(self) -> bool:
        """True if jobs stay queued, without pods, until there is probably free capacity."""
        return not self.evicts if self.enqueue is None else self.enqueue

    def _contradictions(self) -> Iterator[str]:
        if self.preempt != "none" and not self.priority:
            yield (
                f"preempt is {self.preempt}, but priority is false, and only jobs of lower "
                "priority are preempted: set priority: true or preempt: none"
            )
        if self.evicts and self.enqueue:
            yield (
                "enqueue is true, but a queued job neither preempts nor reclaims: "
                "leave enqueue out, or set preempt: none and reclaim: none"
            )
        if self.overcommit is not None and not self.enqueues:
            yield (
                f"overcommit is {self.overcommit:g}, but no job is queued (enqueue is false, or "
                "preempt or reclaim is set): leave it out"
            )
        if self.sla is not None and not self.sla.reserve and not self.enqueues:
            yield "sla has no effect if no job is queued and reserve is false: leave it out"
        if self.placement == "spread" and "pack_by" in self.model_fields_set:
            yield "pack_by applies only to placement binpack, but placement is spread: remove it"


class ControllersSettings(Settings):
    """Rate limits and concurrency of the controllers that create the pods and PodGroups of jobs.

    The controllers send about thirty requests for a job of eight pods. At Volcano's default of 50
    requests per second, they create about twelve pods per second (`make bench-scale`).
    """

    requests_per_second: PositiveInt = Field(
        default=1000,
        description="Maximum number of requests per second to the API server. The API server's "
        "own rate limits still apply.",
    )
    burst: PositiveInt = Field(default=2000, description="Maximum number of requests in a burst.")
    workers: PositiveInt = Field(
        default=10, description="Number of worker threads for jobs. PodGroups get the same number."
    )

    def chart_values(self) -> dict[str, Any]:
        """Return the values for the chart's `custom` key. Charts before 1.11 ignore them."""
        return {
            "controller_kube_api_qps": self.requests_per_second,
            "controller_kube_api_burst": self.burst,
            "controller_worker_threads": self.workers,
            "controller_worker_threads_for_podgroup": self.workers,
        }


OVERRIDE: Final = "scheduler_config_override"
"""Key in the chart's `custom` values that replaces the scheduler's configuration."""

ResourceAmounts = dict[ResourceName, Quantity]

QueueName = Annotated[DnsName, Field(max_length=63)]
"""The name of a queue. Volcano uses it as a label value, which has at most 63 characters."""

UNLISTED_AMOUNT: Final = "0 (not listed)"
"""Amount that Volcano's webhooks assume for a resource that a queue's limit does not list."""


class QueueSettings(Settings):
    """A queue of jobs, with its share of the cluster."""

    weight: PositiveInt = Field(
        default=1,
        description="Share of the cluster relative to other queues, if `share` is proportion.",
    )
    priority: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Queues with a higher priority are served first.",
    )
    reclaimable: bool = Field(
        default=True,
        description="Other queues may reclaim resources that this queue uses above its share.",
    )
    capability: ResourceAmounts = Field(default={}, description="Maximum resources of the queue.")
    deserved: ResourceAmounts = Field(
        default={},
        description="Resources that the queue can always reclaim, if `share` is capacity.",
    )
    guarantee: ResourceAmounts = Field(
        default={}, description="Resources that are reserved for the queue."
    )
    parent: DnsName | None = Field(
        default=None,
        description="Parent queue, if `share` is capacity. Jobs can wait only in queues "
        "without child queues.",
    )

    @property
    def deserved_at_least(self) -> ResourceAmounts:
        """The amounts in `deserved`, and guarantees for resources that `deserved` does not list."""
        return {**self.guarantee, **self.deserved}

    @model_validator(mode="after")
    def _amounts_ascend(self) -> Self:
        ascending = ("guarantee", "deserved", "capability")
        for low, high in itertools.combinations(ascending, 2):
            upper = getattr(self, high)
            for resource, amount in getattr(self, low).items():
                # If `deserved` does not list a resource, the queue deserves its guarantee.
                limited = upper and (high == "capability" or resource in upper)
                if limited and parse_quantity(amount) > parse_quantity(upper.get(resource, "0")):
                    raise ValueError(
                        f"sets {low} for {resource} to {amount}, more than {high} "
                        f"({upper.get(resource, UNLISTED_AMOUNT)}): lower {low} or raise {high}"
                    )
        return self


class PriorityClassSettings(Settings):
    """A priority class of pods."""

    value: int = Field(
        ge=-(10**9),
        le=10**9,
        description="Priority. Pods with higher values are scheduled first. Kubernetes does "
        "not allow this value to change; add a class with a new name instead.",
    )
    preemption: Literal["PreemptLowerPriority", "Never"] = Field(
        default="PreemptLowerPriority",
        description="Policy for preempting pods with a lower priority. Like `value`, it cannot be "
        "changed.",
    )
    description: str = Field(
        default="", description="Description of the class, such as its intended users."
    )


class VolcanoSettings(Settings):
    """Volcano's chart, queues and priority classes."""

    install: bool = Field(
        default=True,
        description="Install the chart. Set to false if the cluster already has Volcano. Queues "
        "and priority classes are created in both cases.",
    )
    namespace: DnsLabel = Field(default="volcano-system", description="Namespace of the release.")
    chart: str = Field(default="volcano", min_length=1, description="Name of the chart.")
    repository: ChartRepository = Field(
        default="https://volcano-sh.github.io/helm-charts",
        description="URL of the chart's repository.",
    )
    version: ChartVersion = Field(default="1.15.1", description="Exact version of the chart.")
    values: dict[str, Any] = Field(default={}, description="Additional chart values.")
    scheduler: SchedulerSettings = Field(
        default=SchedulerSettings(),
        description="Scheduler policy, if the stack installs the scheduler.",
    )
    controllers: ControllersSettings = Field(
        default=ControllersSettings(),
        description="Rate limits of the controllers. `values.custom` takes precedence. Charts "
        "before 1.11 ignore the limits.",
    )
    log_level: int = Field(
        default=2,
        ge=0,
        le=10,
        description="Verbosity of the scheduler's and the controllers' logs. At 3 and "
        "above, the scheduler logs a line for each node on which a pod does not fit.",
    )
    timeout_seconds: PositiveInt = Field(
        default=300, description="Maximum time (s) until the scheduler is ready."
    )
    queues: dict[QueueName, QueueSettings] = Field(default={}, description="Queues by name.")
    priority_classes: dict[DnsName, PriorityClassSettings] = Field(
        default={}, description="Priority classes by name."
    )

    @field_validator("values")
    @classmethod
    def _values_are_valid(cls, values: dict[str, Any]) -> dict[str, Any]:
        check_mappings(values, "basic", "custom")
        custom = values.get("custom", {})
        if custom.get(OVERRIDE) is not None:
            _check_override(custom[OVERRIDE])
        return values

    @field_validator("priority_classes")
    @classmethod
    def _names_are_permitted(
        cls, classes: dict[str, PriorityClassSettings]
    ) -> dict[str, PriorityClassSettings]:
        for name in classes:
            if name.startswith("system-"):
                raise ValueError(
                    f"contains {name}, but Kubernetes reserves the prefix system-: choose another "
                    "name"
                )
        return classes

    @property
    def log_values(self) -> dict[str, int]:
        """Log levels of the scheduler and the controllers, for the chart's `custom` key."""
        return {f"{process}_log_level": self.log_level for process in ("scheduler", "controller")}

    @property
    def custom_configuration(self) -> bool:
        """True if `values` contains a scheduler configuration that replaces `scheduler`."""
        return bool(self.values.get("custom", {}).get(OVERRIDE))

    @property
    def configured(self) -> SchedulerSettings | None:
        """The scheduler's policy, or None if it is configured elsewhere."""
        return self.scheduler if self.install and not self.custom_configuration else None

    @property
    def hierarchical(self) -> bool:
        """True if a queue has a parent queue other than `root`."""
        return any(queue.parent not in (None, "root") for queue in self.queues.values())

    @property
    def leaf_queues(self) -> list[str]:
        """Sorted names of the queues without child queues, from which Volcano schedules jobs."""
        parents = {queue.parent for queue in self.queues.values()}
        return sorted(self.queues.keys() - parents)

    @property
    def known_priority_classes(self) -> list[str]:
        """Names of the priority classes that pods may use: those of the stack and of Kubernetes."""
        return [*self.priority_classes, *SYSTEM_PRIORITY_CLASSES]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version of the chart."""
        major, minor, *_ = self.version.lstrip("v").split(".")
        return int(major), int(minor)


def _check_override(text: object) -> None:
    """Raise ValueError if the text is not a valid scheduler configuration.

    The scheduler itself would only log the error and fall back to its defaults.
    """
    here = f"has an invalid custom.{OVERRIDE}"
    try:
        document = yaml.safe_load(text) if isinstance(text, str) else None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{here} (not YAML): {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not {"actions", "tiers"} <= document.keys():
        raise ValueError(
            f"{here}: set a string of YAML with `actions` and `tiers`, or use scheduler instead"
        )
