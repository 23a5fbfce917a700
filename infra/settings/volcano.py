"""How the scheduler decides: what counts as a fair share, who may push out whom, where pods go."""

import itertools
from collections.abc import Iterator
from typing import Any, Final, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from infra.settings.types import (
    DnsLabel,
    DnsName,
    PositiveInt,
    QualifiedName,
    Quantity,
    Settings,
)
from kube.quantities import parse_quantity

Eviction = Literal["none", "surplus", "gangs"]
"""Whose pods may be taken away: nobody's, what elastic jobs have above their minimum, whole gangs'.

Of a gang one pod is enough: its peers end with it, and the job waits for its turn again.
"""

OVERCOMMIT: Final = 1.2
"""Volcano's own default."""


class SlaSettings(Settings):
    """What is done for jobs that have waited too long."""

    longest_wait_seconds: PositiveInt = Field(
        description="wait after which a job is let in even while the cluster is full; the "
        "annotation `sla-waiting-time` of a Volcano Job is its own"
    )
    reserve: bool = Field(
        default=True,
        description="from then on, keep what becomes free for it until all of its gang fits",
    )


class SchedulerSettings(Settings):
    """The scheduler's configuration; Volcano's own text is made from it."""

    share: Literal["proportion", "capacity"] = Field(
        default="proportion",
        description="what a queue may claim: proportion divides the cluster by the queues' "
        "`weight`, capacity gives each its `deserved` and knows parents",
    )
    placement: Literal["binpack", "spread"] = Field(
        default="binpack",
        description="binpack fills nodes one after the other, which keeps whole nodes free for "
        "gangs; spread prefers the emptiest (by CPU and memory)",
    )
    pack_by: dict[QualifiedName, PositiveInt] = Field(
        default={"nvidia.com/gpu": 10, "cpu": 1, "memory": 1},
        description="what binpack looks at, with its weight",
    )
    preempt: Eviction = Field(
        default="none",
        description="whether jobs push out those of lower priority in the same queue: surplus "
        "takes only what elastic jobs have above their minimum, gangs takes any pod, whose job "
        "then starts again",
    )
    reclaim: Eviction = Field(
        default="none",
        description="whether a queue takes back its share from queues that use more than theirs; "
        "values as of `preempt`",
    )
    enqueue: bool | None = Field(
        default=None,
        description="hold jobs back, without pods, while the cluster has no room for them; null "
        "does so where nothing is preempted or reclaimed, since a job that is held back can do "
        "neither",
    )
    overcommit: float | None = Field(
        default=None,
        ge=1,
        description="how much is let in, as a multiple of the cluster's size; null is "
        f"{OVERCOMMIT} where jobs are held back",
    )
    priority: bool = Field(
        default=True, description="jobs of higher priority go first within a queue"
    )
    drf: bool = Field(
        default=True, description="among jobs of equal priority the one that has least goes first"
    )
    sla: SlaSettings | None = Field(default=None, description="a limit of waiting; null has none")
    backfill: bool = Field(
        default=True, description="place pods that ask for nothing wherever they fit"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._contradictions()):
            raise ValueError("contradicts itself: " + "; ".join(problems))
        return self

    @property
    def evicts(self) -> bool:
        """Whether running pods may be taken away for others."""
        return self.preempt != "none" or self.reclaim != "none"

    @property
    def holds_back(self) -> bool:
        """Whether jobs wait without pods until there may be room."""
        return not self.evicts if self.enqueue is None else self.enqueue

    def _contradictions(self) -> Iterator[str]:
        if self.preempt != "none" and not self.priority:
            yield (
                f"preempt is {self.preempt}, but priority is false, and only jobs of lower "
                "priority are preempted: write priority: true or preempt: none"
            )
        if self.evicts and self.enqueue:
            yield (
                "enqueue is true, but a job that is held back neither preempts nor reclaims: "
                "leave enqueue out, or write preempt: none and reclaim: none"
            )
        if self.overcommit is not None and not self.holds_back:
            yield (
                f"overcommit is {self.overcommit:g}, but no job is held back (enqueue is false, or "
                "preempt or reclaim is on): leave it out"
            )
        if self.sla is not None and not self.sla.reserve and not self.holds_back:
            yield "sla does nothing where no job is held back and reserve is false: leave it out"
        if self.placement == "spread" and "pack_by" in self.model_fields_set:
            yield "pack_by is for placement: binpack, but placement is spread: leave pack_by out"


class ControllersSettings(Settings):
    """The pace of the controllers that make pods, groups and services of jobs.

    A job of eight pods costs them about thirty requests, so that at Volcano's own 50 a second they
    give the scheduler a dozen pods a second (`make bench-scale`).
    """

    requests_per_second: PositiveInt = Field(
        default=1000, description="most requests to the API server, which sheds load by itself"
    )
    burst: PositiveInt = Field(default=2000, description="most requests at once")
    workers: PositiveInt = Field(
        default=10, description="jobs, and as many groups, that are handled at once"
    )

    def chart_values(self) -> dict[str, Any]:
        """The keys of the chart's `custom`, since 1.11; older charts have none for it."""
        return {
            "controller_kube_api_qps": self.requests_per_second,
            "controller_kube_api_burst": self.burst,
            "controller_worker_threads": self.workers,
            "controller_worker_threads_for_podgroup": self.workers,
        }


OVERRIDE: Final = "scheduler_config_override"
"""The chart's value that replaces the scheduler's configuration, in `custom`."""

ResourceAmounts = dict[QualifiedName, Quantity]


class QueueSettings(Settings):
    """A share of the cluster that jobs wait in line for."""

    weight: PositiveInt = Field(
        default=1, description="share of the cluster among the queues, where `share` is proportion"
    )
    priority: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="queues of higher priority are served first"
    )
    reclaimable: bool = Field(
        default=True, description="others may take back what this queue uses above its share"
    )
    capability: ResourceAmounts = Field(
        default={}, description="most that the queue may use in all"
    )
    deserved: ResourceAmounts = Field(
        default={},
        description="what the queue may always get back from others, where `share` is capacity",
    )
    guarantee: ResourceAmounts = Field(default={}, description="what is kept free for the queue")
    parent: DnsName | None = Field(
        default=None,
        description="queue above this one, where `share` is capacity; jobs wait in queues that "
        "have none below",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        rising = ("guarantee", "deserved", "capability")
        for low, high in itertools.combinations(rising, 2):
            upper = getattr(self, high)
            for resource, amount in getattr(self, low).items():
                if resource in upper and parse_quantity(amount) > parse_quantity(upper[resource]):
                    raise ValueError(
                        f"contradicts itself: {low} of {resource} is {amount}, more than its "
                        f"{high} of {upper[resource]}"
                    )
        return self


class PriorityClassSettings(Settings):
    """How important pods are when not all find a place."""

    value: int = Field(ge=-(10**9), le=10**9, description="higher goes first")
    preemption: Literal["PreemptLowerPriority", "Never"] = Field(
        default="PreemptLowerPriority", description="whether pods may push out less important ones"
    )
    description: str = Field(default="", description="who should use it")


class VolcanoSettings(Settings):
    """Volcano's chart and what is configured in it."""

    install: bool = Field(
        default=True,
        description="install the chart; false where the cluster has Volcano (queues and priority "
        "classes are made all the same)",
    )
    namespace: DnsLabel = Field(default="volcano-system", description="namespace of the release")
    chart: str = Field(default="volcano", min_length=1, description="name of the chart")
    repository: str = Field(
        default="https://volcano-sh.github.io/helm-charts",
        pattern=r"^(https?|oci)://\S+$",
        description="address of the chart's repository",
    )
    version: str = Field(
        default="1.15.1", pattern=r"^v?\d+\.\d+\.\d+\S*$", description="exact version of the chart"
    )
    values: dict[str, Any] = Field(
        default={}, description="values of the chart, as the chart names them"
    )
    scheduler: SchedulerSettings = Field(
        default=SchedulerSettings(),
        description="how it decides; not where the stack does not install it",
    )
    controllers: ControllersSettings = Field(
        default=ControllersSettings(),
        description="their pace; the same keys in `values` go before it, and charts before 1.11 "
        "know none of it",
    )
    log_level: int = Field(
        default=2,
        ge=0,
        le=10,
        description="detail of the scheduler's and the controllers' logs; from 3 on the scheduler "
        "writes a line for each pod and node that do not fit",
    )
    timeout_seconds: PositiveInt = Field(
        default=300, description="longest wait for the scheduler to be ready"
    )
    queues: dict[DnsName, QueueSettings] = Field(default={}, description="queues by name")
    priority_classes: dict[DnsName, PriorityClassSettings] = Field(
        default={}, description="priority classes by name"
    )

    @field_validator("values")
    @classmethod
    def _readable(cls, values: dict[str, Any]) -> dict[str, Any]:
        custom = values.get("custom", {})
        if not isinstance(custom, dict):
            raise ValueError("has custom, which must be a mapping of the chart's keys to values")
        if custom.get(OVERRIDE) is not None:
            _check_override(custom[OVERRIDE])
        return values

    @property
    def log_values(self) -> dict[str, int]:
        """The keys of the chart's `custom` for `log_level`."""
        return {f"{process}_log_level": self.log_level for process in ("scheduler", "controller")}

    @property
    def own_configuration(self) -> bool:
        """Whether `values` has a text of its own in place of `scheduler`."""
        return bool(self.values.get("custom", {}).get(OVERRIDE))

    @property
    def configured(self) -> SchedulerSettings | None:
        """What the scheduler is known to do; None where that is decided elsewhere."""
        return self.scheduler if self.install and not self.own_configuration else None

    @property
    def hierarchical(self) -> bool:
        """Whether queues stand below others."""
        return any(queue.parent not in (None, "root") for queue in self.queues.values())

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of the version."""
        major, minor, *_ = self.version.lstrip("v").split(".")
        return int(major), int(minor)


def _check_override(text: object) -> None:
    """The scheduler itself would go on with its default after one line in its log."""
    here = f"has custom.{OVERRIDE}, which must be"
    try:
        document = yaml.safe_load(text) if isinstance(text, str) else None
    except yaml.YAMLError as error:
        raise ValueError(f"{here} YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not {"actions", "tiers"} <= document.keys():
        raise ValueError(f"{here} a text with `actions` and `tiers`, or write scheduler instead")
