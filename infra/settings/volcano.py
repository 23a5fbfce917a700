"""The batch scheduler: its release, configuration, queues and priority classes."""

import itertools
from typing import Any, Final, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from infra.settings.controllers import ControllersSettings
from infra.settings.scheduler import SchedulerSettings
from infra.settings.types import (
    DnsLabel,
    DnsName,
    PositiveInt,
    QualifiedName,
    Quantity,
    Settings,
)
from kube.quantities import parse_quantity

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
